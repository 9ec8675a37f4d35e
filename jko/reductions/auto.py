"""The default reduction: chosen for the device and the sizes at hand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, final

from torch import Tensor

from jko.checks import check_kind
from jko.errors import MissingDependency
from jko.reductions.base import AbstractReduction, PairSums
from jko.reductions.blocked import Blocked
from jko.reductions.keops import KeOps
from jko.reductions.keops_probe import keops_available

__all__ = ["Auto", "reduction_or_auto"]

_LOG = logging.getLogger("jko")
# Below this a whole tile fits the GPU anyway, and KeOps would only add its compilation.
_MANY = 10_000

_Result = TypeVar("_Result")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Auto(AbstractReduction):
    """Choose the member by device and size: cache-blocked sums on a CPU, KeOps for many particles on a GPU.

    Where KeOps is missing or cannot compile, the blocked sums serve, and the log says why, once. The name tells
    which members did the work so far.
    """

    _blocked: Blocked = field(default_factory=Blocked, init=False, repr=False)
    _used: dict[str, None] = field(default_factory=dict, init=False, repr=False)
    _broken: list[str] = field(default_factory=list, init=False, repr=False)

    @property
    def name(self) -> str:
        return f"auto ({' and '.join(self._used or [self._blocked.name])})"

    def exponential_sums(
        self, points: Tensor, weights: Tensor, D: Tensor, *, first: bool = True, second: bool = False
    ) -> PairSums:
        return self.chosen(
            points, lambda member: member.exponential_sums(points, weights, D, first=first, second=second)
        )

    def directional_sums(self, points: Tensor, weights: Tensor, D: Tensor, direction: Tensor) -> PairSums:
        return self.chosen(points, lambda member: member.directional_sums(points, weights, D, direction))

    def cross_mass(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> Tensor:
        return self.chosen(points, lambda member: member.cross_mass(targets, points, weights, D))

    def cross_sums(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> PairSums:
        return self.chosen(points, lambda member: member.cross_sums(targets, points, weights, D))

    def largest_exponent(self, points: Tensor, D: Tensor) -> float:
        return self.chosen(points, lambda member: member.largest_exponent(points, D))

    def chosen(self, points: Tensor | None, call: Callable[[AbstractReduction], _Result]) -> _Result:
        """Return `call(member)` of the member chosen for `points`; None chooses the blocked sums."""
        if points is not None and not self._broken and _suits_keops(points) and keops_available().available:
            try:
                result = call(KeOps())
            except MissingDependency as error:
                self._broken.append(str(error))
                _LOG.warning("%s; the blocked sums serve instead", error)
            else:
                self._used["KeOps"] = None
                return result
        self._used[self._blocked.name] = None
        return call(self._blocked)


def reduction_or_auto(reduction: AbstractReduction | None) -> AbstractReduction:
    """Return a reduction that was asked for, `Auto()` for None.

    Raises:
        InvalidInput: for anything else.
    """
    reduction = Auto() if reduction is None else reduction
    check_kind(reduction, AbstractReduction, "reduction", example="Auto() or Blocked()")
    return reduction


def _suits_keops(points: Tensor) -> bool:
    return points.device.type == "cuda" and points.shape[-2] >= _MANY
