"""A reduction that keeps count of its passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from jko.reductions import AbstractReduction, PairSums


@dataclass(frozen=True)
class Counted(AbstractReduction):
    """Another reduction; every pass over the pairs appends to `calls`."""

    inner: Any
    calls: list[None]

    @property
    def name(self) -> str:
        return "counted"

    def exponential_sums(self, *args: Any, **options: Any) -> PairSums:
        self.calls.append(None)
        return self.inner.exponential_sums(*args, **options)

    def directional_sums(self, *args: Any, **options: Any) -> PairSums:
        self.calls.append(None)
        return self.inner.directional_sums(*args, **options)

    def cross_mass(self, *args: Any, **options: Any) -> Tensor:
        self.calls.append(None)
        return self.inner.cross_mass(*args, **options)

    def cross_sums(self, *args: Any, **options: Any) -> Any:
        self.calls.append(None)
        return self.inner.cross_sums(*args, **options)

    def largest_exponent(self, points: Tensor, D: Tensor) -> float:
        return self.inner.largest_exponent(points, D)
