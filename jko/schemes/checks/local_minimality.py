"""Second-order check: is the stationary point a local minimum?"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from jko.checks import check_positive
from jko.schemes.checks.base import AbstractCheck, CheckResult, FinishedStep
from jko.schemes.minimizers.chart import Chart
from jko.spectrum import smallest_eigenvalue

__all__ = ["LocalMinimality"]

_DENSE = 40


@final
@dataclass(frozen=True, slots=True, eq=False)
class LocalMinimality(AbstractCheck):
    """The smallest eigenvalue of the step's Hessian, in coordinates in which the transport term is the identity.

    So 1 means that the energy is flat there, a positive number a strict local minimum among particle measures with
    these weights, and a negative one a saddle. Lanczos (ARPACK) with exact Hessian products, one pass each.

    Args:
        tolerance: what the eigenvalue must exceed.
    """

    tolerance: float = 1e-8

    def __post_init__(self) -> None:
        check_positive(self.tolerance, "tolerance", zero=True)

    @property
    def name(self) -> str:
        return "local minimality"

    @property
    def columns(self) -> tuple[str, ...]:
        return ("smallest_eigenvalue",)

    def examine(self, step: FinishedStep) -> CheckResult:
        objective, trial = step.objective, step.trial
        chart = Chart.at(objective, trial, objective.movement.weights > 0)
        passes: Counter[str] = Counter()

        def product(z: NDArray[np.float64]) -> NDArray[np.float64]:
            passes["hessian"] += 1
            return chart.gradient(objective.hessian_product(trial, chart.tangent(z)))

        size = chart.size
        value = 1.0 if size == 0 else smallest_eigenvalue(product, size, dense=_DENSE, tolerance=1e-6)[0]
        if math.isnan(value):
            detail = "no smallest eigenvalue was found: a Hessian product is not finite, or Lanczos did not converge"
            return CheckResult(None, {"smallest_eigenvalue": value}, passes["hessian"], detail)
        passed = value > self.tolerance
        detail = "" if passed else f"smallest eigenvalue {value:.3g}: a saddle or a degenerate point"
        return CheckResult(passed, {"smallest_eigenvalue": value}, passes["hessian"], detail)
