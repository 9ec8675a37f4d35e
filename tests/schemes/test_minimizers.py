"""Minimizers, the judge of their results, and the objective that they share."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import jko
from jko.errors import InvalidInput
from jko.schemes.minimizers import judge
from jko.schemes.objective import StepObjective, Trial
from jko.status import Status
from tests.schemes.problems import METRICS, SIGNS, attention, gap, minimized, objective_of, tokens

TAU = 0.1
D2 = jko.initial_heads(2, 3, 1) * 0.5
WEIGHTS = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1, 0.0], dtype=torch.float64)


def problem_of(
    metric: str, sign: int = 1, manifold: object = None, weights: Tensor | None = None, tau: float = TAU
) -> tuple[StepObjective, Trial]:
    return objective_of(attention(D2, metric, sign, manifold), jko.ParticleMeasure(tokens(6), weights), tau)


def tangent(problem: StepObjective, seed: int, size: float = 1.0) -> Tensor:
    groups = problem.groups
    noise = torch.randn(groups, 6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return size * problem.manifold.project_vector(problem.movement.base, noise)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("manifold", [jko.Sphere(), jko.Euclidean()], ids=["sphere", "euclidean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_and_curvature_of_the_objective(metric: str, sign: int, manifold: object, weighted: bool) -> None:
    problem, _ = problem_of(metric, sign, manifold, WEIGHTS if weighted else None)
    xi, eta, h = tangent(problem, 0, 0.4), tangent(problem, 1), 3e-4
    trial = problem.evaluate(xi)
    # The five-point quotient: error h^4, small rounding.
    nearby = {k: problem.evaluate(xi + k * h * eta) for k in (-2, -1, 1, 2)}
    factors = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
    slope = sum(f / h * torch.tensor(nearby[k].objective, dtype=torch.float64) for k, f in factors.items())
    field = problem.stationarity(trial)
    expected = (problem.movement.weights * (field * eta).sum(-1)).sum(-1)
    assert gap(slope, expected) < 1e-9 * (1 + float(expected.abs().max()))
    bend = sum(f / h * problem.stationarity(nearby[k]) for k, f in factors.items())
    assert gap(problem.hessian_product(trial, eta), bend) < 1e-9 * (1 + float(bend.abs().max()))
    # The Hessian is symmetric in the inner product of the weights.
    zeta = tangent(problem, 2)
    left, right = (
        (problem.movement.weights * (problem.hessian_product(trial, a) * b).sum(-1)).sum()
        for a, b in ((eta, zeta), (zeta, eta))
    )
    assert float((left - right).abs()) < 1e-12


@pytest.mark.parametrize("metric", METRICS)
def test_the_cost_of_a_trial_is_that_of_its_displacement(metric: str) -> None:
    objective, _ = problem_of(metric, weights=WEIGHTS)
    trial = objective.evaluate(tangent(objective, 3, 0.7))
    distance = objective.manifold.squared_distance(trial.points, objective.movement.base)
    expected = (WEIGHTS * objective.movement.mobility * distance).sum(-1)
    assert gap(expected, trial.cost) < 1e-14
    assert gap(expected / (2 * TAU) + torch.tensor(trial.energy, dtype=torch.float64), trial.objective) < 1e-14


@pytest.mark.parametrize("metric", METRICS)
def test_the_residual_is_the_relative_error_of_the_displacement(metric: str) -> None:
    problem, origin = problem_of(metric)
    assert origin.residual == 1
    solved = minimized(jko.Anderson(1e-13), replace(problem, rtol=1e-13), origin).trial
    assert solved.residual < 1e-13
    for size in (1e-3, 1e-6):
        off = problem.evaluate(solved.xi * (1 + size))
        assert 0.3 * size < off.residual < 3 * size
        assert off.mass_residual == off.residual
    assert gap(problem.fixed_point(solved), solved.xi) < 1e-12


def test_the_residual_sees_tracers() -> None:
    problem, origin = problem_of("weighted", weights=WEIGHTS)
    solved = minimized(jko.TrustNewton(1e-10), replace(problem, rtol=1e-10), origin).trial
    xi = solved.xi.clone()
    xi[:, 5] *= 1.01
    off = problem.evaluate(xi)
    assert off.mass_residual < 1e-9
    assert 3e-3 < off.residual < 3e-2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_trial_that_is_not_finite_has_an_infinite_residual(value: float) -> None:
    problem, origin = problem_of("weighted")
    xi = torch.zeros_like(origin.xi)
    xi[0, 2, 1] = value
    trial = problem.evaluate(xi)
    assert not trial.finite
    assert trial.residual == math.inf
    assert judge(problem, trial, origin.objective)[0] is Status.NON_FINITE


def test_judgements() -> None:
    problem, origin = problem_of("weighted")
    good = minimized(jko.Anderson(), problem, origin)
    assert good.status is Status.SUCCESS
    assert judge(problem, good.trial, origin.objective) == (Status.SUCCESS, "")
    status, detail = judge(problem, replace(good.trial, residual=1.1 * problem.rtol), origin.objective)
    assert status is Status.NOT_CONVERGED
    assert "above rtol" in detail
    rising = replace(good.trial, objective=[origin.objective[0] + 1e-12])
    status, detail = judge(problem, rising, origin.objective)
    assert status is Status.NO_DESCENT
    assert "rises by 1e-12" in detail
    level = replace(good.trial, objective=[origin.objective[0] * (1 + 1e-15)])
    assert judge(problem, level, origin.objective)[0] is Status.SUCCESS
    length = good.trial.xi.norm(dim=-1, keepdim=True)
    for radius, expected in ((3.1, Status.SUCCESS), (math.pi, Status.BEYOND_CUT_LOCUS), (3.6, Status.BEYOND_CUT_LOCUS)):
        far = replace(good.trial, xi=good.trial.xi / length * radius)
        assert judge(problem, far, origin.objective)[0] is expected
    flat, start = problem_of("weighted", manifold=jko.Euclidean())
    solved = minimized(jko.Anderson(), flat, start).trial
    assert judge(flat, replace(solved, xi=solved.xi * 1e3), start.objective)[0] is Status.SUCCESS


def test_every_head_has_to_descend() -> None:
    problem, origin = problem_of("headwise")
    good = minimized(jko.Anderson(), problem, origin).trial
    mixed = replace(good, objective=[origin.objective[0] + 1e-6, good.objective[1] - 1.0])
    assert judge(problem, mixed, origin.objective)[0] is Status.NO_DESCENT


@pytest.mark.parametrize("passes", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("kind", [jko.Anderson, jko.TrustNewton])
def test_the_limit_of_passes_holds(kind: type, passes: int) -> None:
    problem, origin = problem_of("weighted", -1, weights=WEIGHTS, tau=1.0)
    spent = []
    counting = replace(problem, energy=_Counting(problem.energy, spent))
    found = minimized(kind(1e-12, max_passes=passes), replace(counting, rtol=1e-12), origin)
    assert found.passes == len(spent) <= passes
    assert found.trial.residual <= origin.residual
    assert found.status in (Status.NOT_CONVERGED, Status.SUCCESS)


class _Counting:
    """An energy that counts its passes."""

    passes = 1.0

    def __init__(self, energy: jko.AttentionEnergy, spent: list[str]) -> None:
        self.energy, self.spent = energy, spent

    def evaluate(self, *arguments: object) -> object:
        self.spent.append("value")
        return self.energy.evaluate(*arguments)

    def hessian_product(self, *arguments: object) -> object:
        self.spent.append("product")
        return self.energy.hessian_product(*arguments)


@pytest.mark.parametrize("kind", [jko.Anderson, jko.TrustNewton])
def test_a_solved_start_costs_nothing(kind: type) -> None:
    for weights in (None, WEIGHTS):
        problem, origin = problem_of("w2", weights=weights)
        solved = minimized(jko.TrustNewton(1e-10), replace(problem, rtol=1e-10), origin).trial
        assert minimized(kind(), problem, solved).passes == 0
        assert minimized(kind(), problem, origin, solved.xi).passes == 1


@pytest.mark.parametrize("kind", [jko.Anderson, jko.TrustNewton])
def test_tolerances(kind: type) -> None:
    assert kind().tolerance(torch.float64) == 1e-8
    assert kind().tolerance(torch.float32) == 1e-5
    assert kind(1e-3).tolerance(torch.float32) == 1e-3
    for rtol in (0, -1e-8, 1, 2, math.nan, "x"):
        with pytest.raises(InvalidInput, match="rtol"):
            kind(rtol)
    for passes in (0, -1, 1.5, True):
        with pytest.raises(InvalidInput, match="max_passes"):
            kind(max_passes=passes)


@pytest.mark.parametrize("field", ["memory", "patience"])
def test_numbers_of_anderson(field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        jko.Anderson(**{field: 0})


@pytest.mark.parametrize("kind", [jko.Anderson, jko.TrustNewton])
def test_a_tight_tolerance_is_met(kind: type) -> None:
    for metric in METRICS:
        problem, origin = problem_of(metric)
        found = minimized(kind(1e-12), replace(problem, rtol=1e-12), origin)
        assert found.status is Status.SUCCESS
        assert found.trial.residual <= 1e-12


def test_the_two_minimizers_agree_on_large_steps_where_both_succeed() -> None:
    agreed = 0
    for seed in range(6):
        flow = attention(jko.initial_heads(1, 3, seed) * 0.5, "w2", 1)
        y = jko.ParticleMeasure(tokens(8, seed=seed))
        one = jko.JKO(0.3, minimizer=jko.Anderson(1e-10), fallback=None).step(flow, y)
        two = jko.JKO(0.3, minimizer=jko.TrustNewton(1e-10), fallback=None).step(flow, y)
        assert two.info.status.ok
        if one.info.status.ok:
            assert gap(one.measure.points, two.measure.points) < 1e-7
            agreed += 1
    assert agreed >= 3
