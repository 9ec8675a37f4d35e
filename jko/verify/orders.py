"""Observed orders of convergence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

__all__ = ["Order", "fit_order"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """The straight line through log error over log step.

    Attributes:
        slope: the observed order; NaN where an error is 0 or not finite.
        quality: R^2 of the line.
        last: the order between the two smallest steps.
    """

    slope: float
    quality: float
    last: float


def fit_order(steps: Sequence[float], errors: Sequence[float]) -> Order:
    """Fit the order of errors that belong to decreasing step sizes."""
    positive = all(error > 0 and math.isfinite(error) for error in errors)
    if len(steps) < 2 or not positive:
        return Order(math.nan, math.nan, math.nan)
    x, y = np.log(np.asarray(steps)), np.log(np.asarray(errors))
    slope, constant = np.polyfit(x, y, 1)
    spread = float(y.var())
    quality = 1.0 if spread == 0 else 1 - float((y - slope * x - constant).var()) / spread
    return Order(float(slope), quality, float((y[-1] - y[-2]) / (x[-1] - x[-2])))
