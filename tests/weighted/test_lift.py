"""Lemma 3.8 by direct minimization: the reduced cost is the least cost of head velocities with a given average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from jko import weighted
from tests.oracles.attention import assert_close
from tests.oracles.weighted import F64, clouds, dirichlet, random_heads

THETAS = [None, torch.tensor([0.2, 0.5, 0.3], dtype=F64), torch.tensor([0.4, 0.0, 0.6], dtype=F64)]
every_theta = pytest.mark.parametrize("theta", THETAS)


def setting(theta: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mobilities of a cloud, a velocity, masses, and the weights of the heads."""
    x, v = clouds(2, 4, 3, seed=0)
    w = dirichlet(4, 0)
    m = weighted.head_mobility(x, random_heads(3, 3, seed=0), w)
    return m, v, w, torch.full((3,), 1 / 3, dtype=F64) if theta is None else theta


def lifted_cost(lift: Tensor, m: Tensor, w: Tensor, theta: Tensor) -> Tensor:
    return torch.einsum("h,hi,i,hid->", theta, m, w, lift.square())


@every_theta
def test_the_linear_system_of_the_minimizer(theta: Tensor | None) -> None:
    """Stationarity 2 theta_h w m_h v_h = theta_h lambda and sum_h theta_h v_h = v, solved particle by particle."""
    m, v, w, t = setting(theta)
    active = t > 0
    H = int(active.sum())
    lift = weighted.horizontal_lift(v, m, theta)
    for i in range(4):
        system = torch.zeros(H + 1, H + 1, dtype=F64)
        system[:H, :H] = torch.diag(2 * t[active] * w[i] * m[active, i])
        system[:H, H] = -t[active]
        system[H, :H] = t[active]
        right = torch.zeros(H + 1, 3, dtype=F64)
        right[H] = v[i]
        assert_close(lift[active, i], torch.linalg.solve(system, right)[:H], 1e-12)
    assert_close(lifted_cost(lift, m, w, t), weighted.metric_speed(v, m, w, theta) ** 2, 1e-13)


@every_theta
def test_a_minimizer_that_knows_no_multipliers(theta: Tensor | None) -> None:
    """The last active head takes what the others leave of the velocity; BFGS over the others."""
    m, v, w, t = setting(theta)
    active = [h for h in range(3) if t[h] > 0]
    last = active[-1]
    free = active[:-1]

    def spread(flat: Tensor) -> Tensor:
        parts = dict(zip(free, flat.reshape(len(free), 4, 3), strict=True))
        rest = (v - sum(t[h] * parts[h] for h in free)) / t[last]
        return torch.stack([parts[h] if h in parts else rest if h == last else 0 * v for h in range(3)])

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(flat).requires_grad_()
        value = lifted_cost(spread(leaf), m, w, t)
        return float(value.detach()), torch.autograd.grad(value, leaf)[0].numpy()

    start = np.random.default_rng(0).standard_normal(len(free) * 12)
    found = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-10})
    reduced = weighted.metric_speed(v, m, w, theta) ** 2
    assert_close(found.fun, reduced, 1e-10)
    assert objective(start)[0] > 1.1 * float(reduced)
    lift = weighted.horizontal_lift(v, m, theta)
    assert_close(spread(torch.from_numpy(found.x))[active], lift[active], 1e-6)


@pytest.mark.parametrize("H", [1, 3])
def test_the_path_energy_is_the_least_lifted_one(H: int) -> None:
    """Eq. (29) along a path: the speeds of the path, lifted in the middle of every segment, have its energy."""
    x, z = clouds(2, 3, 3, seed=1)
    w, D = dirichlet(3, 1), random_heads(H, 3, seed=1)
    theta = torch.full((H,), 1 / H, dtype=F64)
    S = 5
    result = weighted.weighted_distance(x, z, D, w, segments=S)
    total = 0.0
    for k in range(S):
        middle = result.path[k] + result.path[k + 1]
        middle = middle / middle.norm(dim=-1, keepdim=True)
        chord = result.path[k + 1] - result.path[k]
        length = 2 * (chord.norm(dim=-1, keepdim=True) / 2).asin()
        speed = S * length * chord / chord.norm(dim=-1, keepdim=True)
        m = weighted.head_mobility(middle, D, w)
        total += float(lifted_cost(weighted.horizontal_lift(speed, m), m, w, theta)) / S
    assert total == pytest.approx(result.value**2, rel=1e-12)
