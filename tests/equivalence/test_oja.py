"""A collapsed cloud under softmax attention is Oja's flow x' = -sign P_x Dbar x, symmetric heads or not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import jko
from tests.oracles.orders import assert_order
from tests.schemes.problems import SIGNS, gap

X0 = torch.tensor([0.6, -0.48, 0.64], dtype=torch.float64)
THETA = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
ROTATION = torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.5], [0.0, -0.5, 0.0]], dtype=torch.float64)
D0 = torch.from_numpy(np.random.default_rng(5).standard_normal((3, 3, 3))) + ROTATION
MEAN = torch.einsum("h,hij->ij", THETA, D0)
IDENTITY = torch.eye(3, dtype=torch.float64)

SCHEMES = {"euler": (jko.ExplicitEuler, 1), "exponential": (jko.ExponentialEuler, 1), "rk4": (jko.RK4, 4)}


def cluster(n: int) -> jko.ParticleMeasure:
    weights = torch.arange(1.0, n + 1.0, dtype=torch.float64)
    return jko.ParticleMeasure(X0.expand(n, 3), weights / weights.sum())


def along(generator: Tensor) -> Tensor:
    x = torch.linalg.matrix_exp(generator) @ X0
    return x / x.norm()


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("n", [1, 4])
def test_velocity(n: int, sign: int) -> None:
    flow = jko.VelocityFlow(jko.AttentionField(jko.ConstantHeads(D0, THETA), sign=sign))
    force = MEAN @ X0
    expected = -sign * (force - (X0 @ force) * X0)
    assert gap(flow.velocity(cluster(n), 0.0), expected.expand(n, 3)) < 1e-14
    # The head-wise step has the symmetric part in its place.
    energy = jko.AttentionEnergy(jko.ConstantHeads(D0, THETA), sign=sign)
    headwise = jko.GradientFlow(energy, jko.HeadwiseWasserstein()).velocity(cluster(n), 0.0)
    force = (MEAN + MEAN.mT) / 2 @ X0
    assert gap(headwise, (-sign * (force - (X0 @ force) * X0)).expand(n, 3)) < 1e-14
    assert gap(headwise, expected.expand(n, 3)) > 0.1


def test_values_of_their_own() -> None:
    # Where all particles coincide the attention weights do not matter.
    V = D0.flip(0) - 0.3
    flow = jko.VelocityFlow(jko.AttentionField(jko.ConstantHeads(D0, THETA), jko.ConstantHeads(V)))
    force = torch.einsum("h,hij,j->i", THETA, V, X0)
    assert gap(flow.velocity(cluster(3), 0.0), (-(force - (X0 @ force) * X0)).expand(3, 3)) < 1e-14


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("name", SCHEMES)
def test_constant_heads_follow_the_matrix_exponential(name: str, sign: int) -> None:
    kind, order = SCHEMES[name]
    t1, steps = 1.0, (16, 32, 64, 128)
    flow = jko.VelocityFlow(jko.AttentionField(jko.ConstantHeads(D0, THETA), sign=sign))
    target, errors = along(-sign * t1 * MEAN), []
    assert gap(target, along(-sign * t1 * (MEAN + MEAN.mT) / 2)) > 0.05
    for count in steps:
        x = jko.solve(flow, cluster(3), kind(t1 / count), t1=t1).points[-1]
        assert gap(x, x[:1].expand(3, 3)) < 1e-14
        errors.append(float((x[0] - target).norm()))
    assert_order([t1 / count for count in steps], errors, order)


@pytest.mark.parametrize("sign", SIGNS)
def test_drift_without_noise(sign: int) -> None:
    # D(t) - I = e^-t (D_0 - I), and all D(t) commute. The path is linear between its nodes: an error of O(dt^2).
    t1, grids, errors = 1.0, (8, 16, 32, 64), []
    target = along(-sign * (1 - math.exp(-t1)) * (MEAN - IDENTITY))
    for count in grids:
        heads = jko.OrnsteinUhlenbeckHeads(D0, sigma2=0.0, dt=t1 / count, t1=t1, exact=True, head_weights=THETA)
        flow = jko.VelocityFlow(jko.AttentionField(heads, sign=sign))
        x = jko.solve(flow, cluster(2), jko.RK4(t1 / count), t1=t1).points[-1, 0]
        errors.append(float((x - target).norm()))
    assert_order([t1 / count for count in grids], errors, 2)
    assert errors[-1] < 1e-4
    assert gap(target, X0) > 0.1
