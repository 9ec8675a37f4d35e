"""Entropic transport against closed forms, POT and the laws in eps; statuses and warm starts."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transport.problems import COSTS, MANIFOLDS, case, cloud, generator, line, weights

import jko
from jko.errors import InvalidInput
from jko.manifolds import AbstractManifold
from jko.transport import ExactOT, Sinkhorn, TransportProblem

LINE = jko.Euclidean()


def solved(member, problem, start=None):
    solution = member.solve(problem, start)
    assert solution.status is jko.Status.SUCCESS, solution.detail
    assert solution.marginal_error <= member.tolerance
    return solution


def between(x, y, x_weights=None, y_weights=None, manifold: AbstractManifold = LINE) -> TransportProblem:
    return TransportProblem(jko.ParticleMeasure(y, y_weights), jko.ParticleMeasure(x, x_weights), manifold)


def plain(eps, **more) -> Sinkhorn:
    return Sinkhorn(eps, debias=False, **more)


def normal_grid(*deviations: float, step: float = 0.2, reach: float = 7.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and weights of a normal law on a grid: sums over it are integrals to 1e-12."""
    axis = torch.arange(-reach, reach + step / 2, step, dtype=torch.float64)
    points = torch.cartesian_prod(*[axis] * len(deviations)).reshape(-1, len(deviations))
    density = torch.exp(-points.square().sum(1) / 2)
    return points * torch.tensor(deviations, dtype=torch.float64), density / density.sum()


def gaussian_cost(A: np.ndarray, B: np.ndarray, gap: float, eps: float) -> float:
    """OT_eps between normal laws (Janati et al. 2020, Theorem 1, with 2 sigma^2 = eps)."""
    from scipy.linalg import sqrtm

    s2, d = eps / 2, A.shape[0]
    root = np.real(sqrtm(A))
    D = np.real(sqrtm(4 * root @ B @ root + s2**2 * np.eye(d)))
    return float(
        gap + np.trace(A + B - D) + d * s2 * (1 - math.log(2 * s2)) + s2 * math.log(np.linalg.det(D + s2 * np.eye(d)))
    )


@pytest.mark.parametrize("eps", [0.3, 1.0, 5.0])
def test_normal_laws_on_the_line(eps):
    (y, a), (x, w) = normal_grid(1.0), normal_grid(0.6)
    problem = between(x + 2, y, w, a)
    A, B, none = np.array([[1.0]]), np.array([[0.36]]), 0.0
    cross = gaussian_cost(A, B, 4.0, eps)
    assert solved(plain(eps), problem).value == pytest.approx(cross, abs=1e-9)
    expected = cross - (gaussian_cost(A, A, none, eps) + gaussian_cost(B, B, none, eps)) / 2
    assert solved(Sinkhorn(eps), problem).value == pytest.approx(expected, abs=1e-9)


def test_normal_laws_in_the_plane_and_the_bures_distance():
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=torch.float64)
    (y, a), (x, w) = normal_grid(1.0, 0.5, step=0.5, reach=6.0), normal_grid(0.8, 1.2, step=0.5, reach=6.0)
    x = x @ turn.mT
    A = np.diag([1.0, 0.25])
    B = (turn @ torch.diag(torch.tensor([0.64, 1.44], dtype=torch.float64)) @ turn.mT).numpy()
    expected = gaussian_cost(A, B, 0.0, 2.0) - (gaussian_cost(A, A, 0.0, 2.0) + gaussian_cost(B, B, 0.0, 2.0)) / 2
    assert solved(Sinkhorn(2.0, tolerance=1e-7), between(x, y, w, a)).value == pytest.approx(expected, abs=1e-6)
    root = np.diag([1.0, 0.5])
    bures = np.trace(A + B) - 2 * np.sqrt(np.linalg.eigvalsh(root @ B @ root)).sum()
    small = gaussian_cost(A, B, 0.0, 1e-4) - (gaussian_cost(A, A, 0.0, 1e-4) + gaussian_cost(B, B, 0.0, 1e-4)) / 2
    assert small == pytest.approx(bures, abs=1e-6)


@pytest.mark.parametrize("eps", [0.2, 1.0])
def test_the_plain_term_is_minimal_at_a_smaller_variance(eps):
    """The laws of eps: the minimum over normal laws has variance s^2 - eps / 2, and 0 for eps >= 2 s^2."""
    s = 0.8
    y, a = normal_grid(s)
    x = y * math.sqrt(1 - eps / (2 * s**2))
    solution = solved(plain(eps), between(x, y, a, a))
    field = (a[:, None] * solution.gradient).abs()
    assert float(field.max()) < 1e-9
    for factor in (0.95, 1.05):
        assert solved(plain(eps), between(factor * x, y, a, a)).value > solution.value + 1e-6
    collapsed = solved(plain(2.5 * s**2), between(torch.zeros(1, 1, dtype=torch.float64), y, None, a))
    spread = solved(plain(2.5 * s**2), between(0.1 * y, y, a, a))
    assert spread.value > collapsed.value


@pytest.mark.parametrize("eps", [0.5, 2.0])
def test_curvature_of_the_debiased_term_between_normal_laws(eps):
    """S_eps(N(s), N(s + h)) = h^2 / sqrt(1 + (eps / 4 s^2)^2) to second order, the metric of the S_eps flow."""
    s, h = 0.9, 1e-3
    y, a = normal_grid(s)
    slopes = []
    for sign in (1, -1):
        x = y * (1 + sign * h / s)
        slopes.append(float((a[:, None] * solved(Sinkhorn(eps), between(x, y, a, a)).gradient * y / s).sum()))
    assert (slopes[0] - slopes[1]) / (2 * h) == pytest.approx(2 / math.sqrt(1 + (eps / (4 * s**2)) ** 2), rel=1e-5)


@pytest.mark.parametrize("eps", [0.1, 1.0, 10.0])
def test_two_points_against_two(eps):
    """(p / (1/2 - p))^2 = K_11 K_22 / (K_12 K_21) for the plan ((p, 1/2 - p), (1/2 - p, p))."""
    x, y = torch.tensor([[0.0, 1.0], [2.0, 0.5]], dtype=torch.float64), cloud(2, 1, d=2)
    problem = between(x, y)
    C = problem.cost().matrix()
    odds = math.exp(float(C[0, 1] + C[1, 0] - C[0, 0] - C[1, 1]) / (2 * eps))
    p = 0.5 * odds / (1 + odds)
    plan = torch.tensor([[p, 0.5 - p], [0.5 - p, p]], dtype=torch.float64)
    entropy = float(torch.xlogy(plan, 4 * plan).sum())
    solution = solved(plain(eps), problem)
    assert torch.allclose(solution.plan(), plan, atol=1e-10)
    assert solution.value == pytest.approx(float((plan * C).sum()) + eps * entropy, rel=1e-12)


@pytest.mark.parametrize("kind", COSTS[:3])
def test_one_point_has_one_plan(kind):
    for n, m in ((1, 6), (6, 1)):
        problem = case("sphere", kind, n=n, m=m).problem()
        a, w = problem.source.weights, problem.target.weights
        expected = float(a @ problem.cost().matrix() @ w)
        assert solved(plain(0.3), problem).value == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("manifold", MANIFOLDS)
@pytest.mark.parametrize("eps", [0.05, 1.0])
def test_against_pot(manifold, eps):
    problem = case(manifold, "one-sided", n=12, m=9).problem()
    a, w, C = (part.numpy() for part in (problem.source.weights, problem.target.weights, problem.cost().matrix()))
    plan, log = ot.bregman.sinkhorn_log(a, w, C, eps, numItermax=100_000, stopThr=1e-13, log=True)
    solution = solved(plain(eps), problem)
    assert np.allclose(solution.plan().numpy(), plan, atol=1e-9)
    expected = (plan * C).sum() + eps * (plan * np.log(plan / np.outer(a, w))).sum()
    assert solution.value == pytest.approx(expected, abs=1e-9)
    for ours, theirs, mass in (
        (solution.source_potential, log["log_u"], a),
        (solution.target_potential, log["log_v"], w),
    ):
        shifted = eps * (theirs - np.log(mass))
        difference = ours.numpy() - shifted
        assert np.ptp(difference) < 1e-7


@settings(max_examples=20, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 8), m=st.integers(1, 8))
def test_laws_in_eps(seed, n, m):
    """<P, C> and OT_eps grow with eps, from the exact cost to that of the product; S_eps is never negative."""
    problem = case("sphere", n=n, m=m, seed=seed).problem()
    C = problem.cost().matrix()
    exact = ExactOT().solve(problem).value
    product = float(problem.source.weights @ C @ problem.target.weights)
    costs, values = [exact], [exact]
    for eps in (0.03, 0.3, 3.0):
        solution = solved(plain(eps), problem)
        costs.append(float((solution.plan() * C).sum()))
        values.append(solution.value)
        assert solved(Sinkhorn(eps), problem).value >= -1e-12
    for sequence in ([*costs, product], [*values, product]):
        assert all(one <= other + 1e-9 for one, other in pairwise(sequence))


@pytest.mark.parametrize("kind", ["plain", "symmetric", "moving"])
@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_nothing_is_left_at_rest(manifold, kind):
    """S(u, u) = 0 with gradient 0: for the same cloud, a permuted one, and one whose particles are split."""
    one = case(manifold, kind, n=20, m=20)
    x, w = one.x, one.w
    order = torch.randperm(20, generator=generator(0))
    halves = torch.cat([w[:1] / 2, w[:1] / 2, w[1:]])
    for points, masses in ((x, w), (x[order], w[order]), (x[[0, *range(20)]], halves)):
        there = case(manifold, kind, n=20, m=points.shape[0])
        problem = type(there)(x, points, w, masses, there.manifold, kind).problem()
        solution = solved(Sinkhorn(0.1), problem)
        assert abs(solution.value) < 1e-12
        assert float(solution.gradient.abs().max()) < 1e-8
        assert float((masses * solution.weight_gradient.abs()).max()) < 1e-9
    same = type(there)(x, x, w, w, there.manifold, kind).problem()
    solution = solved(Sinkhorn(0.1), same)
    assert solution.value == 0
    assert torch.equal(solution.gradient, torch.zeros_like(x))
    assert float(solved(plain(0.1), same).gradient.abs().max()) > 1e-3


def test_a_mobility_that_varies_can_make_the_debiased_value_negative():
    """Two particles at -1, 1 with b = 1 and one at 0 with b = 0.01: (b(x) + b(y)) / 2 d^2 is no kernel at large eps."""
    y, x = jko.ParticleMeasure(line(0)), jko.ParticleMeasure(line(-1, 1))
    b, c = torch.tensor([0.01], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    problem = TransportProblem(y, x, LINE, mobility=b, target_mobility=c)
    assert solved(Sinkhorn(100.0), problem).value == pytest.approx(0.505 - 1, abs=0.02)
    assert solved(Sinkhorn(0.1), problem).value > 0


@pytest.mark.parametrize("eps", [0.5, 1.0, 2.0, 4.0])
def test_field_report_h07_only_the_plain_term_pulls_at_rest(eps):
    problem = between(line(-1, 1), line(-1, 1))
    pull = 2 * (1 - math.tanh(2 / eps))
    assert solved(plain(eps), problem).gradient[:, 0].tolist() == pytest.approx([-pull, pull])
    assert solved(Sinkhorn(eps), problem).gradient[:, 0].tolist() == [0, 0]
    moved = solved(Sinkhorn(eps), between(line(-0.99, 0.99), line(-1, 1)))
    assert moved.value > 0
    assert moved.gradient[0, 0] > 0 > moved.gradient[1, 0]


@pytest.mark.parametrize(
    ("eps", "chord", "arc"),
    [(0.1, 0.117023, None), (1e-2, 0.0893270, 0.09), (1e-3, 0.0893270, 0.09), (1e-4, 0.0893270, 0.09)],
)
def test_field_report_h06_tiny_eps(eps, chord, arc, dtype):
    """Eight points of the circle against the same rotated by 0.3 rad."""
    angles = torch.arange(8, dtype=torch.float64) * math.pi / 4

    def circle(t):
        return torch.stack([t.cos(), t.sin()], 1).to(dtype)

    for manifold, expected in ((LINE, chord), (jko.Sphere(), arc)):
        problem = between(circle(angles + 0.3), circle(angles), manifold=manifold)
        solution = solved(plain(eps), problem)
        cost = float((solution.plan() * problem.cost().matrix()).sum())
        assert expected is None or cost == pytest.approx(expected, abs=2e-6)
        assert bool(torch.isfinite(solution.gradient).all())


@settings(max_examples=15, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 25),
    m=st.integers(1, 25),
    power=st.floats(-5, 1),
    spread=st.floats(0, 4),
    manifold=st.sampled_from(sorted(MANIFOLDS)),
)
def test_every_problem_of_moderate_size_is_solved(seed, n, m, power, spread, manifold):
    """Down to eps = 1e-5 of the largest cost, whatever the weights are."""
    one = case(manifold, n=n, m=m, seed=seed)
    a, w = (
        torch.softmax(spread * torch.randn(k, generator=generator(seed + k), dtype=torch.float64), 0) for k in (n, m)
    )
    problem = between(one.x, one.y, w, a, one.manifold)
    eps = 10**power * float(problem.cost().matrix().max())
    solution = solved(plain(eps), problem)
    plan = solution.plan()
    assert float((plan.sum(1) - a).abs().sum() + (plan.sum(0) - w).abs().sum()) < 1e-8
    exact = ExactOT().solve(problem).value
    assert exact - 1e-9 <= solution.value <= exact + eps * math.log(min(1 / float(w.min()), 1 / float(a.min()))) + 1e-9


@pytest.mark.parametrize("debias", [True, False])
def test_warm_starts_change_the_work_and_not_the_result(debias):
    one = case("sphere", "moving", n=40, m=30)
    member = Sinkhorn(0.02, debias=debias)
    first = solved(member, one.problem())
    noise = torch.randn(30, 3, generator=generator(0), dtype=torch.float64)
    x = one.manifold.exp(one.x, 1e-3 * one.manifold.project_vector(one.x, noise))
    problem = one.problem(x)
    cold, warm = solved(member, problem), solved(member, problem, first)
    assert warm.iterations < cold.iterations / 2
    assert warm.value == pytest.approx(cold.value, abs=1e-12)
    assert torch.allclose(warm.gradient, cold.gradient, atol=1e-7)
    # What does not fit is no start, and a bad start does no harm.
    other = solved(member, case("sphere", "moving", n=40, m=29).problem())
    failed = Sinkhorn(0.02, debias=debias, max_iterations=1).solve(problem)
    far = solved(member, case("sphere", "moving", n=40, m=30, seed=50).problem())
    for start in (other, failed, far):
        assert solved(member, problem, start).value == pytest.approx(cold.value, abs=1e-12)


def test_the_source_is_solved_once_in_a_step():
    problem = case(n=30, m=20).problem()
    first = solved(Sinkhorn(0.1), problem)
    again = solved(Sinkhorn(0.1), case(n=30, m=20).problem(), first)
    assert again.self_transports[0] is not first.self_transports[0]
    moved = TransportProblem(problem.source, problem.target.moved(problem.target.points + 0.01), problem.manifold)
    assert solved(Sinkhorn(0.1), moved, first).self_transports[0] is first.self_transports[0]
    assert solved(Sinkhorn(0.2), moved, first).self_transports[0] is not first.self_transports[0]


def test_failures_say_how_far_they_came():
    problem = case(n=30, m=20).problem()
    failed = plain(1e-3, max_iterations=3).solve(problem)
    assert failed.status is jko.Status.NOT_CONVERGED
    assert not failed.status.ok
    assert math.isnan(failed.value)
    assert bool(failed.gradient.isnan().all())
    assert failed.source_potential is None
    assert failed.iterations <= 5
    assert "max_iterations = 3" in failed.detail
    late = plain(1e-2, max_iterations=12).solve(problem)
    assert late.status is jko.Status.NOT_CONVERGED
    with pytest.raises(InvalidInput, match="no plan"):
        late.plan()
    selves = Sinkhorn(10.0, max_iterations=6).solve(problem)
    assert selves.status is jko.Status.NOT_CONVERGED
    assert selves.marginal_error > 1e-10
    overflow = plain(1.0).solve(between(line(-1e200, 0), line(1e200, 1)))
    assert overflow.status is jko.Status.NON_FINITE
    assert "not finite" in overflow.detail


def test_potentials_that_do_not_resolve_eps_are_a_failure():
    y = line(0, 1, 3)
    solution = plain(1e-12).solve(between(1e3 * y + 7, y))
    assert solution.status is jko.Status.NOT_CONVERGED
    assert "raise eps" in solution.detail


def test_the_first_potentials_count_where_hardly_anything_moves():
    """Field report H12 (c): clusters 1e8 apart, whose potentials would lose their digits on the way down."""
    y = line(0, 1, 1e8)
    assert solved(plain(1e-4), between(y + 0.1, y)).value == pytest.approx(0.01 + 1e-4 * math.log(3), rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"eps": 0.0}, "eps must be positive"),
        ({"eps": math.nan}, "eps must be positive and finite"),
        ({"eps": 1.0, "scaling": 1.0}, "scaling must lie strictly between 0 and 1, got 1.0; 1 would never arrive"),
        ({"eps": 1.0, "scaling": -0.5}, "scaling must be positive"),
        ({"eps": 1.0, "tolerance": 0.0}, "tolerance must be positive"),
        ({"eps": 1.0, "max_iterations": 0}, "max_iterations must be at least 1"),
        ({"eps": 1.0, "keops": True, "lazy": False}, "lazy=False forbids"),
    ],
)
def test_field_report_h08_arguments_out_of_range(arguments, match):
    with pytest.raises(InvalidInput, match=match):
        Sinkhorn(**arguments)


def test_debiasing_needs_a_symmetric_cost():
    problem = case(kind="one-sided").problem()
    with pytest.raises(InvalidInput, match=r"give target_mobility too.*or take Sinkhorn\(eps, debias=False\)"):
        Sinkhorn(0.1).solve(problem)
    assert solved(plain(0.1), problem).value > 0


def test_dead_particles_on_both_sides_of_a_larger_problem():
    one = case("sphere", "moving", n=15, m=12)
    a, w = one.a.clone(), one.w.clone()
    a[[0, 5]], w[[3, 11]] = 0, 0
    a, w = a / a.sum(), w / w.sum()
    full = type(one)(one.y, one.x, a, w, one.manifold, "moving")
    part = type(one)(one.y[a > 0], one.x[w > 0], a[a > 0], w[w > 0], one.manifold, "moving")
    for member in (Sinkhorn(0.1), plain(0.1)):
        with_dead, without = solved(member, full.problem()), solved(member, part.problem())
        assert with_dead.value == pytest.approx(without.value, abs=1e-13)
        assert torch.allclose(with_dead.gradient[w > 0], without.gradient, atol=1e-9)
        assert bool(torch.isfinite(with_dead.gradient).all())
        assert bool(torch.isfinite(with_dead.source_potential).all())


def test_weights_of_very_different_sizes():
    w = torch.tensor([1e-12, 1e-6, 1.0], dtype=torch.float64)
    problem = between(cloud(3, 0), cloud(5, 1), w / w.sum(), weights(5, 2))
    for eps in (1.0, 1e-2, 1e-4):
        solution = solved(Sinkhorn(eps), problem)
        assert bool(torch.isfinite(solution.gradient).all())
        assert torch.allclose(solved(plain(eps), problem).plan().sum(0), w / w.sum(), rtol=1e-9, atol=0)
