"""Interaction energies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.averages import mass_average
from jko.checks import check_kind
from jko.energies.base import AbstractEnergy, Evaluation, PotentialField
from jko.energies.batches import check_direction, for_each, stacked, stacked_fields
from jko.kernels import AbstractKernel
from jko.measure import ParticleMeasure
from jko.reductions import AbstractPairs, AbstractReduction, pairs_by, reduction_or_auto

__all__ = ["InteractionEnergy"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class InteractionEnergy(AbstractEnergy):
    """E(u) = 1/2 sum_ij w_i w_j W(x_i, x_j) with a symmetric kernel W.

    A particle's pair with itself counts W(x, x), as in the double integral, unless the kernel is singular: then it is
    left out, and two different particles at one place make the energy infinite. Signs and coefficients, of t or not,
    come from scaling: `-1 * energy`, `jko.Scaled(energy, c)`.

    Args:
        kernel: W, for example `PowerKernel(2)`.
        reduction: how the pair sums are formed: `Auto()`, `Blocked()` or `KeOps()`.
    """

    kernel: AbstractKernel
    reduction: AbstractReduction

    def __init__(self, kernel: AbstractKernel, reduction: AbstractReduction | None = None) -> None:
        hint = "wrap a function W(x, y) in FunctionKernel" if callable(kernel) else ""
        check_kind(kernel, AbstractKernel, "kernel", example="GaussianKernel(1.0)", hint=hint)
        reduction = reduction_or_auto(reduction)
        pairs_by(reduction, kernel)
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "reduction", reduction)

    @property
    def moves(self) -> bool:
        return False

    @property
    def description(self) -> str:
        return f"interaction {self.kernel.name}, pair sums: {self.reduction.name}"

    def evaluate(self, measure: ParticleMeasure, t: float, *, curvature: bool = False) -> Evaluation:
        if curvature:
            self.check_curvature(measure)
        return stacked(measure, lambda x, w: self._evaluation(x, w, order=2 if curvature else 1))

    def value(self, measure: ParticleMeasure, t: float) -> Tensor:
        def value(x: Tensor, w: Tensor, index: tuple[int, ...]) -> Tensor:
            self.kernel.check(x)
            return mass_average(w, self._pairs.sums(self.kernel, x, *_sources(x, w), 0).value) / 2

        return for_each(measure, value)

    def hessian_product(self, measure: ParticleMeasure, t: float, direction: Tensor) -> Tensor:
        direction = check_direction(direction, measure)

        def product(x: Tensor, w: Tensor, index: tuple[int, ...]) -> Tensor:
            moving = direction[index]
            return self._pairs.derivative(self.kernel, x, *_sources(x, w), (moving, moving[w > 0]))

        return for_each(measure, product)

    def first_variation_at(self, targets: Tensor, measure: ParticleMeasure, t: float) -> PotentialField:
        def field(x: Tensor, w: Tensor, index: tuple[int, ...]) -> PotentialField:
            sources, weights, _ = _sources(x, w)
            sums = self._pairs.sums(self.kernel, targets[index], sources, weights, None, 1)
            assert sums.gradient is not None
            return PotentialField(sums.value, sums.gradient)

        return stacked_fields(measure, field)

    @property
    def _pairs(self) -> AbstractPairs:
        return pairs_by(self.reduction, self.kernel)

    def _evaluation(self, points: Tensor, weights: Tensor, *, order: int) -> Evaluation:
        self.kernel.check(points)
        sums = self._pairs.sums(self.kernel, points, *_sources(points, weights), order)
        assert sums.gradient is not None
        value = mass_average(weights, sums.value) / 2
        return Evaluation(value, sums.value, sums.gradient, curvature=sums.curvature)


def _sources(points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Points and weights of the particles that have mass, and for every particle its index among them or -1."""
    massive = weights > 0
    if bool(massive.all()):
        return points, weights, torch.arange(len(weights), device=weights.device)
    own = torch.where(massive, massive.cumsum(0) - 1, -1)
    return points[massive], weights[massive], own
