"""What a transport term adds to the quadratic of a chart, as an energy: the minimizers then need no other interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Never, final

import torch
from torch import Tensor

from jko.energies import AbstractEnergy, AttentionEnergy, Evaluation, HeadEvaluation, PotentialField
from jko.errors import InvalidInput
from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure
from jko.schemes.coupled.terms import AbstractTerm

__all__ = ["TransportCorrection"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class TransportCorrection(AbstractEnergy):
    """(T(x) - sum_i w_i B_i d^2(x_i, z_i)) / (2 tau): with the quadratic of the chart at z it makes T / (2 tau).

    In R^d with z_i the barycenter of the particles that y_i's mass comes from, it is a constant.

    Attributes:
        term: T.
        base: z, shape (m, d).
        mobility: B, shape (m,).
        manifold: the geometry of d.
        tau: step size.
    """

    term: AbstractTerm
    base: Tensor
    mobility: Tensor
    manifold: AbstractManifold
    tau: float

    @property
    def moves(self) -> bool:
        return False

    @property
    def attention_parts(self) -> tuple[AttentionEnergy, ...]:
        return ()

    @property
    def description(self) -> str:
        return "transport term"

    def evaluate(self, measure: ParticleMeasure, t: float, *, curvature: bool = False) -> Evaluation:
        points = measure.points
        found = self.term.at(points)
        squares, gradient = self._quadratic(points)
        chart = float((measure.weights * squares).to(torch.float64).sum())
        value = torch.tensor((found.value - chart) / (2 * self.tau), dtype=torch.float64, device=points.device)
        return Evaluation(
            value=value,
            first_variation=torch.zeros_like(points[:, 0]),
            gradient=(found.gradient - gradient) / (2 * self.tau),
            # Where the chart is a good one its own quadratic is almost all of the curvature.
            curvature=points.new_zeros(*points.shape, points.shape[-1]) if curvature else None,
        )

    def value(self, measure: ParticleMeasure, t: float) -> Tensor:
        return self.evaluate(measure, t).value

    def hessian_product(self, measure: ParticleMeasure, t: float, direction: Tensor) -> Tensor:
        points = measure.points
        with torch.enable_grad():
            x = points.detach().requires_grad_()
            squares = self.mobility * self.manifold.squared_distance(x, self.base)
            (gradient,) = torch.autograd.grad(squares.sum(), x, create_graph=True)
            (bent,) = torch.autograd.grad(gradient, x, direction)
        return (self.term.derivative(points, direction) - bent) / (2 * self.tau)

    def evaluate_heads(self, points: Tensor, weights: Tensor, t: float) -> HeadEvaluation:
        return self._refuse()

    def hessian_product_heads(self, points: Tensor, weights: Tensor, t: float, direction: Tensor) -> Tensor:
        return self._refuse()

    def heads_alone(self, indices: Sequence[int]) -> AbstractEnergy:
        return self._refuse()

    def first_variation_at(self, targets: Tensor, measure: ParticleMeasure, t: float) -> PotentialField | None:
        return None

    def first_variation_heads_at(
        self, targets: Tensor, points: Tensor, weights: Tensor, t: float
    ) -> PotentialField | None:
        return None

    def largest_exponent(self, measure: ParticleMeasure, t: float) -> float:
        return float("-inf")

    def _quadratic(self, points: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = points.detach().requires_grad_()
            squares = self.mobility * self.manifold.squared_distance(x, self.base)
            (gradient,) = torch.autograd.grad(squares.sum(), x)
        return squares.detach(), gradient

    def _refuse(self) -> Never:
        raise InvalidInput("the head-wise step has a coupling per head; it takes Matched() transport only")
