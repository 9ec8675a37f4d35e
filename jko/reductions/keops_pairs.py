"""Sums of radial kernels over pairs by KeOps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.kernels import AbstractKernel, AbstractRadialKernel, KernelSums
from jko.reductions.keops_probe import run_lazy

__all__ = ["keops_derivative", "keops_sums", "refuse_opaque"]


def refuse_opaque(kernel: AbstractKernel) -> AbstractRadialKernel:
    """Return the kernel if KeOps can form it.

    Raises:
        InvalidInput: for a Python function of the user, which it cannot read.
    """
    if isinstance(kernel, AbstractRadialKernel):
        return kernel
    raise InvalidInput(f"KeOps cannot read the kernel '{kernel.name}', a Python function; use Blocked() or Auto()")


def keops_sums(
    kernel: AbstractRadialKernel, targets: Tensor, sources: Tensor, weights: Tensor, own: Tensor | None, order: int
) -> KernelSums:
    """Return `AbstractPairs.sums` in one reduction, memory O(n d^2)."""
    d = targets.shape[1]

    def formula(lazy: Any) -> Tensor:
        difference, factors = _factors(lazy, kernel, targets, sources, own, order)
        w = lazy(weights[:, None], 0)
        parts = [factors[0] * w]
        if order >= 1:
            first = factors[1] * (2.0 * w)
            parts.append(first * difference)
        if order >= 2:
            parts += [first, (factors[2] * (4.0 * w)) * difference.tensorprod(difference)]
        return _joined(parts).sum(1)

    out = _run(kernel, "sums", targets, own, order, formula)
    if order < 2:
        return KernelSums(out[:, 0], out[:, 1:] if order else None)
    curvature = out[:, 2 + d :].reshape(-1, d, d)
    curvature.diagonal(dim1=-2, dim2=-1).add_(out[:, 1 + d, None])
    return KernelSums(out[:, 0], out[:, 1 : 1 + d], curvature)


def keops_derivative(
    kernel: AbstractRadialKernel,
    targets: Tensor,
    sources: Tensor,
    weights: Tensor,
    own: Tensor | None,
    moving: tuple[Tensor, Tensor],
) -> Tensor:
    """Return `AbstractPairs.derivative` in one reduction."""

    def formula(lazy: Any) -> Tensor:
        difference, (_, first, second) = _factors(lazy, kernel, targets, sources, own, 2)
        change = lazy(moving[0], 1) - lazy(moving[1], 0)
        w = lazy(weights[:, None], 0)
        along = (difference | change) * second * 2.0
        return ((first * change + along * difference) * (2.0 * w)).sum(1)

    return _run(kernel, "derivative", targets, own, 2, formula)


def _factors(
    lazy: Any, kernel: AbstractRadialKernel, targets: Tensor, sources: Tensor, own: Tensor | None, order: int
) -> tuple[Any, tuple[Any, ...]]:
    """z_i - x_j and the profile at its square, with nothing in the pairs that do not count."""
    difference = lazy(targets, 1) - lazy(sources, 0)
    q = difference.sqnorm2()
    if kernel.kinked:
        # ifelse takes its first value where the condition is at least 0.
        counted = (-q).ifelse(0.0 * q, 0.0 * q + 1.0)
    elif kernel.singular and own is not None:
        labels = torch.arange(sources.shape[0], dtype=targets.dtype, device=targets.device)
        apart = lazy(own.to(targets.dtype)[:, None], 1) - lazy(labels[:, None], 0)
        counted = (0.25 - apart * apart).ifelse(0.0 * apart, 0.0 * apart + 1.0)
    else:
        return difference, kernel.profile(q, order)
    return difference, tuple(part * counted for part in kernel.profile(q + (1.0 - counted), order))


def _joined(parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total.concat(part)
    return total


def _run(
    kernel: AbstractRadialKernel, task: str, targets: Tensor, own: Tensor | None, order: int, formula: Any
) -> Tensor:
    kind = (targets.shape[1], str(targets.dtype), targets.device.type)
    return run_lazy((kernel.name, task, order, own is None, *kind), formula)
