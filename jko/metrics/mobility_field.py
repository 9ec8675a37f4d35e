"""The effective mobility as a function of position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from jko.averages import harmonic_mean, head_average
from jko.energies import AbstractHeadAverage
from jko.measure import ParticleMeasure, check_measure

__all__ = ["MobilityField"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class MobilityField:
    """b_u(x) = 1 / mean_h(1 / m_h(x)), eq. (36), with the measure u and the heads at time t held fixed.

    Attributes:
        energy: the attention energy whose heads make m_h.
        measure: u, unbatched.
        t: time of the heads.
    """

    energy: AbstractHeadAverage
    measure: ParticleMeasure
    t: float

    def __post_init__(self) -> None:
        check_measure(self.measure)

    def at(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return b and its ambient gradient at points (m, d): shapes (m,) and (m, d); one pass."""
        u = self.measure
        D = self.energy.heads.at(self.t).to(device=u.points.device, dtype=u.points.dtype)
        sums = self.energy.reduction.cross_sums(points, u.points, u.weights, D)
        assert sums.first is not None
        weights = self.energy.heads.head_weights
        b = harmonic_mean(sums.mass, weights)
        # grad(1/m_h) = -grad m_h / m_h^2 with grad m_h = D_h sum_j w_j K_h(x, x_j) x_j.
        slopes = (D @ (sums.first * sums.mass.reciprocal().square()[:, None])).mT
        return b, b.square()[:, None] * head_average(slopes, weights, axis=-3)
