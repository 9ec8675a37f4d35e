"""The transport term of a step as a function of the new particles: value, gradient, derivative of the gradient."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure
from jko.metrics import MobilityField
from jko.transport import Coupling, Sinkhorn, TransportProblem, TransportSolution

__all__ = ["AbstractTerm", "EntropicTerm", "PlanTerm", "TermValue"]

# Balances truncation h^2 against the rounding of the gradient, eps / h.
_DIFFERENCE = 1e-5


@final
@dataclass(frozen=True, slots=True, eq=False)
class TermValue:
    """T at one cloud and its derivative per unit mass.

    Attributes:
        value: T, squared units of length times mobility; NaN where a transport did not converge.
        gradient: ambient, shape (m, d): the derivative in x_i is w_i times it; 0 for tracers.
    """

    value: float
    gradient: Tensor


class AbstractTerm(ABC):
    """T(x), the transport cost from the old measure to m particles x with fixed weights."""

    __slots__ = ()

    @abstractmethod
    def at(self, points: Tensor) -> TermValue:
        """Return T and its gradient at particles (m, d)."""

    @abstractmethod
    def derivative(self, points: Tensor, direction: Tensor) -> Tensor:
        """Return the derivative of the gradient when the particles move along tangent directions, shape (m, d)."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlanTerm(AbstractTerm):
    """T(x) = sum_ji P_ji b_j d^2(x_i, y_j) for one coupling P, held fixed.

    Attributes:
        source: old particles y, shape (n, d).
        mobility: b at y, shape (n,).
        weights: weights of the new particles, shape (m,).
        coupling: P as a list of its entries.
        manifold: the geometry of d.
    """

    source: Tensor
    mobility: Tensor
    weights: Tensor
    coupling: Coupling
    manifold: AbstractManifold

    def at(self, points: Tensor) -> TermValue:
        with torch.enable_grad():
            x = points.detach().requires_grad_()
            value = self._value(x)
            (gradient,) = torch.autograd.grad(value, x)
        return TermValue(float(value.detach()), _per_mass(gradient, self.weights))

    def derivative(self, points: Tensor, direction: Tensor) -> Tensor:
        with torch.enable_grad():
            x = points.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._value(x), x, create_graph=True)
            (product,) = torch.autograd.grad(gradient, x, direction)
        return _per_mass(product, self.weights)

    def _value(self, x: Tensor) -> Tensor:
        rows, columns = self.coupling.rows, self.coupling.columns
        squares = self.manifold.squared_distance(x[columns], self.source[rows])
        return (self.coupling.masses.to(x) * self.mobility[rows] * squares).sum()


@final
@dataclass(slots=True, eq=False)
class EntropicTerm(AbstractTerm):
    """T(x) by a transport solver at every cloud, started from the potentials of the cloud before.

    Attributes:
        transport: the solver.
        source: the old measure.
        mobility: b at the old particles, shape (n,); None for b = 1.
        mobility_field: b as a function of position, where the cost is symmetric in it; else None.
        weights: weights of the new particles, shape (m,).
        manifold: the geometry of d.
        last: the last transport; what did not converge stays to be reported.
    """

    transport: Sinkhorn
    source: ParticleMeasure
    mobility: Tensor | None
    mobility_field: MobilityField | None
    weights: Tensor
    manifold: AbstractManifold
    last: TransportSolution | None = None

    def at(self, points: Tensor) -> TermValue:
        solution = self.solve(points)
        if not solution.status.ok:
            return TermValue(math.nan, torch.full_like(points, math.nan))
        return TermValue(solution.value, solution.gradient.to(points))

    def derivative(self, points: Tensor, direction: Tensor) -> Tensor:
        largest = float(direction.abs().amax())
        if largest == 0 or not math.isfinite(largest):
            return torch.zeros_like(points) * largest
        h = _DIFFERENCE / largest
        ends = [self.at(self.manifold.exp(points, sign * h * direction)).gradient for sign in (1, -1)]
        return (ends[0] - ends[1]) / (2 * h)

    def solve(self, points: Tensor) -> TransportSolution:
        """Return the transport to particles (m, d)."""
        target_mobility = target_gradient = None
        if self.mobility_field is not None:
            target_mobility, target_gradient = self.mobility_field.at(points)
        problem = TransportProblem(
            self.source,
            ParticleMeasure(points, self.weights),
            self.manifold,
            mobility=self.mobility,
            target_mobility=target_mobility,
            target_mobility_gradient=target_gradient,
        )
        warm = self.last if self.last is not None and self.last.status.ok else None
        self.last = self.transport.solve(problem, warm)
        return self.last


def _per_mass(derivative: Tensor, weights: Tensor) -> Tensor:
    tracers = weights == 0
    return (derivative / weights.masked_fill(tracers, 1.0)[:, None]).masked_fill(tracers[:, None], 0.0)
