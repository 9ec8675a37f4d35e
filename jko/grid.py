"""Time grids from their end points."""

from __future__ import annotations

import math

from jko.checks import check_finite_number, check_positive
from jko.errors import InvalidInput

__all__ = ["time_grid"]

_SLACK = 1e-9


def time_grid(t0: float, t1: float, tau: float) -> list[float]:
    """Return t0, t0 + tau, ..., t1: full steps of tau, the last one shortened where tau does not divide t1 - t0.

    Times are products, never sums, so the number of steps does not depend on accumulated rounding; a remainder below
    1e-9 tau counts as rounding. t1 = t0 gives no step.

    Raises:
        InvalidInput: for tau <= 0, t1 < t0, non-finite times, or a tau that is lost in the rounding of the times.
    """
    tau = check_positive(tau, "tau")
    t0, t1 = check_finite_number(t0, "t0"), check_finite_number(t1, "t1")
    if t1 < t0:
        raise InvalidInput(f"the run must end after it begins, got t0 = {t0!r}, t1 = {t1!r}")
    if t1 > t0 and tau < 4 * max(math.ulp(t0), math.ulp(t1)):
        raise InvalidInput(f"tau = {tau!r} is below the rounding of times between {t0!r} and {t1!r}")
    steps = math.ceil((t1 - t0) / tau - _SLACK)
    return [t0 + k * tau for k in range(steps)] + [t1]
