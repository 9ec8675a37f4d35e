"""Time grids from their end points."""

from __future__ import annotations

import math

from jko.checks import check_positive
from jko.errors import InvalidInput

__all__ = ["time_grid"]

_SLACK = 1e-9


def time_grid(t0: float, t1: float, tau: float) -> list[float]:
    """Return t0, t0 + tau, ..., t1: full steps of tau, the last one shortened where tau does not divide t1 - t0.

    Times are products, never sums, so the number of steps does not depend on accumulated rounding; a remainder below
    1e-9 tau counts as rounding. t1 = t0 gives no step.

    Raises:
        InvalidInput: for tau <= 0, t1 < t0 or non-finite times.
    """
    check_positive(tau, "tau")
    if not (math.isfinite(t0) and math.isfinite(t1)) or t1 < t0:
        raise InvalidInput(f"times must be finite with t1 >= t0, got t0 = {t0!r}, t1 = {t1!r}")
    steps = math.ceil((t1 - t0) / tau - _SLACK)
    return [t0 + k * tau for k in range(steps)] + [t1]
