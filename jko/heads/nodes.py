"""Paths given by their values at nodes in time, linear between them."""

from __future__ import annotations

import bisect
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from jko.heads.base import check_time

__all__ = ["SNAP", "NodePath", "uniform_times"]

SNAP = 1e-9
"""Distance in time within which a query takes the value of a node, so that rounded times give exact values."""


@final
@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class NodePath:
    """Values at increasing times, the first of them 0, linear between them, defined on [0, t1].

    Args:
        times: nodes, K + 1 increasing times from 0; the last one may lie beyond t1.
        values: one value per node, shape (K + 1, ...). Not copied.
        t1: end of the interval of definition; None means the last node.
    """

    times: tuple[float, ...]
    values: Tensor
    t1: float
    slack: float

    def __init__(self, times: Sequence[float], values: Tensor, t1: float | None = None) -> None:
        end = times[-1] if t1 is None else t1
        gap = min(b - a for a, b in itertools.pairwise(times))
        # Nodes closer than SNAP are still told apart, but nothing finer than the rounding of t1 can be.
        slack = max(min(SNAP, 1e-3 * gap), 8 * sys.float_info.epsilon * end)
        object.__setattr__(self, "times", tuple(times))
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "t1", end)
        object.__setattr__(self, "slack", slack)

    def at(self, t: float) -> Tensor:
        """Return the value at time t, shape (...), as a tensor of the caller's own.

        Raises:
            InvalidInput: for t outside [0, t1].
        """
        time = check_time(t, self.t1, slack=self.slack)
        right = bisect.bisect_left(self.times, time)
        if right == len(self.times) or self.times[right] - time <= self.slack:
            return self.values[min(right, len(self.times) - 1)].clone()
        left = right - 1
        if time - self.times[left] <= self.slack:
            return self.values[left].clone()
        fraction = (time - self.times[left]) / (self.times[right] - self.times[left])
        # Products before the sum: entries that are equal at both nodes of a symmetric matrix stay equal.
        return self.values[left] * (1 - fraction) + self.values[right] * fraction


def uniform_times(dt: float, t1: float) -> tuple[float, ...]:
    """Nodes 0, dt, 2 dt, ... up to the first that reaches t1 up to rounding."""
    steps = max(1, math.ceil(t1 / dt - SNAP))
    return tuple(k * dt for k in range(steps + 1))
