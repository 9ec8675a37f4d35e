"""Movements whose cost a transport gives: of a plan that is held fixed, or entropic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.manifolds import AbstractManifold
from jko.schemes.movement.base import AbstractMovement, Excess
from jko.schemes.movement.terms import AbstractTerm

__all__ = ["TransportMovement"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class TransportMovement(AbstractMovement):
    """T(x) of one group by a term, in the tangent spaces at the points of a chart.

    In R^d, with z_i the barycenter of the particles that y_i's mass comes from, the excess is a constant.

    Attributes:
        base: z, shape (m, d).
        mobility: b in the quadratic, shape (1, m).
        weights: weights of the new particles, shape (m,).
        term: T.
        manifold: the geometry of the quadratic.
        complete: whether the quadratic is all of T: every particle has one source.
        drift: see `AbstractMovement`.
        noise: see `AbstractMovement`.
    """

    base: Tensor
    mobility: Tensor
    weights: Tensor
    term: AbstractTerm
    manifold: AbstractManifold
    complete: bool = False
    drift: Tensor | None = None
    noise: float = 0.0

    def members(self, groups: list[int]) -> TransportMovement:
        if groups != [0]:
            raise InvalidInput(f"a transport term has one group of particles, asked for {groups}")
        return self

    def excess(self, points: Tensor) -> Excess | None:
        if self.complete:
            return None
        term = self.term.at(points[0])
        with torch.enable_grad():
            x = points[0].detach().requires_grad_()
            squares = self.mobility[0] * self.manifold.squared_distance(x, self.base)
            (gradient,) = torch.autograd.grad(squares.sum(), x)
        quadratic = float((self.weights * squares.detach()).to(torch.float64).sum())
        return Excess([term.value - quadratic], (term.gradient - gradient)[None])

    def excess_product(self, points: Tensor, direction: Tensor) -> Tensor:
        if self.complete:
            return torch.zeros_like(direction)
        with torch.enable_grad():
            x = points[0].detach().requires_grad_()
            squares = self.mobility[0] * self.manifold.squared_distance(x, self.base)
            (gradient,) = torch.autograd.grad(squares.sum(), x, create_graph=True)
            (bent,) = torch.autograd.grad(gradient, x, direction[0])
        return (self.term.derivative(points[0], direction[0]) - bent)[None]
