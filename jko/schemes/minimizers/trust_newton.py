"""Trust-region Newton with exact Hessian products: the fallback that large steps need."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from jko.checks import check_integer
from jko.schemes.minimizers.base import AbstractMinimizer, Search, check_rtol, default_rtol, minimize
from jko.schemes.minimizers.chart import Chart, Vector
from jko.schemes.minimizers.judge import judge
from jko.schemes.objective import Trial

__all__ = ["TrustNewton"]

_HAND_OVER = 1e-5
"""Below this residual Newton's method converges faster than the trust region can measure its progress."""
_NEAR = 0.1
"""Above this residual a guess says nothing about where the solution is."""
_WRAPS = 5
"""How often particles may be brought back from beyond the cut locus."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class TrustNewton(AbstractMinimizer):
    """SciPy's `trust-ncg` (Steihaug 1983) in tangent coordinates scaled by (tau / (w b))^(1/2), then MINRES-Newton.

    In these coordinates the transport term is |z|^2 / 2. The ratio test of the trust region drowns in rounding near
    1e-8, so the end game is Newton's method with MINRES (Paige and Saunders 1975), accepted on the residual.
    Tracers (w = 0) do not act on the others: they are solved after them, with the others fixed.

    Args:
        rtol: relative residual that counts as solved; None means 1e-8 in float64 and 1e-5 in float32.
        max_passes: passes over the pairs before it gives up.
    """

    rtol: float | None = None
    max_passes: int = field(default=2000, kw_only=True)

    def __post_init__(self) -> None:
        check_rtol(self.rtol)
        check_integer(self.max_passes, "max_passes", least=1)

    def tolerance(self, dtype: torch.dtype) -> float:
        return default_rtol(self.rtol, dtype)

    def init(self, search: Search, guess: Tensor | None, memory: Any) -> _Progress:
        if search.objective.groups > 1:
            return _Progress(search.origin, guess)
        start = search.origin if guess is None else search.evaluate(guess)
        return _Progress(start if start.finite else search.origin, guess)

    def step(self, search: Search, state: _Progress) -> bool:
        groups = search.objective.groups
        if groups > 1:
            return self._solve_group(search, state, groups)
        tracers = search.objective.movement.weights == 0
        state.trial = _solve(search, state.trial, ~tracers)
        if bool(tracers.any()):
            _solve(search, state.trial, tracers)
        return False

    def _solve_group(self, search: Search, state: _Progress, groups: int) -> bool:
        """Solve one group alone: a common trust region would be as small as the stiffest group needs.

        A group starts from the guess where that is near a solution. The last step is the trial of all groups.
        """
        g = len(state.solved)
        if g == groups:
            search.best = search.evaluate(torch.cat(state.solved))
            return False
        part, spent = search.objective.members([g]), 1.0
        start = near = part.evaluate(torch.zeros_like(search.origin.xi[g : g + 1]))
        if state.guess is not None:
            near, spent = part.evaluate(state.guess[g : g + 1]), 2.0
        if state.guess is not None and judge(part, near, start.objective)[0].ok:
            solution = near
        else:
            close = near.xi if near.residual < _NEAR and near is not start else None
            outcome = minimize(self, part, start, start.objective, close)
            spent += outcome.passes
            if not outcome.status.ok and near is not start:
                outcome = minimize(self, part, start, start.objective)
                spent += outcome.passes
            solution = outcome.trial
        state.solved.append(solution.xi)
        search.pay(spent)
        return True


@final
@dataclass(slots=True, eq=False)
class _Progress:
    """Where a search stands: the trial to go on from, or the groups that are solved."""

    trial: Trial
    guess: Tensor | None
    solved: list[Tensor] = field(default_factory=list)


def _solve(search: Search, start: Trial, moving: Tensor) -> Trial:
    """Move the particles marked in `moving`, first by the trust region, then by Newton steps."""
    for _ in range(_WRAPS):
        chart = Chart.at(search.objective, start, moving)
        if chart.residual(start) <= search.objective.rtol:
            break
        # Far from a minimizer squares overflow inside SciPy; a trial that comes of it is refused as not finite.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            start = _newton(search, chart, _trust_region(search, chart, start))
        shorter = _wrap(search, start)
        if shorter is None:
            break
        start = shorter
    return start


def _wrap(search: Search, trial: Trial) -> Trial | None:
    """The same points reached by the shorter way, where a particle went beyond the cut locus: a lower objective."""
    manifold, z = search.objective.manifold, search.objective.movement.base
    length = trial.xi.square().sum(-1)
    beyond = length > ((1 + 1e-9) * manifold.injectivity_radius) ** 2
    if not trial.finite or not bool(beyond.any()):
        return None
    xi = trial.xi.clone()
    xi[beyond] = manifold.log(z.expand_as(trial.points)[beyond], trial.points[beyond])
    search.best = search.evaluate(xi)
    return search.best


def _trust_region(search: Search, chart: Chart, start: Trial) -> Trial:
    from scipy.optimize import minimize

    step = search.objective
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
        return chart.value(trial), chart.gradient(step.stationarity(trial))

    def product(z: Vector, direction: Vector) -> Vector:
        return chart.gradient(search.hessian_product(trial_at(z), chart.tangent(direction)))

    z0 = chart.coordinates(start.xi)
    seen[z0.tobytes()] = start
    _, gradient = objective(z0)
    radius = max(float(np.linalg.norm(gradient)), 1e-300)
    if not 1e6 * radius < math.inf:
        return start
    options: dict[str, Any] = {
        "gtol": 0.1 * step.rtol * max(float(np.linalg.norm(gradient)), 1e-300),
        "initial_trust_radius": radius,
        "max_trust_radius": 1e6 * radius,
        "maxiter": 200,
    }

    def stop_when_near(z: Vector) -> None:
        if chart.residual(trial_at(z)) <= max(step.rtol, _HAND_OVER):
            raise StopIteration

    try:
        result = minimize(
            objective, z0, method="trust-ncg", jac=True, hessp=product, callback=stop_when_near, options=options
        )
    except ValueError:
        # SciPy refuses products that overflowed; the best trial so far stands and is judged.
        return search.best
    return trial_at(result.x)


def _newton(search: Search, chart: Chart, trial: Trial) -> Trial:
    from scipy.sparse.linalg import LinearOperator, minres

    step = search.objective
    for _ in range(20):
        if chart.residual(trial) <= step.rtol or not trial.finite:
            break
        right = -chart.gradient(step.stationarity(trial))
        if not math.isfinite(float(np.linalg.norm(right))):
            break
        current = trial

        def product(direction: Vector, current: Trial = current) -> Vector:
            return chart.gradient(search.hessian_product(current, chart.tangent(direction.ravel())))

        operator = LinearOperator((right.size, right.size), matvec=product, dtype=np.float64)
        try:
            change, _ = minres(operator, right, rtol=1e-3, maxiter=200)
        except ValueError:
            # SciPy refuses a product that overflowed; the trial stands as it is and is judged.
            break
        z = chart.coordinates(trial.xi)
        candidate = search.evaluate(chart.displacement(z + change))
        if not chart.residual(candidate) < chart.residual(trial):
            break
        trial = candidate
    return trial
