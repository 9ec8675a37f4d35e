"""The default reduction: chosen for the device and the sizes at hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from jko.reductions.base import AbstractReduction, PairSums
from jko.reductions.blocked import Blocked

__all__ = ["Auto"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Auto(AbstractReduction):
    """Choose the member by device and size. At present the cache-blocked sums serve every case."""

    _blocked: Blocked = field(default_factory=Blocked, init=False, repr=False)

    @property
    def name(self) -> str:
        return f"auto ({self._blocked.name})"

    def exponential_sums(
        self, points: Tensor, weights: Tensor, D: Tensor, *, first: bool = True, second: bool = False
    ) -> PairSums:
        return self._blocked.exponential_sums(points, weights, D, first=first, second=second)

    def directional_sums(self, points: Tensor, weights: Tensor, D: Tensor, direction: Tensor) -> PairSums:
        return self._blocked.directional_sums(points, weights, D, direction)

    def cross_mass(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> Tensor:
        return self._blocked.cross_mass(targets, points, weights, D)

    def cross_sums(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> PairSums:
        return self._blocked.cross_sums(targets, points, weights, D)

    def largest_exponent(self, points: Tensor, D: Tensor) -> float:
        return self._blocked.largest_exponent(points, D)
