"""Paths given by their values at nodes in time, linear between them."""

from __future__ import annotations

import bisect
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.heads.base import check_time
from jko.memory import check_fits

__all__ = ["SNAP", "NodePath", "uniform_times"]

_CPU = torch.device("cpu")
SNAP = 1e-9
"""Distance in time within which a query takes the value of a node, so that rounded times give exact values."""


@final
@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class NodePath:
    """Values at increasing times, the first of them 0, linear between them, defined on [0, t1].

    A time that is given twice is a jump: its first value is the limit from the left, its second that from there on.

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
        gap = min(b - a for a, b in itertools.pairwise(times) if b > a)
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
        right = bisect.bisect_right(self.times, time)
        left = right - 1
        if time - self.times[left] <= self.slack:
            return self.values[left].clone()
        if self.times[right] - time <= self.slack:
            return self.values[right].clone()
        fraction = (time - self.times[left]) / (self.times[right] - self.times[left])
        # Products before the sum: entries that are equal at both nodes of a symmetric matrix stay equal.
        return self.values[left] * (1 - fraction) + self.values[right] * fraction

    @property
    def jumps(self) -> tuple[float, ...]:
        """The times that are given twice."""
        return tuple(a for a, b in itertools.pairwise(self.times) if a == b)

    def span(self, t: float, tau: float) -> tuple[int, int]:
        """Return the numbers of the nodes at t and at t + tau.

        Raises:
            InvalidInput: where one of them is no node, naming the nearest.
        """
        first, last = self._node(t), self._node(t + tau)
        if first == last:
            raise InvalidInput(f"tau = {tau!r} is too short for a step from node to node of the head path")
        return first, last

    def _node(self, t: float) -> int:
        time = check_time(t, self.t1, slack=self.slack)
        right = min(bisect.bisect_left(self.times, time), len(self.times) - 1)
        nearest = min((max(right - 1, 0), right), key=lambda k: abs(self.times[k] - time))
        if abs(self.times[nearest] - time) > self.slack:
            raise InvalidInput(
                f"t = {t!r} is no node of the head path, the nearest is {self.times[nearest]!r}: its increments are "
                "known from node to node only, so let the steps begin and end there"
            )
        return nearest


def uniform_times(dt: float, t1: float, shape: Sequence[int] = (), *, copies: int = 1) -> tuple[float, ...]:
    """Return the nodes 0, dt, 2 dt, ... up to the first that reaches t1 up to rounding.

    Args:
        dt: distance of the nodes.
        t1: the time to reach.
        shape: of the value at a node.
        copies: arrays of one such value a node that are made.

    Raises:
        InvalidInput: where they, or the times themselves, do not fit in memory.
    """
    steps, way_out = max(1.0, t1 / dt), "take a larger dt, a smaller t1, or fewer heads"
    check_fits("the values at the nodes", (steps, *shape), torch.float64, _CPU, way_out, copies=copies)
    # A float in a tuple takes four words.
    check_fits("the times of the nodes", (steps, 4), torch.float64, _CPU, way_out)
    steps = max(1, math.ceil(t1 / dt - SNAP))
    return tuple(k * dt for k in range(steps + 1))
