"""Energies given as a function of the particles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.checks import check_jumps
from jko.energies.base import AbstractEnergy, Evaluation, PotentialField
from jko.energies.batches import check_direction, for_each, stacked
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure, check_measure

__all__ = ["FunctionEnergy"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class FunctionEnergy(AbstractEnergy):
    """E(u, t) = fn(points, weights, t), any function that autograd can differentiate.

    The gradient per unit mass is dE/dx_i / w_i, so every weight must be positive: a tracer has no derivative. The
    first variation is dE/dw_i, without a constant taken out; where fn does not depend on the weights it is not known,
    hence NaN, and no coupling is certified. It is known at the particles only.

    Args:
        fn: maps points (n, d), weights (n,) and t to a scalar tensor; the members of a batch come one by one. It
            should not depend on the order of the particles.
        moves: whether fn depends on t; False lets a scheme reuse an evaluation at another time.
        jumps: times at which fn jumps, with the limit from the right as its value there.
    """

    fn: Callable[[Tensor, Tensor, float], Tensor]
    moves: bool
    jumps: tuple[float, ...]

    def __init__(
        self, fn: Callable[[Tensor, Tensor, float], Tensor], *, moves: bool = True, jumps: Iterable[float] = ()
    ) -> None:
        if not callable(fn):
            raise InvalidInput(f"fn must be a function fn(points, weights, t), got {type(fn).__name__}")
        object.__setattr__(self, "fn", fn)
        object.__setattr__(self, "moves", bool(moves))
        object.__setattr__(self, "jumps", check_jumps(jumps, moves=self.moves))

    @property
    def description(self) -> str:
        return f"function {getattr(self.fn, '__name__', type(self.fn).__name__)}"

    def evaluate(self, measure: ParticleMeasure, t: float, *, curvature: bool = False) -> Evaluation:
        _refuse_tracers(measure)
        return stacked(measure, lambda x, w: self._evaluation(x, w, t))

    def value(self, measure: ParticleMeasure, t: float) -> Tensor:
        _refuse_tracers(measure)
        with torch.no_grad():
            return for_each(measure, lambda x, w, _: self._value(x, w, t).to(torch.float64))

    def hessian_product(self, measure: ParticleMeasure, t: float, direction: Tensor) -> Tensor:
        _refuse_tracers(measure)
        direction = check_direction(direction, measure)
        return for_each(measure, lambda x, w, index: self._product(x, w, t, direction[index]))

    def first_variation_at(self, targets: Tensor, measure: ParticleMeasure, t: float) -> PotentialField | None:
        check_measure(measure)
        return None

    def _evaluation(self, points: Tensor, weights: Tensor, t: float) -> Evaluation:
        with torch.inference_mode(False), torch.enable_grad():
            x, w = (part.detach().clone().requires_grad_() for part in (points, weights))
            value = self._differentiable(x, w, t)
            slope, variation = torch.autograd.grad(value, (x, w), allow_unused=True)
        if variation is None:
            variation = torch.full_like(weights, torch.nan)
        slope = torch.zeros_like(points) if slope is None else slope / weights[:, None]
        return Evaluation(value.detach().to(torch.float64), variation, slope)

    def _product(self, points: Tensor, weights: Tensor, t: float, direction: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            x = points.detach().clone().requires_grad_()
            # The weights ask for derivatives as well: an energy of the weights alone is no error.
            value = self._differentiable(x, weights.detach().clone().requires_grad_(), t)
            (slope,) = torch.autograd.grad(value, x, create_graph=True, materialize_grads=True)
            if not slope.requires_grad:
                return torch.zeros_like(points)
            # The Hessian is symmetric: H v is the gradient of <dE, v>.
            (product,) = torch.autograd.grad((slope * direction.clone()).sum(), x, materialize_grads=True)
        return product / weights[:, None]

    def _differentiable(self, points: Tensor, weights: Tensor, t: float) -> Tensor:
        value = self._value(points, weights, t)
        if not value.requires_grad:
            raise InvalidInput(
                "fn does not depend on points or weights in a way autograd sees; write it with torch operations and "
                "without detach, item or NumPy"
            )
        return value

    def _value(self, points: Tensor, weights: Tensor, t: float) -> Tensor:
        value = self.fn(points, weights, t)
        if not isinstance(value, Tensor) or value.ndim:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InvalidInput(f"fn must return a scalar tensor, got {got}; a sum over particles makes it one")
        return value


def _refuse_tracers(measure: ParticleMeasure) -> None:
    check_measure(measure)
    tracers = measure.weights == 0
    if bool(tracers.any()):
        index = [int(i) for i in tracers.nonzero()[0]]
        raise InvalidInput(
            f"weights{index} is 0: the gradient of an energy given as a function is its derivative divided by the "
            "weight, so every weight must be positive; drop the particle"
        )
