"""Small displacements and many segments: measured orders, two-sided."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from jko import weighted
from jko.manifolds import AbstractManifold, Euclidean, Sphere
from jko.status import Status
from tests.oracles.attention import tangent
from tests.oracles.orders import fit
from tests.oracles.weighted import F64, clouds, dirichlet, random_heads

CASES = [(1, 1, True), (1, 4, True), (3, 4, True), (3, 4, False)]
SIZES = (0.16, 0.08, 0.04, 0.02)


def setting(H: int, n: int, sphere: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, AbstractManifold]:
    x, direction = clouds(2, n, 3, seed=3)
    direction = tangent(x, direction) if sphere else direction
    direction = direction / direction.norm(dim=-1).max()
    theta = torch.tensor([0.2, 0.5, 0.3], dtype=F64) if H == 3 else None
    manifold = Sphere() if sphere else Euclidean()
    return 0.8 * x if not sphere else x, direction, random_heads(H, 3, seed=4), dirichlet(n, 3), theta, manifold


@pytest.mark.parametrize(("H", "n", "sphere"), CASES)
def test_frozen_and_midpoint_mobilities(H: int, n: int, sphere: bool) -> None:
    x, direction, D, w, theta, manifold = setting(H, n, sphere)
    frozen, midpoint = [], []
    for size in SIZES:
        xi = size * direction
        result = weighted.weighted_distance(
            x, manifold.exp(x, xi), D, w, head_weights=theta, segments=8, manifold=manifold, rtol=1e-9
        )
        assert result.status is Status.SUCCESS
        for errors, where in ((frozen, x), (midpoint, manifold.exp(x, xi / 2))):
            b = weighted.effective_mobility(weighted.head_mobility(where, D, w), theta)
            errors.append(abs(float((w * b * xi.square().sum(-1)).sum()) - result.value**2))
    slope, quality = fit(SIZES, frozen)
    assert abs(slope - 3) <= 0.15, (slope, frozen)
    assert quality >= 0.999
    slope, quality = fit(SIZES, midpoint)
    assert abs(slope - 4) <= 0.2, (slope, midpoint)
    assert quality >= 0.999


def test_the_third_order_term_is_the_derivative_of_the_mobility() -> None:
    x, direction, D, w, theta, manifold = setting(3, 4, True)

    def cost(size: float, at: float) -> float:
        b = weighted.effective_mobility(weighted.head_mobility(manifold.exp(x, at * direction), D, w), theta)
        return float((w * b * (size * direction).square().sum(-1)).sum())

    size, h = 0.02, 1e-4
    expected = size / 2 * (cost(size, h) - cost(size, -h)) / (2 * h)
    result = weighted.weighted_distance(x, manifold.exp(x, size * direction), D, w, head_weights=theta, segments=4)
    assert result.value**2 - cost(size, 0.0) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("H", "n", "sphere"), CASES)
@pytest.mark.parametrize("moves", [False, True])
def test_second_order_in_the_segments(H: int, n: int, sphere: bool, moves: bool) -> None:
    x, direction, D, w, theta, manifold = setting(H, n, sphere)
    other = random_heads(H, 3, seed=5)
    path = (lambda s: (1 - s) * D + s * other) if moves else D
    z = manifold.exp(x, 1.2 * direction)
    segments = (6, 12, 24, 48)
    results = [
        weighted.weighted_distance(x, z, path, w, head_weights=theta, segments=S, manifold=manifold) for S in segments
    ]
    assert all(result.status is Status.SUCCESS for result in results)
    changes = np.abs(np.diff([result.value for result in results]))
    slope, quality = fit([1 / S for S in segments[:-1]], changes)
    assert abs(slope - 2) <= 0.2, (slope, changes)
    assert quality >= 0.99
