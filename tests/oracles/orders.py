"""The observed order of a sequence of errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def fit(taus: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """Slope and R^2 of the straight line through log error over log tau."""
    x, y = np.log(taus), np.log(errors)
    slope, constant = np.polyfit(x, y, 1)
    residual = y - slope * x - constant
    return float(slope), float(1 - residual.var() / y.var())


def assert_order(taus: Sequence[float], errors: Sequence[float], order: float) -> None:
    """Two-sided: neither a lower order nor a higher one passes."""
    slope, quality = fit(taus, errors)
    assert abs(slope - order) <= 0.15, (slope, errors)
    assert quality >= 0.99, (quality, errors)
