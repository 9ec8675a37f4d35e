"""Euclidean space R^d."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch

from jko.checks import check_finite
from jko.errors import InvalidInput
from jko.manifolds.base import AbstractManifold, normal_points
from jko.numerics import row_sum
from jko.typing import Float, Tensor

__all__ = ["Euclidean"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Euclidean(AbstractManifold):
    """R^d with its inner product: Exp_y(xi) = y + xi."""

    @property
    def injectivity_radius(self) -> float:
        """inf: straight lines are always the only shortest ones."""
        return math.inf

    def dimension(self, d: int) -> int:
        """Return d."""
        return d

    def check(self, points: Tensor, name: str = "points") -> None:
        """Refuse entries that are not finite."""
        if points.ndim == 0 or points.shape[-1] == 0:
            raise InvalidInput(f"{name} of shape {tuple(points.shape)} have no coordinates; the last axis holds them")
        check_finite(points, name)

    def squared_distance(
        self, x: Float[Tensor, "*#batch d"], y: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch"]:
        """Return |x - y|^2."""
        # Differences, not |x|^2 + |y|^2 - 2 <x, y>: that cancels for close points far from the origin.
        return row_sum((x - y).square())

    def exp(self, y: Float[Tensor, "*#batch d"], xi: Float[Tensor, "*#batch d"]) -> Float[Tensor, "*#batch d"]:
        """Return y + xi."""
        return y + xi

    def exp_differential(
        self, y: Float[Tensor, "*#batch d"], xi: Float[Tensor, "*#batch d"], eta: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return eta."""
        return _expand(eta, y, xi)

    def exp_adjoint(
        self, y: Float[Tensor, "*#batch d"], xi: Float[Tensor, "*#batch d"], g: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return g."""
        return _expand(g, y, xi)

    def exp_adjoint_derivative(
        self,
        y: Float[Tensor, "*#batch d"],
        xi: Float[Tensor, "*#batch d"],
        g: Float[Tensor, "*#batch d"],
        eta: Float[Tensor, "*#batch d"],
    ) -> Float[Tensor, "*#batch d"]:
        """Return 0."""
        return torch.zeros_like(_expand(eta, y, xi, g))

    def log(self, y: Float[Tensor, "*#batch d"], x: Float[Tensor, "*#batch d"]) -> Float[Tensor, "*#batch d"]:
        """Return x - y."""
        return x - y

    def project_point(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Return z."""
        return z

    def project_vector(
        self, x: Float[Tensor, "*#batch d"], v: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return v."""
        return _expand(v, x)

    def transport(
        self, y: Float[Tensor, "*#batch d"], x: Float[Tensor, "*#batch d"], v: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return v."""
        return _expand(v, y, x)

    def tangent_basis(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d k"]:
        """Return the unit matrix."""
        d = x.shape[-1]
        return torch.eye(d, dtype=x.dtype, device=x.device).expand(*x.shape, d)

    def random_point(
        self,
        shape: tuple[int, ...],
        d: int,
        seed: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "*shape d"]:
        """Return standard normal points."""
        return normal_points(shape, d, seed).to(dtype=dtype, device=device)


def _expand(v: Tensor, *others: Tensor) -> Tensor:
    expanded: Tensor = torch.broadcast_tensors(v, *others)[0]
    return expanded
