"""De Giorgi's identity: an equality test of the whole inner solver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from jko.checks import check_integer
from jko.schemes.checks.base import AbstractCheck, CheckResult, FinishedStep

__all__ = ["DeGiorgi"]

_RULES = (6, 12, 24)


@final
@dataclass(frozen=True, slots=True, eq=False)
class DeGiorgi(AbstractCheck):
    """E(u_tau) + W^2(u_tau, y)/(2 tau) + int_0^tau W^2(u_s, y)/(2 s^2) ds = E(y) for exact minimizers u_s.

    Time and mobility are frozen, as in the step itself; for a lifted metric the identity holds per head and is
    averaged over heads (Ambrosio, Gigli and Savare 2008, Theorem 3.1.4). The integral is a Gauss-Legendre sum over
    minimizers at smaller steps. The defect sees the inner tolerance to first order. It cannot see a wrong mobility, a
    consistently wrong sign or time, or a wrong branch.

    Args:
        nodes: number of quadrature nodes; None doubles them from 6 until two rules agree.
    """

    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.nodes is not None:
            check_integer(self.nodes, "nodes", least=1)

    @property
    def name(self) -> str:
        return "De Giorgi identity"

    @property
    def columns(self) -> tuple[str, ...]:
        return ("de_giorgi_defect",)

    def examine(self, step: FinishedStep) -> CheckResult:
        tau, shares = step.objective.tau, step.shares
        change = torch.tensor(
            [new - old for new, old in zip(step.trial.objective, step.origin.objective, strict=True)],
            dtype=torch.float64,
        )
        scale = max(abs(value) for value in (*step.trial.objective, *step.origin.objective))
        ends = float(change @ shares)
        integral, passes, error, tolerance = math.inf, 0.0, math.inf, 0.0
        for nodes in (self.nodes,) if self.nodes else _RULES:
            found = _integral(step, nodes)
            if found is None:
                detail = "the step could not be solved at every smaller tau"
                return CheckResult(None, {"de_giorgi_defect": math.nan}, passes, detail)
            refined, spent = found
            passes += spent
            tolerance = 4 * step.objective.rtol * abs(refined) + 64 * torch.finfo(step.trial.xi.dtype).eps * scale
            error, integral = abs(refined - integral), refined
            if error <= tolerance / 4:
                break
        defect = ends + integral
        settled = self.nodes is not None or error <= tolerance
        passed = abs(defect) <= tolerance + (0.0 if self.nodes is not None else min(error, tolerance))
        detail = "" if passed else f"De Giorgi defect {defect:.3g} against {tolerance:.3g} (tau = {tau:g})"
        return CheckResult(passed if settled else None, {"de_giorgi_defect": defect}, passes, detail)


def _integral(step: FinishedStep, nodes: int) -> tuple[float, float] | None:
    """Gauss-Legendre sum of W^2(u_s, y) / (2 s^2) over (0, tau), and the passes spent on it."""
    abscissas, factors = np.polynomial.legendre.leggauss(nodes)
    total, passes, tau = 0.0, 0.0, step.objective.tau
    for abscissa, factor in zip(abscissas, factors, strict=True):
        s = tau * (1 + float(abscissa)) / 2
        found = step.solve(s)
        if found is None:
            return None
        passes += found.passes
        squared = float(torch.tensor(found.trial.cost, dtype=torch.float64) @ step.shares)
        total += float(factor) * tau / 2 * squared / (2 * s * s)
    return total, passes
