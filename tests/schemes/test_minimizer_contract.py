"""What every minimizer has to keep, whichever it is: a row here, and the contract is tested for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import pytest
import torch
from torch import Tensor

import jko
from jko.schemes.minimizers import AbstractMinimizer
from jko.schemes.minimizers.base import Search
from jko.status import Status
from tests.schemes.problems import METRICS, SIGNS, attention, gap, minimized, objective_of, tokens

D2 = jko.initial_heads(2, 3, 1) * 0.5
WEIGHTS = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1, 0.0], dtype=torch.float64)


@final
@dataclass(frozen=True)
class Picard(AbstractMinimizer):
    """The plain fixed point, what a newcomer would write first: the contract holds for it as for the others."""

    max_passes: int = 200

    def tolerance(self, dtype: torch.dtype) -> float:
        return 1e-8

    def init(self, search: Search, guess: Tensor | None, memory: Any) -> list[Any]:
        return [search.origin if guess is None else search.evaluate(guess)]

    def step(self, search: Search, state: list[Any]) -> bool:
        if state[0].residual <= search.objective.rtol:
            return False
        state[0] = search.evaluate(search.objective.fixed_point(state[0]))
        return True


# The minimizer, and the relative residual that it is asked for.
MINIMIZERS: dict[str, tuple[AbstractMinimizer, float]] = {
    "Anderson": (jko.Anderson(), 1e-8),
    "Anderson without blocks": (jko.Anderson(newton=False, carry=0), 1e-8),
    "TrustNewton": (jko.TrustNewton(), 1e-8),
    "LBFGS": (jko.TorchOptimizer(torch.optim.LBFGS, lr=1.0), 1e-6),
    "SGD": (jko.TorchOptimizer(torch.optim.SGD, lr=1.0), 1e-6),
    "Picard": (Picard(), 1e-8),
}
every_minimizer = pytest.mark.parametrize("name", MINIMIZERS)


@every_minimizer
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "tracer"])
def test_the_solution_is_the_same_for_all(name: str, metric: str, sign: int, weights: Tensor | None) -> None:
    minimizer, rtol = MINIMIZERS[name]
    flow, measure = attention(D2, metric, sign), jko.ParticleMeasure(tokens(6), weights)
    objective, origin = objective_of(flow, measure, 0.05, rtol, curvature=True)
    outcome = minimized(minimizer, objective, origin)
    assert outcome.status is Status.SUCCESS, outcome.detail
    assert outcome.trial.residual <= rtol
    exact, start = objective_of(flow, measure, 0.05, 1e-11)
    best = minimized(jko.TrustNewton(1e-11), exact, start).trial
    assert gap(outcome.trial.xi, best.xi) < 10 * rtol * float(best.xi.abs().max())
    # Every number of the trial belongs to its own displacement.
    again = objective.evaluate(outcome.trial.xi)
    assert gap(again.pull, outcome.trial.pull) < 1e-13
    assert again.objective == pytest.approx(outcome.trial.objective, rel=1e-13)


@every_minimizer
@pytest.mark.parametrize("metric", METRICS)
def test_every_pass_is_counted(name: str, metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    minimizer, rtol = MINIMIZERS[name]
    flow = attention(D2, metric)
    objective, origin = objective_of(flow, jko.ParticleMeasure(tokens(6)), 0.05, rtol)
    work: list[float] = []
    for kind in (jko.AttentionEnergy, type(flow.energy.by_head())):
        for method in ("evaluate", "hessian_product"):
            original = getattr(kind, method)

            def count(self, *arguments: object, original=original, **more: object) -> object:
                work.append(getattr(self, "attention", self).heads.num_heads / len(D2))
                return original(self, *arguments, **more)

            monkeypatch.setattr(kind, method, count)
    assert minimized(minimizer, objective, origin).passes == sum(work) > 0


@every_minimizer
def test_a_solved_start_is_kept(name: str) -> None:
    minimizer, rtol = MINIMIZERS[name]
    objective, origin = objective_of(attention(D2), jko.ParticleMeasure(tokens(6)), 0.05, rtol)
    tight = objective_of(attention(D2), jko.ParticleMeasure(tokens(6)), 0.05, 1e-10)
    solved = minimized(jko.TrustNewton(1e-10), *tight)
    outcome = minimized(minimizer, objective, origin, solved.trial.xi)
    assert outcome.status is Status.SUCCESS
    assert outcome.passes == 1
    assert gap(outcome.trial.xi, solved.trial.xi) < 1e-15


@every_minimizer
def test_a_start_that_is_not_finite_passes_for_no_solution(name: str) -> None:
    minimizer, rtol = MINIMIZERS[name]
    objective, origin = objective_of(attention(D2), jko.ParticleMeasure(tokens(6)), 0.05, rtol)
    guess = torch.full_like(origin.xi, torch.nan)
    outcome = minimized(minimizer, objective, origin, guess)
    assert outcome.status.ok == outcome.trial.finite
    assert outcome.status in (Status.SUCCESS, Status.NON_FINITE)


@every_minimizer
def test_a_whole_flow_is_followed(name: str) -> None:
    minimizer, rtol = MINIMIZERS[name]
    flow, start = attention(D2), jko.ParticleMeasure(tokens(6))
    scheme = jko.JKO(0.05, minimizer=minimizer, fallback=None)
    run = jko.solve(flow, start, scheme, t1=0.2)
    best = jko.solve(flow, start, jko.JKO(0.05, minimizer=jko.TrustNewton(1e-11)), t1=0.2)
    assert gap(run.points[-1], best.points[-1]) < 100 * rtol
    assert bool((run.records.residual <= rtol).all())
