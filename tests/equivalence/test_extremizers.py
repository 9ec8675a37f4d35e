"""Extremizers of the energy for symmetric heads: the threshold of antipodal pairs, the four-point minimizer."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

import jko
from jko.schemes import AbstractScheme
from tests.schemes.problems import METRICS, attention, gap

SPHERE = jko.Sphere()


def head(*diagonal: float) -> Tensor:
    return torch.diag(torch.tensor(diagonal, dtype=torch.float64))[None]


def hessian(D: Tensor, points: Tensor) -> Tensor:
    """Riemannian Hessian of the energy E in all particles, per unit mass, on an orthonormal tangent basis."""
    flow, measure = attention(D, "w2"), jko.ParticleMeasure(points)
    gradient = flow.energy.gradient(measure, 0.0)
    basis = SPHERE.tangent_basis(points)
    n, _, k = basis.shape
    columns = []
    for i in range(n):
        for a in range(k):
            direction = torch.zeros_like(points)
            direction[i] = basis[i, :, a]
            # The second fundamental form of the sphere: the ambient Hessian minus <x, grad> Id.
            moved = flow.energy.hessian_product(measure, 0.0, direction)
            moved = moved - (points * gradient).sum(-1, keepdim=True) * direction
            columns.append(torch.einsum("idk,id->ik", basis, moved).reshape(-1))
    return torch.stack(columns, -1)


def pair(d: int) -> Tensor:
    x = torch.zeros(2, d, dtype=torch.float64)
    x[0, 0], x[1, 0] = 1.0, -1.0
    return x


def largest(first: float, *others: float) -> float:
    """Largest eigenvalue at the antipodal pair on the first axis."""
    matrix = hessian(head(first, *others), pair(1 + len(others)))
    assert gap(matrix, matrix.mT) < 1e-13
    return float(torch.linalg.eigvalsh(matrix).max())


@pytest.mark.parametrize("first", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("d", [2, 3])
def test_an_antipodal_pair_is_a_local_maximum_below_the_threshold(first: float, d: int) -> None:
    # lambda_2 < lambda_1 tanh(lambda_1); the further eigenvalue of d = 3 is smaller and does not matter.
    rest = (0.1 * first,) * (d - 2)
    threshold = first * math.tanh(first)
    assert largest(first, threshold * (1 - 1e-6), *rest) < 0 < largest(first, threshold * (1 + 1e-6), *rest)
    root = brentq(lambda second: largest(first, second, *rest), 0.2 * threshold, 2 * first, xtol=1e-14, rtol=1e-13)
    assert root == pytest.approx(threshold, rel=1e-11)


def test_stated_windows() -> None:
    # D = diag(d, 1): the pair on the second axis for d < tanh 1, that on the first for d tanh d > 1.
    assert brentq(lambda d: largest(1.0, d), 0.1, 2.0, xtol=1e-13) == pytest.approx(0.7616, abs=5e-5)
    assert brentq(lambda d: largest(d, 1.0), 0.5, 2.0, xtol=1e-13) == pytest.approx(1.1997, abs=5e-5)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_every_metric_has_the_same_threshold(metric: str, factor: float) -> None:
    # Ascent (sign = -1) from next to the pair: it returns below the threshold and leaves above.
    second = factor * math.tanh(1.0)
    x = pair(2)
    away = torch.stack([x[0], SPHERE.exp(x[1], torch.tensor([0.0, 1e-3], dtype=torch.float64))])
    run = jko.solve(attention(head(1.0, second), metric, -1), jko.ParticleMeasure(away), jko.RK4(0.05), t1=3.0)
    # The common rotation relaxes on its own; the two sides of the pair tell.
    opening = [float((p[0] + p[1]).norm()) for p in (run.points[0], run.points[-1])]
    assert (opening[1] < opening[0]) == (factor < 1)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_the_linear_flow_has_the_inertia_of_the_hessian(metric: str, factor: float) -> None:
    D, x, e = head(1.0, factor * math.tanh(1.0)), pair(2), 1e-6
    flow, basis = attention(D, metric, -1), SPHERE.tangent_basis(x)[..., 0]
    jacobian = torch.zeros(2, 2, dtype=torch.float64)
    for i in range(2):
        shift = torch.zeros_like(x)
        shift[i] = e * basis[i]
        ends = [flow.velocity(jko.ParticleMeasure(SPHERE.exp(x, s * shift)), 0.0) for s in (1, -1)]
        jacobian[:, i] = ((ends[0] - ends[1]) * basis).sum(-1) / (2 * e)
    growing = int((torch.linalg.eigvals(jacobian).real > 0).sum())
    assert growing == int((torch.linalg.eigvalsh(hessian(D, x)) > 0).sum()) == (0 if factor < 1 else 1)


def test_clusters_against_pairs() -> None:
    # D = diag(-1, d2): one cluster e^d2 against an antipodal pair cosh 1 on the other axis; E without the 1/2.
    def energy(points: list[list[float]], second: float) -> float:
        return 2 * float(attention(head(-1.0, second)).energy.value(jko.ParticleMeasure(points), 0.0))

    def difference(second: float) -> float:
        return energy([[0.0, 1.0]], second) - energy([[1.0, 0.0], [-1.0, 0.0]], second)

    assert brentq(difference, 0.0, 1.0, xtol=1e-14) == pytest.approx(0.43378, abs=5e-6)
    assert energy([[1.0, 0.0], [-1.0, 0.0]], 0.2) == pytest.approx(math.cosh(1), rel=1e-15)


FOUR = [(0.5, 0.19371, 1.10274), (2.0, 0.82377, 1.44421), (9.0, 0.99062, 1.53759)]


def four(share: float) -> Tensor:
    a, b = math.sqrt(share), math.sqrt(1 - share)
    return torch.tensor([[a, b], [a, -b], [-a, b], [-a, -b]], dtype=torch.float64)


def balance(second: float) -> Callable[[float], float]:
    return lambda s: math.tanh(s) - second * math.tanh(second * (1 - s))


@pytest.mark.parametrize(("second", "share", "value"), FOUR)
@pytest.mark.parametrize("metric", METRICS)
def test_four_points_rest_at_the_stated_share(metric: str, second: float, share: float, value: float) -> None:
    root = brentq(balance(second), 0.0, 1.0, xtol=1e-15)
    assert root == pytest.approx(share, abs=6e-6)
    flow, at = attention(head(1.0, second), metric), jko.ParticleMeasure(four(root))
    energy = 2 * float(flow.energy.value(at, 0.0))
    assert energy == pytest.approx(math.cosh(root) * math.cosh(second * (1 - root)), rel=1e-14)
    assert energy == pytest.approx(value, abs=6e-6)
    assert float(flow.velocity(at, 0.0).abs().max()) < 1e-13
    for other in (root * 0.99, root * 1.005):
        moved = jko.ParticleMeasure(four(other))
        assert 2 * float(flow.energy.value(moved, 0.0)) > energy
        assert float(flow.velocity(moved, 0.0).abs().max()) > 1e-4


@pytest.mark.parametrize(("second", "share", "t1"), [(0.5, 0.19371, 45.0), (2.0, 0.82377, 16.0), (9.0, 0.99062, 12.0)])
@pytest.mark.parametrize("scheme", [jko.RK4(0.1), jko.ExponentialEuler(0.05), jko.JKO(0.2)])
def test_descent_finds_the_share(scheme: AbstractScheme, second: float, share: float, t1: float) -> None:
    run = jko.solve(
        attention(head(1.0, second)), jko.ParticleMeasure(four(0.7)), scheme, t1=t1, save=jko.Save(every=1000)
    )
    squares = run.points[-1].square()
    assert gap(squares[:, 0], torch.full((4,), brentq(balance(second), 0.0, 1.0), dtype=torch.float64)) < 1e-6
    assert gap(squares[:, 0], torch.full((4,), share, dtype=torch.float64)) < 1e-5
