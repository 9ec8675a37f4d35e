"""Times at which runs with different step sizes can be compared without interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jko.checks import check_integer, check_positive
from jko.errors import InvalidInput

__all__ = ["common_intervals"]

_SLACK = 1e-9


def common_intervals(t1: float, taus: Sequence[float], samples: int) -> int:
    """Return the largest m <= samples such that every tau hits t1 / m, 2 t1 / m, ..., t1.

    Raises:
        InvalidInput: when a tau does not divide t1, naming the nearest one that does.
    """
    end = check_positive(t1, "t1")
    most = check_integer(samples, "samples", least=1)
    counts = []
    for tau in taus:
        ratio = end / check_positive(tau, "tau")
        count = max(1, round(ratio))
        if abs(ratio - count) > _SLACK * count:
            raise InvalidInput(
                f"tau = {tau!r} does not divide t1 = {t1!r}, so its run has no times in common with the others; the "
                f"nearest that does is {end / count!r}"
            )
        counts.append(count)
    shared = math.gcd(*counts)
    return max(m for m in range(1, min(most, shared) + 1) if shared % m == 0)
