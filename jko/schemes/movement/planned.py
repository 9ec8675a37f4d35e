"""Movements whose cost a transport gives: of a plan that is held fixed, or entropic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.manifolds import AbstractManifold
from jko.schemes.movement.base import AbstractMovement, Excess
from jko.schemes.movement.chart_base import ChartBase
from jko.schemes.movement.terms import AbstractTerm

__all__ = ["TransportMovement"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class TransportMovement(AbstractMovement):
    """T(x) of one group by a term, in the tangent spaces at the points of a chart.

    In R^d, with z_i the barycenter of the particles that y_i's mass comes from, the excess is a constant.

    Attributes:
        chart: base points z (m, d) and the mobility of the quadratic there.
        weights: weights of the new particles, shape (m,).
        term: T.
        manifold: the geometry of the quadratic.
        drift: see `AbstractMovement.drift`.
    """

    chart: ChartBase
    weights: Tensor
    term: AbstractTerm
    manifold: AbstractManifold
    drift: Tensor | None = None

    @property
    def base(self) -> Tensor:
        return self.chart.points

    @property
    def mobility(self) -> Tensor:
        return self.chart.mobility[None]

    @property
    def noise(self) -> float:
        return self.term.noise

    def members(self, groups: list[int]) -> TransportMovement:
        if groups != [0]:
            raise InvalidInput(f"a transport term has one group of particles, asked for {groups}")
        return self

    def excess(self, points: Tensor) -> Excess | None:
        if self.chart.complete:
            return None
        term = self.term.at(points[0])
        with torch.enable_grad():
            x = points[0].detach().requires_grad_()
            squares = self.chart.mobility * self.manifold.squared_distance(x, self.chart.points)
            (gradient,) = torch.autograd.grad(squares.sum(), x)
        quadratic = float((self.weights * squares.detach()).to(torch.float64).sum())
        return Excess([term.value - quadratic], (term.gradient - gradient)[None])

    def excess_product(self, points: Tensor, direction: Tensor) -> Tensor:
        if self.chart.complete:
            return torch.zeros_like(direction)
        with torch.enable_grad():
            x = points[0].detach().requires_grad_()
            squares = self.chart.mobility * self.manifold.squared_distance(x, self.chart.points)
            (gradient,) = torch.autograd.grad(squares.sum(), x, create_graph=True)
            (bent,) = torch.autograd.grad(gradient, x, direction[0])
        return (self.term.derivative(points[0], direction[0]) - bent)[None]
