"""Exact transport against sorting, brute force over permutations, and POT."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import jko
from jko.errors import InvalidInput, JKOError
from jko.transport import ExactOT, TransportProblem, exact, ground_cost, network, optimal_cost, squared_wasserstein

LINE = jko.Euclidean()


def uniform(n: int) -> torch.Tensor:
    return torch.full((n,), 1 / n, dtype=torch.float64)


def weights(n: int, seed: int) -> torch.Tensor:
    w = torch.from_numpy(np.random.default_rng(seed).random(n) + 0.05)
    return w / w.sum()


@settings(max_examples=40, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 6))
def test_against_all_permutations(seed: int, n: int) -> None:
    cost = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, n)))
    best = min(float(cost[range(n), p].mean()) for p in itertools.permutations(range(n)))
    assert optimal_cost(cost, uniform(n), uniform(n)) == pytest.approx(best, abs=1e-13)


@settings(max_examples=40, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 30))
def test_on_the_line_by_sorting(seed: int, n: int) -> None:
    x, y = np.random.default_rng(seed).standard_normal((2, n))
    expected = float(np.square(np.sort(x) - np.sort(y)).mean())
    mu, nu = jko.ParticleMeasure(x[:, None]), jko.ParticleMeasure(y[:, None])
    assert squared_wasserstein(mu, nu, LINE) == pytest.approx(expected, abs=1e-12)
    # The same points with weights that differ by a hair go through the network simplex.
    w = uniform(n)
    w[0] += 1e-10
    w = w / w.sum()
    almost = squared_wasserstein(jko.ParticleMeasure(x[:, None], w), nu, LINE)
    assert almost == pytest.approx(expected, abs=1e-7)


@settings(max_examples=25, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 12), m=st.integers(1, 12), mobile=st.booleans())
def test_against_pot(seed: int, n: int, m: int, mobile: bool) -> None:
    sphere = jko.Sphere()
    y, x = sphere.random_point((n,), 3, seed), sphere.random_point((m,), 3, seed + 1)
    a, b = weights(n, seed), weights(m, seed + 2)
    mobility = torch.from_numpy(np.random.default_rng(seed).random(n) + 0.5) if mobile else None
    cost = ground_cost(y, x, sphere, mobility)
    angles = 2 * np.arcsin(np.linalg.norm((y[:, None] - x[None]).numpy(), axis=-1) / 2)
    by_hand = angles**2 * (1 if mobility is None else mobility.numpy()[:, None])
    assert np.allclose(cost.numpy(), by_hand, rtol=1e-12, atol=1e-14)
    expected = float((ot.emd(a.numpy(), b.numpy(), by_hand) * by_hand).sum())
    assert optimal_cost(cost, a, b) == pytest.approx(expected, abs=1e-12)


def test_mobility_belongs_to_the_source() -> None:
    y, x = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0], [5.0]])
    cost = ground_cost(y, x, LINE, torch.tensor([10.0, 1.0]))
    assert cost.tolist() == [[0.0, 40.0, 250.0], [1.0, 1.0, 16.0]]


def test_dead_particles_are_not_charged() -> None:
    mu = jko.ParticleMeasure([[0.0], [1.0], [10.0]], [0.5, 0.5, 0.0])
    nu = jko.ParticleMeasure([[0.5], [1.5], [2.5]], [0.5, 0.5, 0.0])
    assert squared_wasserstein(mu, nu, LINE) == pytest.approx(0.25, abs=1e-15)


def test_single_precision_weights() -> None:
    points = torch.arange(5.0)[:, None]
    mu = jko.ParticleMeasure(points, torch.full((5,), 0.2))
    nu = jko.ParticleMeasure(points.double() + 0.5, [0.2] * 5)
    assert squared_wasserstein(mu, nu, LINE) == pytest.approx(0.25, abs=1e-6)
    uneven = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25])
    mu, nu = jko.ParticleMeasure(points, uneven), jko.ParticleMeasure(points.double() + 0.5, uneven)
    assert squared_wasserstein(mu, nu, LINE) == pytest.approx(0.25, abs=1e-6)


def test_very_unequal_sizes() -> None:
    x, y = (torch.from_numpy(np.random.default_rng(s).random((n, 2))) for s, n in ((0, 5), (1, 960)))
    value = squared_wasserstein(jko.ParticleMeasure(x), jko.ParticleMeasure(y), LINE)
    plan = ot.emd(np.full(5, 1 / 5), np.full(960, 1 / 960), ground_cost(x, y, LINE).numpy())
    assert plan.sum() == pytest.approx(1, abs=1e-9)
    assert value == pytest.approx(float((plan * ground_cost(x, y, LINE).numpy()).sum()), abs=1e-12)
    assert value > 0.01


def test_degenerate_sizes() -> None:
    one = jko.ParticleMeasure([[1.0, 2.0]])
    five = jko.ParticleMeasure([[1.0, 2.0]] * 5)
    assert squared_wasserstein(one, one, LINE) == 0
    assert squared_wasserstein(five, five, LINE) == 0
    assert squared_wasserstein(one, five, LINE) == 0
    assert squared_wasserstein(jko.ParticleMeasure([[0.0]]), jko.ParticleMeasure([[2.0]]), LINE) == 4
    e1, e2 = ([[1.0, 0, 0]], [[-1.0, 0, 0]])
    value = squared_wasserstein(jko.ParticleMeasure(e1), jko.ParticleMeasure(e2), jko.Sphere())
    assert value == pytest.approx(math.pi**2, abs=1e-12)


def test_a_solver_that_does_not_finish_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((400, 2)), generator.standard_normal((400, 2)) + 1
    mu, nu = jko.ParticleMeasure(x), jko.ParticleMeasure(y)
    assert squared_wasserstein(mu, nu, LINE) == pytest.approx(2.216165, abs=5e-7)
    uneven = jko.ParticleMeasure(y, weights(400, 3))
    assert squared_wasserstein(mu, uneven, LINE) > 1
    monkeypatch.setattr(network, "_MAX_PIVOTS", 10)
    before = list(warnings.filters)
    with pytest.raises(JKOError, match="400 and 400 particles: numItermax"):
        squared_wasserstein(mu, uneven, LINE)
    assert warnings.filters == before


def test_bad_input_is_refused_before_any_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "network_simplex", lambda *_: pytest.fail("the solver was called"))
    good = uniform(2)
    for bad in (math.nan, math.inf):
        with pytest.raises(InvalidInput, match="non-finite"):
            optimal_cost(torch.tensor([[0.0, bad], [1.0, 0.0]]), good, good)
        with pytest.raises(InvalidInput, match=r"points\[2, 1\]"):
            jko.ParticleMeasure([[0.0, 0.0], [0.0, 0.0], [0.0, bad]])
    cost = torch.zeros(2, 2)
    for mass in ([0.6, 0.6], [math.nan, 0.5], [1.5, -0.5]):
        bad_weights = torch.tensor(mass, dtype=torch.float64)
        with pytest.raises(InvalidInput, match="source_weights"):
            optimal_cost(cost, bad_weights, good)
        with pytest.raises(InvalidInput, match="target_weights"):
            optimal_cost(cost, good, bad_weights)
    with pytest.raises(InvalidInput, match=r"shape \(2, 3\), got \(2, 2\)"):
        optimal_cost(cost, good, uniform(3))
    mu = jko.ParticleMeasure(torch.zeros(2, 3))
    with pytest.raises(InvalidInput, match="same d"):
        squared_wasserstein(mu, jko.ParticleMeasure(torch.zeros(2, 2)), LINE)
    with pytest.raises(InvalidInput, match="one measure at a time"):
        squared_wasserstein(jko.ParticleMeasure(torch.zeros(4, 2, 3)), mu, LINE)
    with pytest.raises(InvalidInput, match=r"nu\.points\[0\] has norm 2"):
        squared_wasserstein(jko.ParticleMeasure([[1.0, 0.0]]), jko.ParticleMeasure([[2.0, 0.0]]), jko.Sphere())


def test_device(device: torch.device, dtype: torch.dtype) -> None:
    mu, nu = (jko.ParticleMeasure(jko.Sphere().random_point((7,), 3, s)) for s in (0, 1))
    expected = squared_wasserstein(mu, nu, jko.Sphere())
    there = squared_wasserstein(mu.to(dtype, device), nu.to(dtype, device), jko.Sphere())
    assert there == pytest.approx(expected, rel=20 * torch.finfo(dtype).eps)


def test_the_solver_is_that_of_exact_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    y, x = (torch.from_numpy(np.random.default_rng(seed).standard_normal((100, 3))) for seed in (0, 1))
    mu, near, far = jko.ParticleMeasure(y), jko.ParticleMeasure(y + 0.01 * x), jko.ParticleMeasure(x)
    cost = ground_cost(y, x, LINE).numpy()
    rows, columns = linear_sum_assignment(cost)
    assert squared_wasserstein(mu, far, LINE) == pytest.approx(float(cost[rows, columns].mean()), rel=1e-13)
    for wrong, target in (("assigned", far), ("network_simplex", near)):
        with monkeypatch.context() as patch:
            patch.setattr(exact, wrong, lambda *_: pytest.fail("the slower solver was called"))
            assert squared_wasserstein(mu, target, LINE) == pytest.approx(
                ExactOT().solve(TransportProblem(mu, target, LINE)).value, rel=1e-13
            )
