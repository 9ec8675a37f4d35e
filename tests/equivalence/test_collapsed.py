"""All particles at one place: the flow is Oja's, or a Rayleigh quotient's, for any number of heads."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import jko
import jko.heads
from tests.schemes.problems import METRICS, SIGNS, gap, succeeded

X0 = torch.tensor([0.6, -0.48, 0.64], dtype=torch.float64)
D0 = jko.initial_heads(2, 3, 3) * 0.3


def matrix(D: Tensor, x: Tensor, metric: str) -> Tensor:
    """The symmetric matrix A of x' = -sign P_x A x."""
    symmetric = (D + D.mT) / 2
    m = torch.exp(torch.einsum("i,hij,j->h", x, D, x))
    if metric == "headwise":
        return symmetric.mean(0)
    weighted = (m[:, None, None] * symmetric).mean(0)
    return weighted if metric == "w2" else weighted * m.reciprocal().mean()


def exact(heads: jko.heads.AbstractHeads, metric: str, sign: int, t1: float) -> Tensor:
    def velocity(t: float, z: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(z)
        force = matrix(heads.at(min(t, t1)), x, metric) @ x
        return (-sign * (force - (x @ force) * x)).numpy()

    result = solve_ivp(velocity, (0, t1), X0.numpy(), method="DOP853", rtol=1e-12, atol=1e-13)
    return torch.from_numpy(result.y[:, -1])


def cluster(n: int) -> jko.ParticleMeasure:
    return jko.ParticleMeasure(X0.expand(n, 3))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("n", [1, 4])
def test_velocity(metric: str, sign: int, n: int) -> None:
    generator = np.random.default_rng(5)
    D = torch.from_numpy(generator.standard_normal((3, 3, 3)))
    flow = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(D), sign=sign), METRICS[metric])
    force = matrix(D, X0, metric) @ X0
    expected = -sign * (force - (X0 @ force) * X0)
    assert gap(flow.velocity(cluster(n), 0.0), expected.expand(n, 3)) < 1e-13


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("scheme", [jko.ExplicitEuler, jko.JKO])
def test_drift_without_noise(metric: str, sign: int, scheme: type) -> None:
    t1 = 0.4
    heads = jko.OrnsteinUhlenbeckHeads(D0, sigma2=0.0, dt=1e-3, t1=t1, exact=True)
    flow = jko.GradientFlow(jko.AttentionEnergy(heads, sign=sign), METRICS[metric])
    finals = []
    for steps in (8, 16, 32):
        run = jko.solve(flow, cluster(3), scheme(t1 / steps), t1=t1)
        last = run.points[-1]
        assert gap(last, last[:1].expand(3, 3)) < 1e-12
        finals.append(last[0])
    target = exact(heads, metric, sign, t1)
    errors = [gap(final, target) for final in finals]
    assert all(0.8 < math.log2(a / b) < 1.2 for a, b in itertools.pairwise(errors)), errors
    second = [2 * b - a for a, b in itertools.pairwise(finals)]
    assert gap((4 * second[1] - second[0]) / 3, target) < errors[-1] / 30
    if metric == "headwise":
        # The closed form of Oja's flow with D(t) - I = e^-t (D_0 - I).
        average = D0.mean(0) - torch.eye(3, dtype=torch.float64)
        closed = torch.linalg.matrix_exp(-sign * (1 - math.exp(-t1)) * average) @ X0
        assert gap(closed / closed.norm(), target) < 1e-6
        assert gap(finals[-1], closed / closed.norm()) > 1e-6


@pytest.mark.parametrize("metric", METRICS)
def test_a_single_particle_takes_the_step_of_a_cluster(metric: str) -> None:
    flow = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(D0), sign=-1), METRICS[metric])
    one = succeeded(jko.JKO(0.1).step(flow, cluster(1)))
    many = succeeded(jko.JKO(0.1).step(flow, cluster(7)))
    assert gap(many.measure.points, one.measure.points.expand(7, 3)) < 1e-9
    assert gap(one.measure.points[0], X0) > 1e-3


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sign", SIGNS)
def test_one_particle_minimizes_the_function_of_a_point(metric: str, sign: int) -> None:
    """n = 1: s/2 mean_h e^{<x, D_h x>} + b d^2/(2 tau) on the sphere, by brute force in two tangent coordinates."""
    tau = 0.1
    flow = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(D0), sign=sign), METRICS[metric])
    step = succeeded(jko.JKO(tau).step(flow, cluster(1)))
    sphere = jko.Sphere()
    basis = sphere.tangent_basis(X0)
    m = torch.exp(torch.einsum("i,hij,j->h", X0, D0, X0))
    groups = [D0] if metric != "headwise" else list(D0[:, None])
    b = {"w2": torch.ones(1), "weighted": 1 / m.reciprocal().mean()[None], "headwise": m}[metric].double()
    moves = []
    for group, mobility in zip(groups, b, strict=True):

        def objective(c: Tensor, group: Tensor = group, mobility: Tensor = mobility) -> Tensor:
            x = sphere.exp(X0, basis @ c)
            energy = torch.exp(torch.einsum("i,hij,j->h", x, group, x)).mean() / 2
            return sign * energy + mobility * c.square().sum() / (2 * tau)

        c = torch.zeros(2, dtype=torch.float64)
        for _ in range(30):
            gradient = torch.autograd.functional.jacobian(objective, c)
            c = c - torch.linalg.solve(torch.autograd.functional.hessian(objective, c), gradient)
        assert float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(objective, c)).min()) > 0
        moves.append(basis @ c)
    assert gap(step.measure.points[0], sphere.exp(X0, torch.stack(moves).mean(0))) < 1e-8
