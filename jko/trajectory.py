"""The clouds that a run keeps: one tensor while the number of particles stays, else one cloud after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.measure import ParticleMeasure, check_measure
from jko.memory import check_fits

__all__ = ["Trajectory", "check_kept"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """Clouds of one dimension d. A step to a support of another size makes the clouds differ in n and in weights.

    Attributes:
        points: all particles one cloud after the other, shape (sum n_k, d).
        weights: their weights, shape (sum n_k,); each cloud sums to 1.
        sizes: the numbers of particles n_k.
    """

    points: Tensor
    weights: Tensor
    sizes: tuple[int, ...]

    @staticmethod
    def of(measures: Sequence[ParticleMeasure]) -> Trajectory:
        """Keep the clouds of unbatched measures."""
        for measure in measures:
            check_measure(measure, "every measure")
        return Trajectory(
            points=torch.cat([measure.points for measure in measures]),
            weights=torch.cat([measure.weights for measure in measures]),
            sizes=tuple(measure.n for measure in measures),
        )

    @property
    def uniform(self) -> bool:
        """Whether all clouds have the same number of particles and the same weights."""
        if len(set(self.sizes)) != 1:
            return False
        rows = self.weights.reshape(len(self.sizes), -1)
        return bool((rows == rows[0]).all())

    @property
    def stacked_points(self) -> Tensor:
        """All particles as one tensor, shape (S, n, d).

        Raises:
            InvalidInput: when the clouds differ in size.
        """
        return self.points.reshape(len(self.sizes), self._common_size("points"), -1)

    @property
    def common_weights(self) -> Tensor:
        """The weights that all clouds share, shape (n,).

        Raises:
            InvalidInput: when the clouds differ in size or in weights.
        """
        n = self._common_size("weights")
        if not self.uniform:
            raise InvalidInput("the weights changed with the support; use .measure(k).weights")
        return self.weights[:n]

    def measure(self, k: int) -> ParticleMeasure:
        """Return the k-th cloud; negative k count from the end.

        Raises:
            IndexError: when there is no such cloud.
        """
        count = len(self.sizes)
        if not -count <= k < count:
            raise IndexError(f"cloud {k} was asked for, and {count} were kept")
        start = sum(self.sizes[: k % count])
        part = slice(start, start + self.sizes[k])
        return ParticleMeasure(self.points[part], self.weights[part])

    def tensors(self) -> dict[str, Tensor]:
        """Return what a file needs: stacked clouds where they are alike, else the concatenation and the sizes."""
        if self.uniform:
            return {"points": self.stacked_points, "weights": self.common_weights}
        return {"points": self.points, "weights": self.weights, "sizes": torch.tensor(self.sizes)}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Trajectory:
        """Read back what `tensors` gave.

        Raises:
            ValueError: for shapes that are none of a trajectory.
        """
        points, weights, sizes = tensors["points"], tensors["weights"], tensors.get("sizes")
        if sizes is None:
            if points.ndim != 3 or weights.shape != points.shape[1:2]:
                raise ValueError(f"points {tuple(points.shape)} and weights {tuple(weights.shape)}")
            count, n = points.shape[:2]
            return Trajectory(points.flatten(0, 1), weights.repeat(count), (n,) * count)
        counts = tuple(int(size) for size in sizes)
        if points.ndim != 2 or weights.shape != points.shape[:1] or sum(counts) != points.shape[0] or min(counts) < 1:
            raise ValueError(f"points {tuple(points.shape)}, weights {tuple(weights.shape)}, sizes {counts}")
        return Trajectory(points, weights, counts)

    def _common_size(self, name: str) -> int:
        sizes = sorted(set(self.sizes))
        if len(sizes) != 1:
            raise InvalidInput(
                f"the clouds have {sizes[0]} to {sizes[-1]} particles, so their {name} cannot be stacked; use "
                ".measure(k)"
            )
        return sizes[0]


def check_kept(clouds: int, measure: ParticleMeasure) -> None:
    """Refuse clouds that memory cannot hold at the end of a run, where each is there twice."""
    shape = (clouds, measure.n, measure.d)
    way_out = "keep fewer: Save(every=...), Save(times=...) or Save(clouds=False)"
    check_fits("the clouds that the run keeps", shape, measure.dtype, measure.device, way_out, copies=2)
