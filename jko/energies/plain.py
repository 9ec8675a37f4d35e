"""What energies without heads have in common."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from jko.energies.attention import AttentionEnergy
from jko.energies.base import AbstractEnergy, Evaluation, HeadEvaluation, PotentialField
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure

__all__ = ["AbstractPlainEnergy", "check_direction", "for_each", "stacked"]


class AbstractPlainEnergy(AbstractEnergy):
    """An energy that is no average over heads and holds no exponentials that could overflow unexplained."""

    __slots__ = ()

    @property
    @abstractmethod
    def kind(self) -> str:
        """What it is, for messages: "a potential energy"."""

    @property
    def attention_parts(self) -> tuple[AttentionEnergy, ...]:
        """No parts."""
        return ()

    def largest_exponent(self, measure: ParticleMeasure, t: float) -> float:
        """Return -inf."""
        return -math.inf

    def evaluate_heads(self, points: Tensor, weights: Tensor, t: float) -> HeadEvaluation:
        """Refuse: there are no heads."""
        raise self._no_heads()

    def hessian_product_heads(self, points: Tensor, weights: Tensor, t: float, direction: Tensor) -> Tensor:
        """Refuse: there are no heads."""
        raise self._no_heads()

    def heads_alone(self, indices: Sequence[int]) -> AbstractEnergy:
        """Refuse: there are no heads."""
        raise self._no_heads()

    def first_variation_heads_at(
        self, targets: Tensor, points: Tensor, weights: Tensor, t: float
    ) -> PotentialField | None:
        """Refuse: there are no heads."""
        raise self._no_heads()

    def _no_heads(self) -> InvalidInput:
        return InvalidInput(f"{self.kind} is no average over heads; add an attention energy, or use Wasserstein2()")


def for_each(measure: ParticleMeasure, call: Callable[[Tensor, Tensor, tuple[int, ...]], Tensor]) -> Tensor:
    """Return `call(points, weights, index)` of each member of a batch, stacked like the batch."""
    rows = [call(*member) for member in _members(measure)]
    return torch.stack(rows).reshape((*measure.batch_shape, *rows[0].shape))


def stacked(measure: ParticleMeasure, evaluate: Callable[[Tensor, Tensor], Evaluation]) -> Evaluation:
    """Return the evaluation of a batch from `evaluate(points, weights)` of each member."""
    parts = [evaluate(x, w) for x, w, _ in _members(measure)]
    if not measure.batch_shape:
        return parts[0]

    def joined(rows: list[Tensor]) -> Tensor:
        return torch.stack(rows).reshape((*measure.batch_shape, *rows[0].shape))

    curvatures = [part.curvature for part in parts if part.curvature is not None]
    return Evaluation(
        value=joined([part.value for part in parts]),
        first_variation=joined([part.first_variation for part in parts]),
        gradient=joined([part.gradient for part in parts]),
        curvature=joined(curvatures) if len(curvatures) == len(parts) else None,
    )


def check_direction(direction: Tensor, points: Tensor) -> Tensor:
    """Return directions of the shape of the points.

    Raises:
        InvalidInput: when they do not fit.
    """
    if direction.shape[-2:] != points.shape[-2:] or direction.ndim > points.ndim:
        raise InvalidInput(f"direction has shape {tuple(direction.shape)}, the particles have {tuple(points.shape)}")
    return direction.expand_as(points)


def _members(measure: ParticleMeasure) -> list[tuple[Tensor, Tensor, tuple[int, ...]]]:
    """Points (n, d), weights (n,) and index of each member of a batch."""
    shape = measure.batch_shape
    weights = measure.weights.expand(*shape, measure.n)
    indices = itertools.product(*(range(size) for size in shape))
    return [(measure.points[index], weights[index], index) for index in indices]
