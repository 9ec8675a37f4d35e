"""The dynamic distance against closed forms and against another minimizer."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.integrate import quad, solve_bvp
from scipy.optimize import linear_sum_assignment, minimize
from torch import Tensor

from jko import weighted
from jko.heads import ConstantHeads, TabulatedHeads
from jko.manifolds import Euclidean, Sphere
from jko.status import Status
from jko.weighted import WeightedDistance
from tests.oracles.attention import assert_close
from tests.oracles.weighted import F64, clouds, dirichlet, path_energy, random_heads

THETA = torch.tensor([0.2, 0.5, 0.3], dtype=F64)


def solved(result: WeightedDistance) -> float:
    assert result.status is Status.SUCCESS, (result.status, result.residual)
    assert result.residual <= 1e-8
    assert result.curvature > -1e-5
    return result.value


def circle(angle: float) -> Tensor:
    return torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=F64)


# no heads to speak of, constant mobilities


@pytest.mark.parametrize("n", [1, 2, 12])
@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize("sphere", [True, False])
def test_mobility_one_is_the_plain_distance(n: int, H: int, sphere: bool) -> None:
    x, z = clouds(2, n, 3, seed=n)
    manifold = Sphere() if sphere else Euclidean()
    cosines = (x @ z.mT).numpy()
    cost = np.arccos(cosines) ** 2 if sphere else 2 - 2 * cosines
    rows, columns = linear_sum_assignment(cost)
    result = weighted.weighted_distance(x, z, torch.zeros(H, 3, 3, dtype=F64), segments=5, manifold=manifold)
    assert solved(result) == pytest.approx(math.sqrt(cost[rows, columns].mean()), rel=1e-12)
    assert result.labels.tolist() == columns.tolist()
    assert_close(result.path[0], x, 1e-14)
    assert_close(result.path[-1], z[result.labels], 1e-14)
    # Geodesics at constant speed.
    lengths = manifold.squared_distance(result.path[1:], result.path[:-1])
    assert_close(lengths, lengths[:1].expand_as(lengths), 1e-7)


@pytest.mark.parametrize("segments", [1, 2, 7])
def test_constant_mobility_is_a_factor(segments: int) -> None:
    x, z = clouds(2, 1, 3, seed=1)
    L = float(Sphere().squared_distance(x, z).sqrt())
    betas = torch.tensor([1.0, -2.0, 0.5], dtype=F64)
    D = betas[:, None, None] * torch.eye(3, dtype=F64)
    b = 1 / float((THETA * (-betas).exp()).sum())
    result = weighted.weighted_distance(x, z, D, head_weights=THETA, segments=segments)
    assert solved(result) == pytest.approx(math.sqrt(b) * L, rel=1e-12)
    one = weighted.weighted_distance(x, z, D[:1], segments=segments)
    assert solved(one) == pytest.approx(math.exp(0.5) * L, rel=1e-12)


def test_antisymmetric_heads_move_one_particle_for_free() -> None:
    x, z = clouds(2, 1, 4, seed=2)
    D = random_heads(1, 4, seed=3, scale=2.0)
    result = weighted.weighted_distance(x, z, D - D.mT)
    assert solved(result) == pytest.approx(float(Sphere().squared_distance(x, z).sqrt()), rel=1e-12)


def test_nothing_moves() -> None:
    (x,) = clouds(1, 4, 3, seed=3)
    result = weighted.weighted_distance(x, x, random_heads(2, 3, seed=3))
    assert result.value < 1e-15
    assert result.residual == 0.0
    assert result.status is Status.SUCCESS
    # The same measure with other labels.
    swapped = weighted.weighted_distance(x, x[[2, 0, 3, 1]], random_heads(2, 3, seed=3))
    assert swapped.value < 1e-15
    assert swapped.labels.tolist() == [1, 3, 0, 2]


# one particle: lengths on a curve


def on_the_line(a: float) -> Callable[[float], float]:
    return lambda x: math.exp(a * x * x / 2)


@pytest.mark.parametrize("a", [0.8, -0.8])
def test_one_particle_on_the_line(a: float) -> None:
    exact, _ = quad(on_the_line(a), -0.3, 1.4, epsabs=1e-13)
    x, z = torch.tensor([[-0.3]], dtype=F64), torch.tensor([[1.4]], dtype=F64)
    errors = []
    for S in (32, 64):
        result = weighted.weighted_distance(x, z, torch.tensor([[[a]]]), segments=S, manifold=Euclidean())
        errors.append(solved(result) - exact)
    assert abs(errors[0]) < 1e-3 * exact
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.02)


def test_one_particle_on_the_circle_with_several_heads() -> None:
    D = random_heads(3, 2, seed=5)

    def speed(angle: float) -> float:
        x = circle(angle)[0]
        m = (x @ D @ x).exp()
        return float((THETA / m).sum() ** -0.5)

    exact, _ = quad(speed, 0.2, 2.0, epsabs=1e-12)
    results = [
        weighted.weighted_distance(circle(0.2), circle(2.0), D, head_weights=THETA, segments=S) for S in (24, 48)
    ]
    errors = [solved(result) - exact for result in results]
    assert abs(errors[0]) < 1e-2 * exact
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    # In this metric the speed is constant.
    middle = results[1].path[:-1] + results[1].path[1:]
    angles = torch.atan2(middle[:, 0, 1], middle[:, 0, 0])
    steps = Sphere().squared_distance(results[1].path[1:, 0], results[1].path[:-1, 0]).sqrt()
    speeds = steps * torch.tensor([speed(float(angle)) for angle in angles])
    assert_close(speeds, speeds.mean().expand_as(speeds), 2e-3)


# heads that move


def test_mobility_of_time_alone() -> None:
    x, z = clouds(2, 1, 3, seed=6)
    L2 = float(Sphere().squared_distance(x, z))
    identity = torch.eye(3, dtype=F64)[None]
    S = 10
    result = weighted.weighted_distance(x, z, lambda s: (2 * s - 0.5) * identity, segments=S)
    discrete = np.exp(-(2 * (np.arange(S) + 0.5) / S - 0.5)).mean()
    assert solved(result) == pytest.approx(math.sqrt(L2 / discrete), rel=1e-12)
    # Slow where it is expensive.
    steps = Sphere().squared_distance(result.path[1:], result.path[:-1]).sqrt()[:, 0]
    assert_close(steps / steps[0], torch.from_numpy(np.exp(-2 * np.arange(S) / S)), 1e-7)


def test_heads_functions_and_tables_are_the_same_path() -> None:
    x, z = clouds(2, 3, 3, seed=7)
    D0, D1 = random_heads(2, 3, seed=8), random_heads(2, 3, seed=9)
    theta = torch.tensor([0.3, 0.7], dtype=F64)
    table = TabulatedHeads([0.0, 1.0], torch.stack([D0, D1]), theta)
    plain = weighted.weighted_distance(x, z, lambda s: (1 - s) * D0 + s * D1, head_weights=theta, segments=4)
    assert_close(solved(weighted.weighted_distance(x, z, table, segments=4)), solved(plain), 1e-14)
    fixed = weighted.weighted_distance(x, z, D0, segments=4)
    assert abs(fixed.value - plain.value) > 1e-3 * plain.value
    for same in (ConstantHeads(D0), lambda s: D0, D0.numpy(), D0.tolist()):
        assert_close(weighted.weighted_distance(x, z, same, segments=4).value, fixed.value, 1e-14)


def test_moving_heads_on_the_circle_against_the_equation_of_the_geodesic() -> None:
    c = 1.0

    def motion(s: np.ndarray, y: np.ndarray) -> np.ndarray:
        # log m = c (1 - 2 s) cos 2 phi; d/ds (2 m phi') = phi'^2 dm/dphi.
        log_slope = -2 * c * (1 - 2 * s) * np.sin(2 * y[0])
        return np.stack([y[1], -y[1] * (-2 * c * np.cos(2 * y[0]) + log_slope * y[1] / 2)])

    def D(s: float) -> Tensor:
        return c * (1 - 2 * s) * torch.diag(torch.tensor([1.0, -1.0], dtype=F64))[None]

    results = [weighted.weighted_distance(circle(0.0), circle(math.pi / 2), D, segments=S) for S in (24, 48)]
    nodes, path = np.linspace(0, 1, 49), results[1].path[:, 0].numpy()
    start = np.arctan2(path[:, 1], path[:, 0])
    ends = (0.0, np.pi / 2)
    found = solve_bvp(
        motion,
        lambda a, b: np.array([a[0] - ends[0], b[0] - ends[1]]),
        nodes,
        np.stack([start, np.gradient(start, nodes)]),
        tol=1e-8,
        max_nodes=10_000,
    )
    assert found.success
    fine = np.linspace(0, 1, 20001)
    phi, speed = found.sol(fine)
    exact = math.sqrt(np.trapezoid(np.exp(c * (1 - 2 * fine) * np.cos(2 * phi)) * speed**2, fine))

    errors = [solved(result) - exact for result in results]
    assert abs(errors[0]) < 1e-3 * exact
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)


# several particles: another minimizer


@pytest.mark.parametrize("sphere", [True, False])
@pytest.mark.parametrize("fixed", [True, False])
def test_several_particles_against_another_minimizer(sphere: bool, fixed: bool) -> None:
    n, S, d = 3, 4, 3
    x, z = clouds(2, n, d, seed=10) * (1 if sphere else 0.7)
    w = dirichlet(n, 11)
    D = random_heads(3 * S, d, seed=12).reshape(S, 3, d, d)
    D = D[:1].expand_as(D) if fixed else D
    result = weighted.weighted_distance(
        x,
        z,
        D[0] if fixed else lambda s: D[int(s * S)],
        w,
        head_weights=THETA,
        segments=S,
        manifold=Sphere() if sphere else Euclidean(),
    )

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(flat).reshape(S - 1, n, d).requires_grad_()
        inner = leaf / leaf.norm(dim=-1, keepdim=True) if sphere else leaf
        value = path_energy(torch.cat([x[None], inner, z[None]]), w, D, THETA, sphere=sphere)
        return float(value.detach()), torch.autograd.grad(value, leaf)[0].numpy().ravel()

    s = torch.linspace(0, 1, S + 1, dtype=F64)[1:-1, None, None]
    start = ((1 - s) * x + s * z).numpy().ravel()
    other = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    assert solved(result) == pytest.approx(math.sqrt(other.fun), rel=1e-9)
    assert objective(start)[0] > other.fun * (1 + 1e-4)
    energy = path_energy(result.path, w, D, THETA, sphere=sphere)
    assert_close(energy.sqrt(), result.value, 1e-12)
