"""Exact transport: closed forms, duality, statuses of the network simplex."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transport.problems import MANIFOLDS, case, cloud, generator, line, mobility, weights

import jko
from jko.errors import InvalidInput
from jko.manifolds import AbstractManifold
from jko.transport import Coupling, ExactOT, TransportProblem, squared_wasserstein
from jko.transport.network import is_assignment

LINE = jko.Euclidean()


def solved(problem, member=None):
    solution = (ExactOT() if member is None else member).solve(problem)
    assert solution.status is jko.Status.SUCCESS, solution.detail
    return solution


def between(x, y, x_weights=None, y_weights=None, manifold: AbstractManifold = LINE, b=None) -> TransportProblem:
    return TransportProblem(jko.ParticleMeasure(y, y_weights), jko.ParticleMeasure(x, x_weights), manifold, mobility=b)


def check_optimal(solution, tolerance: float = 1e-12) -> None:
    """A plan with these marginals and potentials that are feasible and equal to the cost on it: nothing is cheaper."""
    problem, plan = solution.problem, solution.plan()
    cost = problem.cost().matrix()
    slack = cost - solution.source_potential[:, None] - solution.target_potential
    scale = tolerance * float(cost.max())
    assert float(slack.min()) >= -scale
    assert float((slack * (plan > 0)).max()) <= scale
    assert float(plan.min()) >= 0
    assert torch.allclose(plan.sum(1), problem.source.weights, atol=1e-13)
    assert torch.allclose(plan.sum(0), problem.target.weights, atol=1e-13)


@settings(max_examples=40, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 9),
    m=st.integers(1, 9),
    equal=st.booleans(),
    manifold=st.sampled_from(sorted(MANIFOLDS)),
)
def test_duality_proves_every_plan(seed, n, m, equal, manifold):
    m = n if equal else m
    one = case(manifold, n=n, m=m, seed=seed)
    b = mobility(one.y)
    weighting = (None, None) if equal else (one.w, one.a)
    problem = between(one.x, one.y, *weighting, one.manifold, b)
    solution = solved(problem)
    check_optimal(solution)
    assert solution.marginal_error < 1e-13
    a, w = problem.source.weights, problem.target.weights
    plan = ot.emd(a.numpy(), w.numpy(), problem.cost().matrix().numpy())
    assert solution.value == pytest.approx(float((plan * problem.cost().matrix().numpy()).sum()), abs=1e-12)
    dual = float(a @ solution.source_potential + w @ solution.target_potential)
    assert dual == pytest.approx(solution.value, abs=1e-11)


def test_the_check_of_optimality_can_fail():
    solution = solved(between(line(0, 1, 5), line(0.1, 1.2, 4)))
    check_optimal(solution)
    rotated = dataclasses.replace(solution.coupling, columns=solution.coupling.columns.roll(1))
    with pytest.raises(AssertionError):
        check_optimal(dataclasses.replace(solution, coupling=rotated))
    with pytest.raises(AssertionError):
        check_optimal(dataclasses.replace(solution, target_potential=solution.target_potential + 0.1))
    with pytest.raises(AssertionError):
        check_optimal(dataclasses.replace(solution, target_potential=solution.target_potential - 0.1))


@settings(max_examples=30, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 20), m=st.integers(1, 20))
def test_on_the_line_quantiles_are_matched(seed, n, m):
    x, y = cloud(m, seed, d=1), cloud(n, seed + 1, d=1)
    w, a = weights(m, seed), weights(n, seed + 1)
    (xs, i), (ys, j) = x[:, 0].sort(), y[:, 0].sort()
    ends = torch.cat([w[i].cumsum(0), a[j].cumsum(0)]).sort().values.clamp(max=1.0)
    pieces = ends.diff(prepend=torch.zeros(1, dtype=torch.float64))
    middle = ends - pieces / 2
    moves = [
        values[torch.searchsorted(masses.cumsum(0), middle).clamp(max=values.shape[0] - 1)]
        for values, masses in ((xs, w[i]), (ys, a[j]))
    ]
    expected = float(pieces @ (moves[0] - moves[1]).square())
    assert solved(between(x, y, w, a)).value == pytest.approx(expected, abs=1e-10)


@settings(max_examples=20, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 30))
def test_rotations_of_the_circle(seed, n):
    """For the geodesic cost the best coupling of n points on the circle is one of the n cyclic shifts."""
    angles = [torch.rand(n, generator=generator(seed + k), dtype=torch.float64).mul(2 * math.pi) for k in (0, 1)]
    s, t = (angle.sort().values for angle in angles)

    def gap(shift: int) -> float:
        difference = (s - t.roll(shift) + math.pi) % (2 * math.pi) - math.pi
        return float(difference.square().mean())

    x, y = (torch.stack([angle.cos(), angle.sin()], 1) for angle in angles)
    assert solved(between(x, y, manifold=jko.Sphere())).value == pytest.approx(min(map(gap, range(n))), abs=1e-12)
    grid = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    alpha = 0.8 * math.pi / n
    start, end = (torch.stack([angle.cos(), angle.sin()], 1) for angle in (grid, grid + alpha))
    turned = solved(between(end, start, manifold=jko.Sphere()))
    assert turned.value == pytest.approx(alpha**2, rel=1e-12)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_gradients_of_convex_functions_give_the_bures_distance(d):
    """Points under x = A y + c with A positive definite: the identity is optimal, and moments give the value."""
    y = cloud(60, 0, d=d)
    root = torch.randn(d, d, generator=generator(1), dtype=torch.float64)
    A = root @ root.mT + 0.1 * torch.eye(d, dtype=torch.float64)
    c = torch.arange(1.0, d + 1, dtype=torch.float64)
    x = y @ A + c
    order = torch.randperm(60, generator=generator(2))
    solution = solved(between(x[order], y))
    assert torch.equal(solution.coupling.columns, order.argsort())

    def moments(points):
        return points.mean(0), torch.cov(points.mT, correction=0).reshape(d, d)

    def square_root(matrix):
        values, vectors = torch.linalg.eigh(matrix)
        return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT

    (mean_y, S), (mean_x, T) = moments(y), moments(x)
    R = square_root(S)
    bures = (mean_x - mean_y).square().sum() + torch.trace(S + T - 2 * square_root(R @ T @ R))
    assert solution.value == pytest.approx(float(bures), rel=1e-10)


def test_planted_permutations_and_translations():
    y = cloud(50, 3)
    order = torch.randperm(50, generator=generator(4))
    shift = torch.tensor([3.0, -2.0, 5.0], dtype=torch.float64)
    moved = solved(between(y[order] + shift, y))
    assert moved.value == pytest.approx(float(shift.square().sum()), rel=1e-13)
    assert torch.equal(moved.coupling.columns, order.argsort())
    assert torch.allclose(moved.gradient, 2 * shift.expand(50, 3), atol=1e-12)


@settings(max_examples=20, derandomize=True)
@given(seed=st.integers(0, 10**6), manifold=st.sampled_from(sorted(MANIFOLDS)))
def test_triangle_inequality(seed, manifold):
    clouds = [cloud(k, seed + k, manifold) for k in (3, 5, 6)]
    masses = [weights(k, seed + k) for k in (3, 5, 6)]

    def distance(i, j):
        value = solved(between(clouds[i], clouds[j], masses[i], masses[j], MANIFOLDS[manifold])).value
        return math.sqrt(max(value, 0.0))

    assert distance(0, 2) <= distance(0, 1) + distance(1, 2) + 1e-12


def test_field_report_h01_single_precision_weights_and_unequal_sizes():
    points = torch.arange(5.0)[:, None]
    fifth = jko.ParticleMeasure(points, torch.full((5,), 0.2))
    moved = jko.ParticleMeasure(points.double() + 0.5, [0.2] * 5)
    with pytest.raises(InvalidInput, match=r"convert one with \.to\(\)"):
        TransportProblem(fifth, moved, LINE)
    for member in (ExactOT(), ExactOT(1000)):
        value = solved(TransportProblem(fifth.to(torch.float64), moved, LINE), member).value
        assert value == pytest.approx(0.25, abs=1e-6)
        value = solved(TransportProblem(fifth, moved.to(torch.float32), LINE), member).value
        assert value == pytest.approx(0.25, abs=1e-6)
    uneven = torch.rand(200, generator=generator(0)) + 0.01
    single = jko.ParticleMeasure(torch.rand(200, 2, generator=generator(1)), uneven / uneven.sum())
    other = jko.ParticleMeasure(torch.rand(150, 2, generator=generator(2)))
    assert solved(TransportProblem(single, other, LINE)).marginal_error < 1e-12
    few, many = (jko.ParticleMeasure(torch.rand(n, 2, generator=generator(n), dtype=torch.float64)) for n in (5, 960))
    solution = solved(TransportProblem(few, many, LINE))
    assert float(solution.plan().sum()) == pytest.approx(1, abs=1e-9)
    assert solution.value > 0.01


def test_field_report_h02_a_plan_that_is_not_finished_is_no_answer():
    draw = np.random.default_rng(0)
    y, x = draw.standard_normal((400, 2)), draw.standard_normal((400, 2)) + 1
    problem = between(x, y)
    assert solved(problem).value == pytest.approx(2.216165, abs=5e-7)
    assert solved(problem, ExactOT(10**6)).value == pytest.approx(2.216165, abs=5e-7)
    failed = ExactOT(max_pivots=10).solve(problem)
    assert failed.status is jko.Status.NOT_CONVERGED
    assert math.isnan(failed.value)
    assert bool(failed.gradient.isnan().all())
    assert failed.coupling is None
    assert failed.marginal_error > 1
    assert "400 sources and 400 targets: numItermax reached" in failed.detail
    with pytest.raises(InvalidInput, match="no plan: the transport ended with NOT_CONVERGED"):
        failed.plan()


def test_a_cost_that_overflows_is_a_status():
    failed = ExactOT().solve(between(line(-1e200, 0), line(1e200, 1)))
    assert failed.status is jko.Status.NON_FINITE
    assert math.isnan(failed.value)


def test_both_solvers_agree_with_each_other_and_with_the_distance():
    one = case("sphere", n=40, m=40)
    problem = between(one.x, one.y, manifold=one.manifold)
    values = [solved(problem, member).value for member in (ExactOT(), ExactOT(10**6))]
    assert values[0] == pytest.approx(values[1], rel=1e-13)
    assert values[0] == pytest.approx(squared_wasserstein(problem.source, problem.target, one.manifold), rel=1e-13)
    for member in (ExactOT(), ExactOT(10**6)):
        check_optimal(solved(problem, member))


@pytest.mark.parametrize("bad", [0, -1, 2.5, "many"])
def test_limits_are_whole_and_positive(bad):
    with pytest.raises(InvalidInput, match="max_pivots"):
        ExactOT(bad)


def test_couplings():
    w = torch.tensor([0.25, 0.0, 0.75])
    coupling = Coupling.identity(w)
    assert coupling.rows.tolist() == coupling.columns.tolist() == [0, 2]
    assert coupling.masses.dtype == torch.float64
    assert torch.equal(coupling.dense(3, 3), torch.diag(w.double()))
    twice = Coupling(torch.tensor([0, 0]), torch.tensor([1, 1]), torch.tensor([0.25, 0.5], dtype=torch.float64))
    assert twice.dense(1, 2).tolist() == [[0.0, 0.75]]


def test_the_solver_is_chosen_by_what_is_faster():
    a = np.full(100, 0.01)
    near, far = (np.abs(np.arange(100) - shift * np.arange(100)[:, None]).astype(float) for shift in (1, -1))
    assert is_assignment(near, a, a)
    assert not is_assignment(far, a, a)
    assert is_assignment(far[:10, :10], np.full(10, 0.1), np.full(10, 0.1))
    assert not is_assignment(near, a, np.linspace(0, 0.02, 100))
    y = cloud(100, 0)
    for x in (y + 0.01 * cloud(100, 1), cloud(100, 1)):
        check_optimal(solved(between(x, y)))
