"""Time grids from their end points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from jko.checks import check_finite_number, check_jumps, check_positive
from jko.errors import InvalidInput
from jko.memory import check_fits

__all__ = ["step_size", "time_grid"]

_SLACK = 1e-9


def time_grid(t0: float, t1: float, tau: float, jumps: Sequence[float] = ()) -> list[float]:
    """Return t0, t0 + tau, ..., t1, begun anew at every jump: full steps of tau, the last before each end shortened.

    Times are products, never sums, so the number of steps does not depend on accumulated rounding; what lies within
    1e-9 tau counts as one time. A step or a jump that close to the end of the full steps makes no step of its own,
    jumps that close are one grid point, the latest of them, and so are t0 and a jump just after it. The last time is
    t1 itself. t1 = t0 gives no step, any later t1 gives at least one, however short.

    Args:
        t0: begin.
        t1: end.
        tau: step size.
        jumps: times at which a step must end, in any order; those outside of (t0, t1) are passed over.

    Raises:
        InvalidInput: for tau <= 0, t1 < t0, non-finite times, or a tau that is lost in the rounding of the times.
    """
    tau = check_positive(tau, "tau")
    t0, t1 = check_finite_number(t0, "t0"), check_finite_number(t1, "t1")
    if t1 < t0:
        raise InvalidInput(f"the run must end after it begins, got t0 = {t0!r}, t1 = {t1!r}")
    if t1 == t0:
        return [t1]
    if tau < 4 * max(math.ulp(t0), math.ulp(t1)):
        raise InvalidInput(f"tau = {tau!r} is below the rounding of times between {t0!r} and {t1!r}")
    slack = _slack(tau, t0, t1)
    inner = [jump for jump in check_jumps(jumps) if t0 < jump < t1]
    ends = [time for time, later in itertools.pairwise([*inner, t1]) if later - time > slack] + [t1]
    times = [t0 if len(ends) == 1 or ends[0] - t0 > slack else ends.pop(0)]
    for end in ends:
        begin = times[-1]
        steps = math.ceil((end - begin - slack) / tau)
        # A float in a list takes four words.
        shape, way_out = (len(times) + steps, 4), "take a larger tau or a smaller t1"
        check_fits("the times of the steps", shape, torch.float64, torch.device("cpu"), way_out)
        times += [*(begin + k * tau for k in range(1, steps)), end]
    return times


def step_size(start: float, end: float, tau: float, jumps: Sequence[float] = ()) -> float:
    """Return the length of the step from `start` to `end`, two neighbors of a grid.

    A full step keeps tau itself, since the difference of two times differs from it by rounding. A step to a jump falls
    short of it by one rounding, so that what is evaluated at its end is the limit from the left.
    """
    near = [jump for jump in jumps if abs(jump - end) <= _slack(tau, start, end) and jump > start]
    if not near:
        return tau if abs(end - start - tau) <= _SLACK * tau else end - start
    short = math.nextafter(min(near), -math.inf) - start
    # start + short may round up to the jump where start is the smaller half of it.
    return short if start + short < min(near) else math.nextafter(short, -math.inf)


def _slack(tau: float, *times: float) -> float:
    """How far apart two times may be and still count as one."""
    return max(_SLACK * tau, 2 * max(map(math.ulp, times)))
