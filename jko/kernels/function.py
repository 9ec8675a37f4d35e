"""Kernels given as a function of two points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.kernels.base import AbstractKernel, KernelSums

__all__ = ["FunctionKernel"]

_PROBES = 4


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class FunctionKernel(AbstractKernel):
    """W(x, y) = fn(x, y), any symmetric function; derivatives by autograd.

    Args:
        fn: maps points (m, 1, d) and (1, n, d), or (m, n, d) twice, to values (m, n); it must not mix pairs. At
            x = y it needs a gradient unless the kernel is singular (write `.norm(dim=-1)`, whose gradient there is 0,
            rather than the square root of a sum, whose gradient is NaN).
        gradient: the gradient in the first point, shape (m, n, d), of points that broadcast to it; None takes it from
            autograd. Second derivatives are taken from it by autograd in any case.
        singular: whether W(x, x) is not finite: a particle then does not act on itself.
    """

    fn: Callable[[Tensor, Tensor], Tensor]
    first: Callable[[Tensor, Tensor], Tensor] | None
    singular: bool

    def __init__(
        self,
        fn: Callable[[Tensor, Tensor], Tensor],
        gradient: Callable[[Tensor, Tensor], Tensor] | None = None,
        *,
        singular: bool = False,
    ) -> None:
        if not callable(fn) or not (gradient is None or callable(gradient)):
            raise InvalidInput(f"FunctionKernel needs functions of two points, got {fn!r} and gradient={gradient!r}")
        object.__setattr__(self, "fn", fn)
        object.__setattr__(self, "first", gradient)
        object.__setattr__(self, "singular", bool(singular))

    @property
    def name(self) -> str:
        return f"function {getattr(self.fn, '__name__', type(self.fn).__name__)}"

    def check(self, points: Tensor) -> None:
        few = points[:_PROBES].detach()
        with torch.no_grad():
            values = self._values(*_pairs(few, few, torch.arange(len(few)) if self.singular else None))
        self._refuse_poles(few, values.diagonal())
        gap, size = (values - values.mT).abs(), values.abs().amax()
        if bool(gap.amax() > 1e3 * torch.finfo(points.dtype).eps * size):
            raise InvalidInput(
                f"the kernel is not symmetric: W(x, y) and W(y, x) differ by {float(gap.amax()):.3g}; only its "
                "symmetric part (W(x, y) + W(y, x)) / 2 has an energy"
            )

    def _refuse_poles(self, points: Tensor, values: Tensor) -> None:
        """Refuse W(x, x) that is not finite although W is finite nearby: overflow is no pole."""
        if self.singular or bool(values.isfinite().all()):
            return
        shift = 1e-3 * (1 + points.abs())
        with torch.no_grad():
            near = self._values(*_pairs(points, points + shift, None)).diagonal()
        if bool((near.isfinite() & ~values.isfinite()).any()):
            raise InvalidInput(
                f"{self.name} is not finite at x = y: pass singular=True to leave the pair of a particle with itself "
                "out"
            )

    def sums(self, targets: Tensor, sources: Tensor, weights: Tensor, own: Tensor | None, order: int) -> KernelSums:
        if order == 0:
            with torch.no_grad():
                return KernelSums(self._counted(self._values(*self._placed(targets, sources, own)), own) @ weights)
        with torch.inference_mode(False), torch.enable_grad():
            z, x, w = (part.detach().clone() for part in (targets, sources, weights))
            z.requires_grad_()
            value, gradient = self._value_and_gradient(z, x, w, own, graph=order == 2)
            known = order == 2 and (self.first is None or gradient.requires_grad)
            curvature = _rows_of_hessian(gradient, z) if known else None
        return KernelSums(value.detach(), gradient.detach(), curvature)

    def derivative(
        self,
        targets: Tensor,
        sources: Tensor,
        weights: Tensor,
        own: Tensor | None,
        moving_targets: Tensor,
        moving_sources: Tensor,
    ) -> Tensor:
        # d/ds grad_z W(z + s u, x + s v) = grad_z (<grad_1 W, u> + <grad_2 W, v>).
        with torch.inference_mode(False), torch.enable_grad():
            z, x = (part.detach().clone().requires_grad_() for part in (targets, sources))
            w, u, v = (part.detach().clone() for part in (weights, moving_targets, moving_sources))
            at, to = self._placed(z, x, own)
            if self.first is None:
                total = (self._counted(self._values(at, to), own) @ w).sum()
                slopes = torch.autograd.grad(total, (z, x), create_graph=True, materialize_grads=True)
                rate = (slopes[0] * u).sum() + (slopes[1] * v).sum()
            else:
                forward = (self._gradients(self.first, at, to) * u[:, None]).sum(-1)
                backward = (self._gradients(self.first, to, at) * v).sum(-1)
                rate = (self._counted(forward + backward, own) @ w).sum()
            if not rate.requires_grad:
                if self.first is not None:
                    raise InvalidInput(
                        f"the gradient of {self.name} is nothing autograd can differentiate; write it with torch "
                        "operations, or leave it out"
                    )
                return torch.zeros_like(targets)
            (result,) = torch.autograd.grad(rate, z, materialize_grads=True)
        return result

    def _value_and_gradient(
        self, z: Tensor, x: Tensor, weights: Tensor, own: Tensor | None, *, graph: bool
    ) -> tuple[Tensor, Tensor]:
        at, to = self._placed(z, x, own)
        value = self._counted(self._values(at, to), own) @ weights
        if self.first is not None:
            slopes = self._gradients(self.first, at, to)
            return value, torch.einsum("mnd,n->md", self._counted(slopes, own), weights)
        if not value.requires_grad:
            raise InvalidInput(
                f"{self.name} does not depend on its points in a way autograd sees; give gradient=, or write it with "
                "torch operations"
            )
        (gradient,) = torch.autograd.grad(value.sum(), z, create_graph=graph, materialize_grads=True)
        return value, gradient

    def _placed(self, z: Tensor, x: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor]:
        return _pairs(z, x, own if self.singular else None)

    def _counted(self, values: Tensor, own: Tensor | None) -> Tensor:
        """Values (m, n) or (m, n, d) with 0 for the pair of a particle with itself where the kernel is singular."""
        if not self.singular or own is None:
            return values
        mask = _self_pairs(own, values.shape[1])
        return values.masked_fill(mask if values.ndim == 2 else mask[..., None], 0.0)

    def _values(self, x: Tensor, y: Tensor) -> Tensor:
        return _checked(self.fn(x, y), (x.shape[0], y.shape[1]), x, "fn")

    def _gradients(self, first: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        # With the points exchanged, x carries the second axis.
        shape = torch.broadcast_shapes(x.shape, y.shape)
        return _checked(first(x, y), tuple(shape), x, "gradient")


def _pairs(z: Tensor, x: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor]:
    """Points of all pairs that broadcast to (m, n, d); a particle's pair with itself is moved apart."""
    if own is None:
        return z[:, None], x[None]
    shift = _self_pairs(own.to(z.device), x.shape[0])[..., None].to(x.dtype)
    return z[:, None].expand(-1, x.shape[0], -1), x[None] + shift


def _self_pairs(own: Tensor, n: int) -> Tensor:
    return own[:, None] == torch.arange(n, device=own.device)


def _checked(values: object, shape: tuple[int, ...], like: Tensor, name: str) -> Tensor:
    if not isinstance(values, Tensor) or tuple(values.shape) != shape:
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise InvalidInput(f"{name} must return a tensor of shape {shape} for points of all pairs, got {got}")
    return values.to(like.dtype)


def _rows_of_hessian(gradient: Tensor, z: Tensor) -> Tensor:
    """Derivatives (m, d, d) of gradients (m, d) whose rows belong to one point each."""
    d = z.shape[-1]
    if not gradient.requires_grad:
        return torch.zeros(*z.shape, d, dtype=z.dtype, device=z.device)
    rows = [
        torch.autograd.grad(gradient[:, k].sum(), z, retain_graph=True, materialize_grads=True)[0] for k in range(d)
    ]
    return torch.stack(rows, 1)
