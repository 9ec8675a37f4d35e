"""JKO steps whose coupling is found by a transport solver."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from schemes.problems import SIGNS, attention, gap, succeeded, tokens

import jko
from jko.metrics import AbstractMetric
from jko.transport import TransportProblem

R = jko.Euclidean()


def matrices(count: int, seed: int = 0) -> torch.Tensor:
    z = torch.from_numpy(np.random.default_rng(seed).standard_normal((count, 3, 3)))
    return (z + z.mT) / 2


def weights(n: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.full(n, 3.0)))


def objective(flow, scheme, old, new) -> float:
    """sE(u) + T(u, y) / (2 tau), by the transport solver alone."""
    mobility = None
    if isinstance(flow.metric, jko.WeightedWasserstein):
        mobility = flow.metric.mobility(flow.fields(old, 0.0))
    problem = TransportProblem(old, new, flow.manifold, mobility=mobility)
    return float(flow.energy.value(new, 0.0)) + jko.ExactOT().solve(problem).value / (2 * scheme.tau)


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("metric", ["w2", "weighted"])
@pytest.mark.parametrize("heads", [1, 3])
def test_equal_weights_give_the_matched_step(sign, metric, heads):
    flow, mu = attention(matrices(heads), metric, sign), jko.ParticleMeasure(tokens(9))
    matched = succeeded(jko.JKO(0.05).step(flow, mu))
    exact = succeeded(jko.JKO(0.05, transport=jko.ExactOT()).step(flow, mu))
    assert gap(exact.measure.points, matched.measure.points) < 1e-13
    assert exact.info.couplings == 1
    assert exact.info.certified == 1
    assert exact.info.evaluations == matched.info.evaluations
    assert exact.info.coupling.optimal


def test_a_guess_in_another_order_gives_the_same_measure():
    flow, mu = attention(matrices(2)), jko.ParticleMeasure(tokens(6))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    plain = succeeded(jko.JKO(0.05, transport=jko.ExactOT()).step(flow, mu))
    other = succeeded(
        jko.JKO(0.05, transport=jko.ExactOT()).step(flow, mu, guess=jko.ParticleMeasure(mu.points[order]))
    )
    assert gap(other.measure.points, plain.measure.points[order]) < 1e-7


@pytest.mark.parametrize("sign", SIGNS)
def test_unequal_weights_do_no_worse_than_the_identity(sign):
    flow = attention(matrices(2), "weighted", sign)
    mu = jko.ParticleMeasure(tokens(7), weights(7))
    for tau in (0.05, 0.5):
        matched = jko.JKO(tau)
        exact = jko.JKO(tau, transport=jko.ExactOT())
        steps = [succeeded(scheme.step(flow, mu)) for scheme in (matched, exact)]
        values = [objective(flow, exact, mu, step.measure) for step in steps]
        assert values[1] <= values[0] + 1e-12 * abs(values[0])
        assert values[1] <= float(flow.energy.value(mu, 0.0))
        assert torch.equal(steps[1].measure.weights, mu.weights)


@pytest.mark.parametrize("space", [jko.Sphere(), R])
@pytest.mark.parametrize("metric", [jko.Wasserstein2(), jko.WeightedWasserstein()])
def test_another_support_size_is_a_minimizer(space, metric: AbstractMetric):
    """m = 3 from n = 5: no small move of the particles lowers the objective with its exact transport."""
    energy = jko.AttentionEnergy(jko.ConstantHeads(matrices(2)))
    flow = jko.GradientFlow(energy, metric, space)
    mu = jko.ParticleMeasure(tokens(5), weights(5))
    guess = jko.ParticleMeasure(tokens(3, seed=4), weights(3, seed=1))
    scheme = jko.JKO(0.1, transport=jko.ExactOT())
    step = succeeded(scheme.step(flow, mu, guess=guess))
    assert step.measure.n == 3
    assert torch.equal(step.measure.weights, guess.weights)
    assert step.info.certified == 1
    best = objective(flow, scheme, mu, step.measure)
    assert math.isclose(
        best, float(energy.value(step.measure, 0.0)) + step.info.squared_distance / (2 * scheme.tau), rel_tol=1e-12
    )
    assert best < objective(flow, scheme, mu, guess)
    rng = np.random.default_rng(5)
    for size in (1e-3, 1e-2, 1e-1):
        for _ in range(5):
            shift = torch.from_numpy(rng.standard_normal((3, 3))) * size
            moved = space.exp(step.measure.points, space.project_vector(step.measure.points, shift))
            assert objective(flow, scheme, mu, step.measure.moved(moved)) > best


def test_moving_away_from_a_minimizer_is_seen():
    """The helper above can fail: at the guess a descent direction exists."""
    flow = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(matrices(2))), jko.Wasserstein2())
    mu = jko.ParticleMeasure(tokens(5), weights(5))
    guess = jko.ParticleMeasure(tokens(3, seed=4), weights(3, seed=1))
    scheme = jko.JKO(0.1, transport=jko.ExactOT())
    step = succeeded(scheme.step(flow, mu, guess=guess))
    space = flow.manifold
    toward = space.exp(guess.points, 0.05 * space.log(guess.points, step.measure.points))
    assert objective(flow, scheme, mu, guess.moved(toward)) < objective(flow, scheme, mu, guess)


def test_a_potential_moves_every_barycenter_by_its_proximal_map():
    """E = sum w |x|^2/2 in R^2: x_i is the barycenter of what it receives over 1 + tau, exactly."""
    energy = jko.PotentialEnergy(lambda x: (x * x).sum(-1) / 2)
    flow = jko.GradientFlow(energy, jko.Wasserstein2(), R)
    rng = np.random.default_rng(0)
    mu = jko.ParticleMeasure(torch.from_numpy(rng.standard_normal((6, 2))), weights(6))
    guess = jko.ParticleMeasure(torch.from_numpy(rng.standard_normal((4, 2))), weights(4))
    tau = 0.3
    step = succeeded(jko.JKO(tau, transport=jko.ExactOT()).step(flow, mu, guess=guess))
    plan = jko.ExactOT().solve(TransportProblem(mu, step.measure, R)).plan()
    barycenter = plan.mT @ mu.points / guess.weights[:, None]
    assert gap(step.measure.points, barycenter / (1 + tau)) < 1e-8


def test_the_coupling_settles_after_several_rounds():
    """Without energy the step is a quantization: particles at the barycenters of what they receive (Lloyd 1982)."""
    rng = np.random.default_rng(2)
    mu = jko.ParticleMeasure(torch.from_numpy(rng.standard_normal((20, 2))), weights(20))
    guess = jko.ParticleMeasure(torch.from_numpy(0.1 * rng.standard_normal((4, 2))), weights(4))
    flow = jko.GradientFlow(jko.PotentialEnergy(lambda x: 0.0 * x[..., 0]), jko.Wasserstein2(), R)
    step = succeeded(jko.JKO(0.1, transport=jko.ExactOT()).step(flow, mu, guess=guess))
    assert step.info.couplings > 1
    plan = jko.ExactOT().solve(TransportProblem(mu, step.measure, R)).plan()
    assert gap(step.measure.points, plan.mT @ mu.points / guess.weights[:, None]) < 1e-9


def test_a_run_to_another_support_size_is_kept_and_read_back(tmp_path):
    flow = attention(matrices(1), "w2")
    mu, guess = jko.ParticleMeasure(tokens(6)), jko.ParticleMeasure(tokens(4, seed=3), weights(4))
    sol = jko.solve(flow, mu, jko.JKO(0.05, transport=jko.ExactOT()), t1=0.15, guess=guess)
    assert [sol.measure(k).n for k in range(4)] == [6, 4, 4, 4]
    assert "exact" in sol.title
    with pytest.raises(jko.InvalidInput, match=r"use \.measure\(k\)"):
        _ = sol.points
    back = jko.load(sol.save(tmp_path / "run"))
    for k in range(4):
        assert torch.equal(back.measure(k).points, sol.measure(k).points)
        assert torch.equal(back.measure(k).weights, sol.measure(k).weights)
    assert torch.equal(back.records.couplings, sol.records.couplings)


def test_a_failed_transport_fails_the_step_and_keeps_the_measure():
    flow = attention(matrices(1), "w2")
    mu, guess = jko.ParticleMeasure(tokens(30)), jko.ParticleMeasure(tokens(20, seed=3))
    step = jko.JKO(0.05, transport=jko.ExactOT(max_pivots=3)).step(flow, mu, guess=guess)
    assert step.info.status is jko.Status.NOT_CONVERGED
    assert step.measure is mu
    assert "coupling" in step.info.detail
    assert step.info.certified == 0


@pytest.mark.parametrize("transport", [jko.ExactOT(), jko.Sinkhorn(0.1)])
def test_what_a_transport_cannot_serve_is_refused_before_any_work(transport):
    mu = jko.ParticleMeasure(tokens(4))
    with pytest.raises(jko.InvalidInput, match=r"Matched\(\) transport only"):
        jko.JKO(0.1, transport=transport).step(attention(matrices(2), "headwise"), mu)
    with pytest.raises(jko.InvalidInput, match=r"identity coupling of Matched\(\)"):
        jko.JKO(0.1, transport=transport, checks=[jko.DeGiorgi()])
    flow = attention(matrices(2), "w2")
    with pytest.raises(jko.InvalidInput, match="guess must be an instance of ParticleMeasure"):
        jko.JKO(0.1, transport=transport).step(flow, mu, guess=mu.points)
    with pytest.raises(jko.InvalidInput, match=r"one cloud of shape \(m, 3\)"):
        jko.JKO(0.1, transport=transport).step(flow, mu, guess=jko.ParticleMeasure(torch.eye(2, dtype=torch.float64)))


def test_a_mobility_of_the_users_own_needs_a_transport_without_debiasing():
    energy = jko.AttentionEnergy(jko.ConstantHeads(matrices(1)))
    metric = jko.WeightedWasserstein(lambda mu, t: torch.ones_like(mu.points[..., 0]) * 2)
    flow, mu = jko.GradientFlow(energy, metric), jko.ParticleMeasure(tokens(4))
    with pytest.raises(jko.InvalidInput, match="mobility as a function of position"):
        jko.JKO(0.1, transport=jko.Sinkhorn(0.1)).step(flow, mu)
    succeeded(jko.JKO(0.1, transport=jko.Sinkhorn(0.01, debias=False)).step(flow, mu))


def test_massless_particles_follow_the_field():
    """A particle of weight 0 changes nothing, and its own step is that of the matched transport."""
    flow = attention(matrices(2), "w2")
    points, w = tokens(5), torch.tensor([0.3, 0.0, 0.2, 0.4, 0.1], dtype=torch.float64)
    with_tracer = succeeded(jko.JKO(0.05, transport=jko.ExactOT()).step(flow, jko.ParticleMeasure(points, w)))
    matched = succeeded(jko.JKO(0.05).step(flow, jko.ParticleMeasure(points, w)))
    assert gap(with_tracer.measure.points, matched.measure.points) < 1e-8
    alive = w > 0
    without = succeeded(jko.JKO(0.05, transport=jko.ExactOT()).step(flow, jko.ParticleMeasure(points[alive], w[alive])))
    assert gap(with_tracer.measure.points[alive], without.measure.points) < 1e-8


@pytest.mark.parametrize("transport", [jko.ExactOT(), jko.Sinkhorn(0.05)])
def test_single_precision(transport):
    flow = attention(matrices(2).float(), "w2")
    mu = jko.ParticleMeasure(tokens(6).float())
    step = succeeded(jko.JKO(0.05, transport=transport).step(flow, mu))
    assert step.measure.points.dtype == torch.float32
    wide = succeeded(
        jko.JKO(0.05, transport=transport).step(attention(matrices(2), "w2"), jko.ParticleMeasure(tokens(6)))
    )
    assert gap(step.measure.points, wide.measure.points) < 1e-4
