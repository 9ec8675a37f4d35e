"""Potential energies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from jko.averages import mass_average
from jko.checks import check_jumps
from jko.energies.base import AbstractEnergy, Evaluation, PotentialField
from jko.energies.batches import check_direction
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure, check_measure

__all__ = ["PotentialEnergy"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class PotentialEnergy(AbstractEnergy):
    """E(u, t) = sum_i w_i V(x_i), or V(x_i, t).

    Derivatives come from autograd where they are not given, with gradients enabled for the calls only.

    Args:
        V: maps points (*batch, n, d) to values (*batch, n), each point on its own. A function with two required
            arguments is called as V(x, t), and so are the others then.
        gradient: maps points to gradients (*batch, n, d).
        hessian_product: maps points and directions (*batch, n, d) to Hessian times direction; called as
            hessian_product(x, direction), with t as third argument where V takes it.
        moves: whether V takes t; None looks at its signature.
        jumps: times at which V(x, t) jumps, with the limit from the right as its value there.
    """

    V: Callable[..., Tensor]
    slope: Callable[..., Tensor] | None
    product: Callable[..., Tensor] | None
    moves: bool
    jumps: tuple[float, ...]

    def __init__(
        self,
        V: Callable[..., Tensor],
        *,
        gradient: Callable[..., Tensor] | None = None,
        hessian_product: Callable[..., Tensor] | None = None,
        moves: bool | None = None,
        jumps: Iterable[float] = (),
    ) -> None:
        for part, name in ((V, "V"), (gradient, "gradient"), (hessian_product, "hessian_product")):
            if not (callable(part) or (part is None and name != "V")):
                raise InvalidInput(f"{name} must be a function of points, got {type(part).__name__}")
        object.__setattr__(self, "V", V)
        object.__setattr__(self, "slope", gradient)
        object.__setattr__(self, "product", hessian_product)
        object.__setattr__(self, "moves", _takes_time(V) if moves is None else bool(moves))
        object.__setattr__(self, "jumps", check_jumps(jumps, moves=self.moves))

    @property
    def description(self) -> str:
        name = getattr(self.V, "__name__", type(self.V).__name__)
        return f"potential {name}{'(x, t)' if self.moves else '(x)'}"

    def evaluate(self, measure: ParticleMeasure, t: float, *, curvature: bool = False) -> Evaluation:
        check_measure(measure)
        if curvature:
            self.check_curvature(measure)
        field, hessian = self._field(measure.points, t, curvature=curvature)
        return Evaluation(mass_average(measure.weights, field.value), field.value, field.gradient, curvature=hessian)

    def value(self, measure: ParticleMeasure, t: float) -> Tensor:
        check_measure(measure)
        with torch.no_grad():
            return mass_average(measure.weights, self._values(measure.points, t))

    def hessian_product(self, measure: ParticleMeasure, t: float, direction: Tensor) -> Tensor:
        direction, x = check_direction(direction, measure), measure.points
        if self.product is not None:
            return _checked(self.product(x, direction, *self._time(t)), x.shape, x, "hessian_product").detach()
        with torch.inference_mode(False), torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            slope = self._slope(leaf, t, graph=True)[1]
            if not slope.requires_grad:
                self._refuse_opaque_gradient()
                return torch.zeros_like(x)
            # The Hessian is symmetric: H v is the gradient of <grad V, v>.
            (product,) = torch.autograd.grad((slope * direction.clone()).sum(), leaf, materialize_grads=True)
        return product

    def first_variation_at(self, targets: Tensor, measure: ParticleMeasure, t: float) -> PotentialField:
        check_measure(measure)
        return self._field(targets, t, curvature=False)[0]

    def _field(self, x: Tensor, t: float, *, curvature: bool) -> tuple[PotentialField, Tensor | None]:
        with torch.inference_mode(False), torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            value, slope = self._slope(leaf, t, graph=curvature and self.product is None)
            hessian = self._hessian(leaf, slope, t) if curvature else None
        return PotentialField(value.detach(), slope.detach()), hessian

    def _slope(self, leaf: Tensor, t: float, *, graph: bool) -> tuple[Tensor, Tensor]:
        value = self._values(leaf, t)
        if self.slope is not None:
            return value, _checked(self.slope(leaf, *self._time(t)), leaf.shape, leaf, "gradient")
        if not value.requires_grad:
            raise InvalidInput(
                "V does not depend on its points in a way autograd sees; give gradient=, or write it with torch "
                "operations (a constant as 0 * x.sum(-1) + c)"
            )
        (slope,) = torch.autograd.grad(value.sum(), leaf, create_graph=graph, materialize_grads=True)
        return value, slope

    def _hessian(self, leaf: Tensor, slope: Tensor, t: float) -> Tensor | None:
        """Hessians (*batch, n, d, d) row by row; None where only a gradient is known."""
        d = leaf.shape[-1]
        if self.product is not None:
            x = leaf.detach()
            axes = [axis.expand_as(x) for axis in torch.eye(d, dtype=x.dtype, device=x.device)]
            rows = [_checked(self.product(x, a, *self._time(t)), x.shape, x, "hessian_product") for a in axes]
            return torch.stack(rows, -2).detach()
        if not slope.requires_grad:
            return None if self.slope is not None else torch.zeros(*leaf.shape, d).to(leaf.detach())
        rows = [
            torch.autograd.grad(slope[..., k].sum(), leaf, retain_graph=True, materialize_grads=True)[0]
            for k in range(d)
        ]
        return torch.stack(rows, -2)

    def _values(self, x: Tensor, t: float) -> Tensor:
        return _checked(self.V(x, *self._time(t)), x.shape[:-1], x, "V")

    def _time(self, t: float) -> tuple[float, ...]:
        return (t,) if self.moves else ()

    def _refuse_opaque_gradient(self) -> None:
        if self.slope is not None:
            raise InvalidInput(
                "the gradient is nothing autograd can differentiate, but the step needs the Hessian: give "
                "hessian_product=, or write gradient with torch operations"
            )


def _takes_time(V: Callable[..., Tensor]) -> bool:
    """Whether a function has two required positional arguments."""
    try:
        parameters = inspect.signature(V).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters) == 2


def _checked(values: Any, shape: torch.Size, like: Tensor, name: str) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != shape:
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise InvalidInput(f"{name} must return a tensor of shape {tuple(shape)} for these points, got {got}")
    return values.to(like.dtype)
