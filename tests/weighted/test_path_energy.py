"""The energy of a path and its gradient against the formula and its derivative."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from jko.manifolds import AbstractManifold, Euclidean, Sphere
from jko.weighted import path_energy as module
from jko.weighted.path_energy import PathEnergy
from tests.oracles.attention import assert_close, tangent
from tests.oracles.weighted import F64, clouds, dirichlet, path_energy, random_heads

THETA = torch.tensor([0.2, 0.5, 0.3], dtype=F64)
every_manifold = pytest.mark.parametrize("manifold", [Sphere(), Euclidean()], ids=["sphere", "euclidean"])


def case(manifold: AbstractManifold, n: int = 4, S: int = 5, d: int = 3) -> tuple[Tensor, PathEnergy]:
    path = clouds(S + 1, n, d, seed=0)
    if isinstance(manifold, Euclidean):
        path = 0.7 * path
    D = random_heads(3 * S, d, seed=1).reshape(S, 3, d, d)
    return path, PathEnergy(dirichlet(n, 0), D, THETA, manifold)


@every_manifold
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("n", [1, 4])
def test_value_and_gradient(manifold: AbstractManifold, fixed: bool, n: int) -> None:
    path, energy = case(manifold, n)
    sphere = isinstance(manifold, Sphere)
    D = energy.D[:1].expand_as(energy.D) if fixed else energy.D
    if fixed:
        energy = PathEnergy(energy.weights, energy.D[:1], THETA, manifold)
    actual = energy.evaluate(path)
    leaf = path.clone().requires_grad_()
    expected = path_energy(leaf, energy.weights, D, THETA, sphere=sphere)
    (gradient,) = torch.autograd.grad(expected, leaf)
    assert_close(actual.value, expected, 1e-13)
    inner, slopes = path[1:-1], (actual.gradient, gradient[1:-1])
    # The formula of the test is extended off the sphere in another way.
    tangents = [tangent(inner, g) if sphere else g for g in slopes]
    assert_close(tangents[0], tangents[1], 1e-12)
    lengths = manifold.squared_distance(path[1:], path[:-1]).sqrt()
    assert_close(actual.longest, lengths.max(), 1e-13)


@every_manifold
def test_blocks_change_nothing(manifold: AbstractManifold, monkeypatch: pytest.MonkeyPatch) -> None:
    path, energy = case(manifold)
    whole = energy.evaluate(path)
    monkeypatch.setattr(module, "_BLOCK", 2 * 3 * 4 * 4)
    parts = energy.evaluate(path)
    assert_close(parts.value, whole.value, 1e-15)
    assert_close(parts.gradient, whole.gradient, 1e-14)
    assert_close(parts.mobility, whole.mobility, 1e-15)
    assert parts.longest == whole.longest


def test_a_path_at_rest_has_no_energy_and_no_gradient() -> None:
    path, energy = case(Sphere())
    rest = energy.evaluate(path[:1].expand_as(path))
    assert rest.value == 0.0
    assert float(rest.gradient.abs().max()) == 0.0


@pytest.mark.parametrize("size", [1000.0, -1000.0])
def test_mobilities_outside_the_range_of_floats_are_not_finite(size: float) -> None:
    path, energy = case(Euclidean(), n=1)
    D = torch.cat([energy.D[:, :2], size * torch.eye(3, dtype=F64).expand(5, 1, 3, 3)], 1)
    value = PathEnergy(energy.weights, D, THETA, Euclidean()).evaluate(2 * path).value
    assert math.isinf(value)
