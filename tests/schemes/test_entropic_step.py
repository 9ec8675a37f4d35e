"""JKO steps with an entropic transport term: debiased by default, plain on request and labelled."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from schemes.problems import SIGNS, attention, gap, succeeded, tokens
from schemes.test_coupled_step import matrices, weights

import jko

R = jko.Euclidean()
NOTHING = jko.PotentialEnergy(lambda x: 0.0 * x[..., 0])


def pair() -> jko.ParticleMeasure:
    return jko.ParticleMeasure(torch.tensor([[-1.0], [1.0]], dtype=torch.float64))


@pytest.mark.parametrize("eps", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_field_report_h07_a_step_without_energy_moves_nothing(eps, tau):
    flow = jko.GradientFlow(NOTHING, jko.Wasserstein2(), R)
    step = succeeded(jko.JKO(tau, transport=jko.Sinkhorn(eps)).step(flow, pair()))
    assert gap(step.measure.points, pair().points) < 1e-6


@pytest.mark.parametrize(("eps", "position"), [(0.5, 0.99933), (1.0, 0.95750), (2.0, 0.0), (4.0, 0.0)])
def test_field_report_h07_the_plain_term_contracts_and_says_so(eps, position, caplog):
    """The fixed point of x = tanh(2 x / eps): the plain term is offered, labelled, and warned of."""
    flow = jko.GradientFlow(NOTHING, jko.Wasserstein2(), R)
    scheme = jko.JKO(1.0, transport=jko.Sinkhorn(eps, debias=False))
    with caplog.at_level(logging.WARNING, logger="jko"):
        state = scheme.start(flow, pair(), 0.0)
    assert "contracts the cloud" in caplog.text
    step = succeeded(scheme.step(flow, pair(), state=state))
    assert abs(float(step.measure.points[1, 0]) - position) < (2e-2 if eps == 2.0 else 2e-5)
    assert "not debiased" in scheme.title


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("metric", ["w2", "weighted"])
def test_the_debiased_step_tends_to_the_exact_one(sign, metric):
    flow, mu = attention(matrices(2), metric, sign), jko.ParticleMeasure(tokens(6))
    exact = succeeded(jko.JKO(0.02).step(flow, mu))
    moved = gap(exact.measure.points, mu.points)
    distances = []
    for eps in (0.1, 0.02):
        step = succeeded(jko.JKO(0.02, transport=jko.Sinkhorn(eps)).step(flow, mu))
        distances.append(gap(step.measure.points, exact.measure.points))
        assert step.info.marginal_error < 1e-6
    assert distances[1] < distances[0]
    assert distances[1] < 0.3 * moved


@pytest.mark.parametrize("debias", [True, False])
def test_the_step_is_stationary_for_its_own_objective(debias):
    """sE + T / (2 tau) by the solver alone, differentiated by central differences at the result."""
    flow, tau = attention(matrices(2), "weighted"), 0.05
    mu = jko.ParticleMeasure(tokens(5), weights(5))
    transport = jko.Sinkhorn(0.2, debias=debias)
    step = succeeded(jko.JKO(tau, transport=transport).step(flow, mu))

    def value(points):
        from jko.metrics import MobilityField
        from jko.transport import TransportProblem

        (part,) = flow.energy.attention_parts
        field = MobilityField(part, mu, tau)
        b, slope = field.at(points)
        problem = TransportProblem(
            mu,
            mu.moved(points),
            flow.manifold,
            mobility=field.at(mu.points)[0],
            target_mobility=b if debias else None,
            target_mobility_gradient=slope if debias else None,
        )
        return float(flow.energy.value(mu.moved(points), 0.0)) + transport.solve(problem).value / (2 * tau)

    x, space, h = step.measure.points, flow.manifold, 1e-4
    basis = space.tangent_basis(x)
    scale = float(flow.slope(step.measure, 0.0))
    for i in range(5):
        for k in range(2):
            eta = torch.zeros_like(x)
            eta[i] = basis[i, :, k]
            slope = (value(space.exp(x, h * eta)) - value(space.exp(x, -h * eta))) / (2 * h)
            assert abs(slope) < 1e-5 * scale


def test_without_energy_the_weighted_debiased_step_rests_too():
    flow = jko.GradientFlow(0.0 * attention(matrices(2)).energy)
    mu = jko.ParticleMeasure(tokens(6), weights(6))
    step = succeeded(jko.JKO(0.1, transport=jko.Sinkhorn(0.3)).step(flow, mu))
    assert gap(step.measure.points, mu.points) < 1e-6


def test_gaussian_law_of_the_plain_term():
    """A step of the plain term without energy takes eps / 2 of variance per coordinate from a spread-out cloud.

    Quantiles of a normal law. Where the particles lie closer than sqrt(eps) the plain term hardly sees them apart, so
    the step is solved to a coarse tolerance only, by a method that does not mind.
    """
    n, eps = 40, 0.5
    grid = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    mu = jko.ParticleMeasure((math.sqrt(2) * torch.erfinv(2 * grid - 1))[:, None])
    flow = jko.GradientFlow(NOTHING, jko.Wasserstein2(), R)
    lbfgs = jko.TorchOptimizer(torch.optim.LBFGS, max_steps=100, rtol=1e-4, line_search_fn="strong_wolfe")
    scheme = jko.JKO(1.0, transport=jko.Sinkhorn(eps, debias=False), minimizer=lbfgs, fallback=None)
    step = succeeded(scheme.step(flow, mu))
    lost = float(mu.points.var(correction=0) - step.measure.points.var(correction=0))
    assert abs(lost - eps / 2) < 0.02 * eps / 2


def test_a_transport_that_does_not_converge_fails_the_step():
    flow, mu = attention(matrices(1), "w2"), jko.ParticleMeasure(tokens(8))
    step = jko.JKO(0.05, transport=jko.Sinkhorn(1e-3, max_iterations=1)).step(flow, mu)
    assert step.info.status is jko.Status.NOT_CONVERGED
    assert step.measure is mu
    assert "transport" in step.info.detail


def test_records_tell_the_bias_and_the_marginal_error():
    flow, mu = attention(matrices(1), "w2"), jko.ParticleMeasure(tokens(8))
    sol = jko.solve(flow, mu, jko.JKO(0.05, transport=jko.Sinkhorn(0.1)), t1=0.15)
    assert set(sol.records.numeric()) >= {"marginal_error", "couplings", "entropic_bias"}
    assert bool((sol.records.entropic_bias > 0).all())
    assert "eps = 0.1" in sol.title


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("eps", [0.1, 0.3])
def test_law_of_the_debiased_term_on_the_circle(k, eps):
    """A uniform circle and the potential cos(k angle): the step is too long by sinh(z) / z, z = eps k^2 / 4.

    S_eps has the second variation (eps / 2) K / (1 - K^2) with K = exp(-eps k^2 / 4) the self-plan's eigenvalue, W_2^2
    has 1 / k^2; the prediction of the records finds k from the velocities of neighbors.
    """
    angle = torch.arange(96, dtype=torch.float64) * (2 * math.pi / 96)
    mu = jko.ParticleMeasure(torch.stack([angle.cos(), angle.sin()], -1))
    energy = jko.PotentialEnergy(lambda x: torch.complex(x[..., 0], x[..., 1]).pow(k).real)
    flow = jko.GradientFlow(energy, jko.Wasserstein2())
    matched = succeeded(jko.JKO(1e-4).step(flow, mu))
    scheme = jko.JKO(1e-4, transport=jko.Sinkhorn(eps, tolerance=1e-13), minimizer=jko.Anderson(rtol=1e-6))
    step = succeeded(scheme.step(flow, mu))
    z = eps * k * k / 4
    factor = math.sinh(z) / z
    longer = float(step.info.displacement.norm() / matched.info.displacement.norm())
    # Steps of finite length leave O(tau) of relative error.
    assert abs(longer / factor - 1) < 3e-4
    assert abs((1 + step.info.entropic_bias) / factor - 1) < 0.01 * z
