"""Clouds, costs of every kind, and derivatives by differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import jko
from jko.manifolds import AbstractManifold
from jko.transport import TransportProblem

MANIFOLDS = {"euclidean": jko.Euclidean(), "sphere": jko.Sphere()}
# Mobility at the sources only, at both sides with b held fixed, and with b moving with the targets.
COSTS = ("plain", "one-sided", "symmetric", "moving")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud(n: int, seed: int, manifold: str = "euclidean", d: int = 3) -> torch.Tensor:
    return MANIFOLDS[manifold].random_point((n,), d, seed)


def weights(n: int, seed: int) -> torch.Tensor:
    w = torch.rand(n, generator=generator(seed), dtype=torch.float64) + 0.1
    return w / w.sum()


def line(*points: float) -> torch.Tensor:
    return torch.tensor(points, dtype=torch.float64)[:, None]


def mobility(points: torch.Tensor) -> torch.Tensor:
    return 1.5 + torch.sin(points @ torch.linspace(0.5, 1.5, points.shape[1], dtype=points.dtype)) / 2


def mobility_gradient(points: torch.Tensor) -> torch.Tensor:
    direction = torch.linspace(0.5, 1.5, points.shape[1], dtype=points.dtype)
    return torch.cos(points @ direction)[:, None] * direction / 2


@dataclass(frozen=True)
class Case:
    """Measures y and x with a cost of one kind; `at` moves the targets, `measures` replaces anything."""

    y: torch.Tensor
    x: torch.Tensor
    a: torch.Tensor
    w: torch.Tensor
    manifold: AbstractManifold
    kind: str

    def problem(self, x: torch.Tensor | None = None, dtype: torch.dtype | None = None) -> TransportProblem:
        x = self.x if x is None else x
        source, target = jko.ParticleMeasure(self.y, self.a), jko.ParticleMeasure(x, self.w)
        both = self.kind in ("symmetric", "moving")
        # Without the gradient b stays what it was at the unmoved targets.
        fixed = mobility(x if self.kind == "moving" else self.x)
        return TransportProblem(
            source.to(dtype=dtype),
            target.to(dtype=dtype),
            self.manifold,
            mobility=None if self.kind == "plain" else mobility(self.y),
            target_mobility=fixed if both else None,
            target_mobility_gradient=mobility_gradient(x) if self.kind == "moving" else None,
        )


def case(manifold: str = "euclidean", kind: str = "plain", *, n: int = 7, m: int = 5, seed: int = 0) -> Case:
    return Case(
        cloud(n, seed, manifold),
        cloud(m, seed + 1, manifold),
        weights(n, seed + 2),
        weights(m, seed + 3),
        MANIFOLDS[manifold],
        kind,
    )


def slope_by_differences(
    value: Callable[[torch.Tensor], float],
    x: torch.Tensor,
    direction: torch.Tensor,
    manifold: AbstractManifold,
    h: float = 1e-4,
) -> float:
    """Derivative of a function of points along a tangent direction, from differences of fourth order."""
    ends = [value(manifold.exp(x, k * h * direction)) for k in (1, -1, 2, -2)]
    return (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * h)


def check_gradient(
    value: Callable[[torch.Tensor], float],
    x: torch.Tensor,
    gradient: torch.Tensor,
    manifold: AbstractManifold,
    rtol: float = 1e-7,
) -> None:
    """Assert that `gradient`, the derivative in all points, agrees with differences along random directions."""
    for seed in range(3):
        noise = torch.randn(x.shape, generator=generator(seed), dtype=x.dtype)
        direction = manifold.project_vector(x, noise)
        expected = slope_by_differences(value, x, direction, manifold)
        found = float((gradient * direction).sum())
        scale = float(torch.linalg.vector_norm(gradient) * torch.linalg.vector_norm(direction))
        assert abs(found - expected) <= rtol * max(scale, 1e-3), (found, expected)
    # Tangent: what is normal to the manifold would move the points off it.
    assert torch.allclose(manifold.project_vector(x, gradient), gradient, rtol=0, atol=1e-12)
