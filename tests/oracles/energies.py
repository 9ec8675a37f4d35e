"""An energy without heads, for the algebra of energies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.energies import AbstractEnergy, Evaluation, PotentialField
from jko.measure import ParticleMeasure


@final
@dataclass(frozen=True, slots=True, eq=False)
class Quadratic(AbstractEnergy):
    """E(u, t) = (1 + t) sum_i w_i <x_i, A x_i> / 2 with a diagonal matrix A; it may not know its curvature."""

    diagonal: Tensor
    curved: bool = True

    @property
    def moves(self) -> bool:
        return True

    @property
    def description(self) -> str:
        return "quadratic"

    def evaluate(self, measure: ParticleMeasure, t: float, *, curvature: bool = False) -> Evaluation:
        x = measure.points
        gradient = (1 + t) * self.diagonal.to(x) * x
        variation = (gradient * x).sum(-1) / 2
        return Evaluation(
            (measure.weights * variation).to(torch.float64).sum(-1),
            variation,
            gradient,
            curvature=(1 + t) * torch.diag(self.diagonal.to(x)).expand(*x.shape, x.shape[-1])
            if curvature and self.curved
            else None,
        )

    def hessian_product(self, measure: ParticleMeasure, t: float, direction: Tensor) -> Tensor:
        return (1 + t) * self.diagonal.to(direction) * direction

    def first_variation_at(self, targets: Tensor, measure: ParticleMeasure, t: float) -> PotentialField:
        gradient = (1 + t) * self.diagonal.to(targets) * targets
        return PotentialField((gradient * targets).sum(-1) / 2, gradient)


def on_own_clouds(energy: AbstractEnergy, points: Tensor, weights: Tensor, t: float) -> Evaluation:
    """The energy of each head on its own cloud points[h]."""
    return energy.by_head().evaluate(ParticleMeasure(points, weights), t)


def products_on_own_clouds(
    energy: AbstractEnergy, points: Tensor, weights: Tensor, t: float, direction: Tensor
) -> Tensor:
    """The Hessian product of each head on its own cloud."""
    return energy.by_head().hessian_product(ParticleMeasure(points, weights), t, direction)
