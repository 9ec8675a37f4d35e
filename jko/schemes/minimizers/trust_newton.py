"""Trust-region Newton with exact Hessian products: the fallback that large steps need."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from jko.checks import check_integer
from jko.schemes.minimizers.base import AbstractMinimizer, Minimization, Secants, check_rtol, default_rtol, judge
from jko.schemes.minimizers.chart import Chart, Vector
from jko.schemes.objective import StepProblem, Trial

__all__ = ["TrustNewton"]

# Below this residual Newton's method converges faster than the trust region can measure its progress.
_HAND_OVER = 1e-5
# Above this residual a guess says nothing about where the solution is.
_NEAR = 0.1
_WRAPS = 5


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class TrustNewton(AbstractMinimizer):
    """SciPy's `trust-ncg` (Steihaug 1983) in tangent coordinates scaled by (tau / (w b))^(1/2), then MINRES-Newton.

    In these coordinates the transport term is |z|^2 / 2. The ratio test of the trust region drowns in rounding near
    1e-8, so the end game is Newton's method with MINRES (Paige and Saunders 1975), accepted on the residual.
    Tracers (w = 0) do not act on the others: they are solved after them, with the others fixed.

    Args:
        rtol: relative residual that counts as solved; None means 1e-8 in float64 and 1e-5 in float32.
        max_passes: passes over the pairs before it gives up.
    """

    rtol: float | None
    max_passes: int

    def __init__(self, rtol: float | None = None, *, max_passes: int = 2000) -> None:
        object.__setattr__(self, "rtol", check_rtol(rtol))
        object.__setattr__(self, "max_passes", check_integer(max_passes, "max_passes", least=1))

    def tolerance(self, dtype: torch.dtype) -> float:
        return default_rtol(dtype) if self.rtol is None else self.rtol

    @property
    def wants_curvature(self) -> bool:
        return False

    def minimize(
        self, problem: StepProblem, origin: Trial, guess: Tensor | None = None, secants: Secants | None = None
    ) -> Minimization:
        if problem.lifted:
            return self._head_by_head(problem, origin, guess)
        search = _Search(problem, self.max_passes, Counter(), [])
        tracers = problem.measure.weights == 0
        with suppress(_OutOfPassesError):
            start = origin if guess is None else search.evaluate(guess)
            trial = search.solve(start if start.finite else origin, ~tracers)
            if bool(tracers.any()):
                search.solve(trial, tracers)
        # With a guess the old measure, which may be stationary itself, is not an answer to the question asked.
        candidates = search.best if guess is not None and search.best else [origin, *search.best]
        best = min(candidates, key=lambda trial: trial.residual)
        status, detail = judge(problem, origin, best)
        return Minimization(status, best, search.spent["passes"], detail)

    def _head_by_head(self, problem: StepProblem, origin: Trial, guess: Tensor | None) -> Minimization:
        """Solve the heads one after the other: a common trust region would be as small as the stiffest head needs.

        Passes count in passes of all heads together. A head starts from the guess where that is near a solution.
        """
        heads, spent, parts = origin.xi.shape[0], 0.0, []
        for h in range(heads):
            part = problem.head(h)
            start = part.evaluate(torch.zeros_like(origin.xi[h : h + 1]))
            near = start if guess is None else part.evaluate(guess[h : h + 1])
            spent += 1 + (guess is not None)
            if guess is not None and judge(part, start, near)[0].ok:
                parts.append(near.xi)
                continue
            found = self.minimize(part, start, near.xi if near.residual < _NEAR and near is not start else None)
            spent += found.passes
            if not found.status.ok and near is not start:
                found = self.minimize(part, start)
                spent += found.passes
            parts.append(found.trial.xi)
        trial = problem.evaluate(torch.cat(parts))
        status, detail = judge(problem, origin, trial)
        return Minimization(status, trial, 1 + spent / heads, detail)


class _OutOfPassesError(Exception):
    """The budget of passes is spent."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The step's objective with every pass counted, over both phases and both kinds of particles."""

    problem: StepProblem
    max_passes: int
    spent: Counter[str]
    best: list[Trial]

    def evaluate(self, xi: Tensor) -> Trial:
        self._pay()
        trial = self.problem.evaluate(xi)
        if not self.best or trial.residual < self.best[0].residual:
            self.best[:] = [trial]
        return trial

    def hessian_product(self, trial: Trial, eta: Tensor) -> Tensor:
        self._pay()
        return self.problem.hessian_product(trial, eta)

    def _pay(self) -> None:
        if self.spent["passes"] >= self.max_passes:
            raise _OutOfPassesError
        self.spent["passes"] += 1

    def solve(self, start: Trial, moving: Tensor) -> Trial:
        """Move the particles marked in `moving`, first by the trust region, then by Newton steps."""
        for _ in range(_WRAPS):
            chart = Chart.at(self.problem, start, moving)
            if chart.residual(start) <= self.problem.rtol:
                break
            # Far from a minimizer squares overflow inside SciPy; a trial that comes of it is refused as not finite.
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                start = _newton(self, chart, _trust_region(self, chart, start))
            shorter = self._wrapped(start)
            if shorter is None:
                break
            start = shorter
        return start

    def _wrapped(self, trial: Trial) -> Trial | None:
        """The same points reached by the shorter way, where a particle went beyond the cut locus: a lower objective."""
        manifold, y = self.problem.manifold, self.problem.measure.points
        length = trial.xi.square().sum(-1)
        beyond = length > ((1 + 1e-9) * manifold.injectivity_radius) ** 2
        if not trial.finite or not bool(beyond.any()):
            return None
        xi = trial.xi.clone()
        group, particle = beyond.nonzero(as_tuple=True)
        xi[group, particle] = manifold.log(y[particle], trial.points[group, particle])
        self.best.clear()
        return self.evaluate(xi)


def _trust_region(search: _Search, chart: Chart, start: Trial) -> Trial:
    from scipy.optimize import minimize

    problem = search.problem
    seen: dict[bytes, Trial] = {}

    def trial_at(z: Vector) -> Trial:
        key = z.tobytes()
        if key not in seen:
            seen[key] = search.evaluate(chart.displacement(z))
            while len(seen) > 3:
                del seen[next(iter(seen))]
        return seen[key]

    def objective(z: Vector) -> tuple[float, Vector]:
        trial = trial_at(z)
        if not trial.finite:
            return math.inf, np.zeros_like(z)
        return chart.objective(trial), chart.gradient(problem.stationarity(trial))

    def product(z: Vector, direction: Vector) -> Vector:
        return chart.gradient(search.hessian_product(trial_at(z), chart.tangent(direction)))

    z0 = chart.coordinates(start.xi)
    seen[z0.tobytes()] = start
    _, gradient = objective(z0)
    radius = max(float(np.linalg.norm(gradient)), 1e-300)
    if not 1e6 * radius < math.inf:
        return start
    options: dict[str, Any] = {
        "gtol": 0.1 * problem.rtol * max(float(np.linalg.norm(gradient)), 1e-300),
        "initial_trust_radius": radius,
        "max_trust_radius": 1e6 * radius,
        "maxiter": 200,
    }

    def finished(z: Vector) -> None:
        if chart.residual(trial_at(z)) <= max(problem.rtol, _HAND_OVER):
            raise StopIteration

    try:
        result = minimize(
            objective, z0, method="trust-ncg", jac=True, hessp=product, callback=finished, options=options
        )
    except ValueError:
        # SciPy refuses products that overflowed; the best trial so far stands and is judged.
        return search.best[0] if search.best else start
    return trial_at(result.x)


def _newton(search: _Search, chart: Chart, trial: Trial) -> Trial:
    from scipy.sparse.linalg import LinearOperator, minres

    problem = search.problem
    for _ in range(20):
        if chart.residual(trial) <= problem.rtol or not trial.finite:
            break
        right = -chart.gradient(problem.stationarity(trial))
        if not math.isfinite(float(np.linalg.norm(right))):
            break
        current = trial

        def product(direction: Vector, current: Trial = current) -> Vector:
            return chart.gradient(search.hessian_product(current, chart.tangent(direction.ravel())))

        operator = LinearOperator((right.size, right.size), matvec=product, dtype=np.float64)
        try:
            step, _ = minres(operator, right, rtol=1e-3, maxiter=200)
        except ValueError:
            # SciPy refuses a product that overflowed; the trial stands as it is and is judged.
            break
        z = chart.coordinates(trial.xi)
        candidate = search.evaluate(chart.displacement(z + step))
        if not chart.residual(candidate) < chart.residual(trial):
            break
        trial = candidate
    return trial
