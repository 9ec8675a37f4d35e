"""The potential test and the certificate of the identity coupling: never a yes for a coupling that can be improved."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import jko
import jko.transport.potential as potential_module
from jko.schemes import Step
from jko.transport import CouplingCertificate, CouplingProblem, Matched, ground_cost, potential_test
from jko.transport.potential import potential_tests
from tests.schemes.problems import METRICS, SIGNS, attention, succeeded, tokens

SPACES = {"sphere": jko.Sphere(), "euclidean": jko.Euclidean()}


def random_problem(seed: int, n: int, space: str, spread: float) -> CouplingProblem:
    """Targets near their sources, or far from them, with a potential of no meaning."""
    generator = np.random.default_rng(seed)
    manifold = SPACES[space]
    y = manifold.random_point((n,), 3, seed)
    noise = manifold.project_vector(y, torch.from_numpy(spread * generator.standard_normal((n, 3))))
    return CouplingProblem(
        source=y,
        target=manifold.exp(y, noise),
        weights=torch.full((n,), 1 / n, dtype=torch.float64),
        mobility=torch.from_numpy(generator.random(n) + 0.5),
        potential=torch.from_numpy(generator.standard_normal(n)),
        tau=0.1,
        manifold=manifold,
        tolerance=1e-8,
    )


def improvement(problem: CouplingProblem) -> float:
    """Relative decrease of the cost by the best assignment."""
    cost = ground_cost(problem.source, problem.target, problem.manifold, problem.mobility).numpy()
    rows, columns = linear_sum_assignment(cost)
    identity = float(np.trace(cost))
    return (identity - float(cost[rows, columns].sum())) / identity if identity else 0.0


def gains(problem: CouplingProblem) -> np.ndarray:
    """Every gain phi_i + c_ii - phi_k - c_ik, by the definition."""
    factor = problem.mobility / (2 * problem.tau)
    cost = factor[:, None] * problem.manifold.squared_distance(problem.target[None], problem.source[:, None])
    own = problem.potential + cost.diagonal()
    return (own[:, None] - problem.potential[None] - cost).numpy()


@settings(max_examples=150, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 12),
    space=st.sampled_from(sorted(SPACES)),
    spread=st.sampled_from([0.0, 1e-6, 1e-2, 0.3, 2.0]),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
)
def test_it_never_accepts_what_an_assignment_improves(
    seed: int, n: int, space: str, spread: float, scale: float
) -> None:
    problem = random_problem(seed, n, space, spread)
    problem = dataclasses.replace(problem, potential=scale * problem.potential)
    test = potential_test(problem)
    exact = gains(problem)
    if test.passed:
        assert improvement(problem) <= 1e-6
        assert exact.max() <= 1e-6 * (1 + abs(exact).max())
    else:
        assert test.largest_gain == pytest.approx(exact.max(), rel=1e-9, abs=1e-12)
        assert test.largest_gain > 0
    certificate = Matched().certify(problem)
    assert certificate.global_on_support is test.passed
    assert certificate.optimal is (improvement(problem) <= 1e-9) or test.passed
    if not test.passed:
        assert certificate.excess == pytest.approx(max(0.0, improvement(problem)), abs=1e-12)


@pytest.mark.parametrize("space", sorted(SPACES))
@pytest.mark.parametrize("seed", range(5))
def test_optimal_couplings_with_their_potential_pass(space: str, seed: int) -> None:
    """Duals of an exact assignment satisfy the inequality: rows blocked or not, duplicates or not."""
    problem = random_problem(seed, 15, space, 1.0)
    cost = ground_cost(problem.source, problem.target, problem.manifold, problem.mobility) / (2 * problem.tau)
    columns = linear_sum_assignment(cost.numpy())[1]
    target = problem.target[columns]
    cost = cost[:, columns].numpy()
    phi = np.zeros(15)
    for _ in range(100):
        # Bellman-Ford: phi_k >= phi_i + c_ii - c_ik for all i, feasible because no cycle of gains is positive.
        phi = np.maximum(phi, (phi + np.diag(cost))[:, None] - cost).max(0)
    optimal = dataclasses.replace(problem, target=target, potential=torch.from_numpy(phi))
    assert potential_test(optimal).passed
    assert Matched().certify(optimal).optimal is True
    twice = dataclasses.replace(
        optimal,
        **{
            name: getattr(optimal, name).repeat(2, *[1] * (getattr(optimal, name).ndim - 1))
            for name in ("source", "target", "mobility", "potential")
        },
        weights=torch.full((30,), 1 / 30, dtype=torch.float64),
    )
    assert potential_test(twice).passed
    # One exchange of two targets: flagged, and not optimal.
    swap = [1, 0, *range(2, 15)]
    swapped = dataclasses.replace(optimal, target=target[swap], potential=optimal.potential[swap])
    assert not potential_test(swapped).passed
    assert Matched().certify(swapped).optimal is False


def certified_step(metric: str, sign: int) -> tuple[Step, CouplingProblem]:
    y = jko.ParticleMeasure(tokens(10, seed=3))
    flow = attention(jko.initial_heads(2, 3, 1) * 0.5, metric, sign)
    step = succeeded(jko.JKO(0.05).step(flow, y))
    evaluation = step.state.flow_state.evaluation
    fields = flow.fields(y, 0.05)
    problem = CouplingProblem(
        y.points,
        step.measure.points,
        y.weights,
        flow.metric.mobility(fields),
        evaluation.first_variation,
        0.05,
        flow.manifold,
        1e-8,
    )
    return step, problem


@pytest.mark.parametrize("metric", ["w2", "weighted"])
@pytest.mark.parametrize("sign", SIGNS)
def test_a_step_with_two_particles_exchanged_is_flagged(metric: str, sign: int) -> None:
    step, problem = certified_step(metric, sign)
    assert step.info.certified == 1
    assert potential_test(problem).passed
    order = torch.arange(10)
    order[[2, 7]] = order[[7, 2]]
    exchanged = dataclasses.replace(problem, target=problem.target[order], potential=problem.potential[order])
    test = potential_test(exchanged)
    assert not test.passed
    assert test.largest_gain == pytest.approx(gains(exchanged).max(), rel=1e-10)
    certificate = Matched().certify(exchanged)
    assert certificate.optimal is False
    assert certificate.excess > 0
    assert "NOT optimal" in certificate.detail


@pytest.mark.parametrize("sign", SIGNS)
def test_small_errors_of_the_positions_are_no_reason_to_flag(sign: int) -> None:
    _, problem = certified_step("weighted", sign)
    noise = torch.randn(10, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for size in (1e-12, 1e-10):
        moved = problem.manifold.project_point(problem.target + size * noise)
        assert potential_test(dataclasses.replace(problem, target=moved)).passed
    far = dataclasses.replace(problem, target=problem.manifold.project_point(problem.target + noise))
    assert gains(far).max() > 1e-3
    assert not potential_test(far).passed


@pytest.mark.parametrize(("relative", "passes"), [(-1e-3, True), (1e-9, True), (1e-6, False), (1e-3, False)])
def test_the_slack_is_the_accuracy_of_the_step(relative: float, passes: bool) -> None:
    """A gain of a given fraction of the particle's own cost, at tolerance 1e-8."""
    y = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    half, ones = torch.full((2,), 0.5, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    own, there = 5 * 0.3**2, 5 * 1.3**2
    phi = torch.tensor([there - own + relative * own, 0.0], dtype=torch.float64)
    test = potential_test(CouplingProblem(y, y + 0.3, half, ones, phi, 0.1, jko.Euclidean(), 1e-8))
    assert test.passed is passes
    assert test.largest_gain == pytest.approx(max(0.0, relative * own), abs=1e-14)


@pytest.mark.parametrize("place", [0, 20, 39])
def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    problem = random_problem(4, 40, "sphere", 0.5)
    loud = problem.potential.clone()
    loud[place] = 1000.0
    problem = dataclasses.replace(problem, potential=loud)
    whole = potential_test(problem)
    monkeypatch.setattr(potential_module, "_ROWS", 7)
    blocked = potential_test(problem)
    assert blocked.passed == whole.passed
    for test in (blocked, whole):
        assert test.largest_gain == pytest.approx(gains(problem).max(), rel=1e-10)


def test_massless_particles_have_no_say() -> None:
    problem = random_problem(0, 6, "sphere", 0.0)
    quiet = dataclasses.replace(problem, potential=torch.zeros(6, dtype=torch.float64))
    assert potential_test(quiet).passed
    loud = quiet.potential.clone()
    loud[5] = 1e6
    assert not potential_test(dataclasses.replace(quiet, potential=loud)).passed
    w = torch.tensor([0.2] * 5 + [0.0], dtype=torch.float64)
    assert potential_test(dataclasses.replace(quiet, potential=loud, weights=w)).passed


def side_by_side(space: str, n: int, tracers: bool, dtype: torch.dtype) -> list[CouplingProblem]:
    """Steps of one measure: short ones that pass, long ones and one that is not finite that do not."""
    common = random_problem(9, n, space, 0.0)
    weights = torch.arange(n, dtype=torch.float64) / math.comb(n, 2) if tracers else common.weights
    problems = []
    for seed, (size, loud) in enumerate(
        ((0.0, 0.0), (1e-6, 1e-9), (1e-2, 1e-6), (0.5, 1.0), (2.0, 0.0), (0.1, math.nan))
    ):
        other = random_problem(seed, n, space, 0.0)
        way = common.manifold.project_vector(common.source, size * other.source)
        parts = {
            "source": common.source,
            "target": common.manifold.exp(common.source, way),
            "weights": weights,
            "mobility": other.mobility,
            "potential": loud * other.potential,
        }
        parts = {name: part.to(dtype) for name, part in parts.items()}
        problems.append(dataclasses.replace(common, **parts))
    return problems


@pytest.mark.parametrize("space", sorted(SPACES))
@pytest.mark.parametrize("tracers", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sizes", [(2048, 200_000, 100_000), (7, 100, 25), (2048, 1, 1)])
def test_tests_side_by_side_are_the_tests_alone(
    space: str, tracers: bool, dtype: torch.dtype, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = side_by_side(space, 20, tracers, dtype)
    alone = [potential_test(problem) for problem in problems]
    assert {test.passed for test in alone} == {True, False}
    singles = [Matched().certify(problem) for problem in problems[:-1]]
    for name, size in zip(("_ROWS", "_CPU_ENTRIES", "_PARTICLES"), sizes, strict=True):
        monkeypatch.setattr(potential_module, name, size)
    together = potential_tests(problems)
    assert [test.passed for test in together] == [test.passed for test in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.largest_gain == pytest.approx(other.largest_gain, rel=1e-12, abs=1e-15)
    weakest = Matched().certify_all(problems[:-1])
    assert weakest.global_on_support is False
    assert weakest.optimal is all(single.optimal for single in singles)
    assert weakest.largest_gain == pytest.approx(max(single.largest_gain for single in singles), rel=1e-12)
    assert weakest.excess == pytest.approx(max(single.excess for single in singles), rel=1e-12)
    one, same = (dataclasses.astuple(c) for c in (Matched().certify_all(problems[:1]), singles[0]))
    assert one == same


@pytest.mark.parametrize("name", ["target", "source", "potential", "mobility"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_prove_nothing(name: str, value: float) -> None:
    problem = random_problem(0, 5, "euclidean", 0.0)
    broken = getattr(problem, name).clone()
    broken[3] = value
    test = potential_test(dataclasses.replace(problem, **{name: broken}))
    assert not test.passed


def test_far_from_the_origin_nothing_cancels() -> None:
    problem = random_problem(1, 8, "euclidean", 0.05)
    shift = torch.tensor([1e6, -2e6, 5e5], dtype=torch.float64)
    moved = dataclasses.replace(problem, source=problem.source + shift, target=problem.target + shift)
    assert potential_test(moved).passed == potential_test(problem).passed
    assert potential_test(moved).largest_gain == pytest.approx(potential_test(problem).largest_gain, rel=1e-5)


@pytest.mark.parametrize(("n", "verdict"), [(1000, False), (1001, None)])
def test_large_couplings_stay_undecided(n: int, verdict: bool | None) -> None:
    y = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    problem = CouplingProblem(
        y, y.flip(0), torch.full((n,), 1 / n), torch.ones(n), torch.zeros(n), 0.1, jko.Euclidean(), 1e-8
    )
    certificate = Matched().certify(problem)
    assert certificate.optimal is verdict
    assert not certificate.global_on_support
    assert certificate.largest_gain == pytest.approx(1 / 0.2, rel=1e-3)
    if verdict is None:
        assert "undecided" in certificate.detail
    else:
        assert certificate.excess == pytest.approx(1.0)


def test_the_test_can_fail_on_an_optimal_coupling() -> None:
    """Two particles that stay where they are, one of which would rather be where the other is."""
    y = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    half, ones = torch.full((2,), 0.5, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    phi = torch.tensor([20.0, 0.0], dtype=torch.float64)
    certificate = Matched().certify(CouplingProblem(y, y, half, ones, phi, 0.1, jko.Euclidean(), 1e-8))
    assert certificate.optimal is True
    assert not certificate.global_on_support
    assert certificate.largest_gain == pytest.approx(15)
    assert "the coupling is optimal" in certificate.detail


def test_detail_is_empty_for_a_proof() -> None:
    assert CouplingCertificate(True, 0.0, True).detail == ""


@pytest.mark.parametrize("metric", METRICS)
def test_weakest_head_decides(metric: str, device: torch.device) -> None:
    y = jko.ParticleMeasure(tokens(10, seed=3)).to(device=device)
    info = succeeded(jko.JKO(0.05).step(attention(jko.initial_heads(2, 3, 1) * 0.5, metric), y)).info
    assert info.coupling.optimal is True
    assert info.coupling.global_on_support
    assert info.certified == 1
