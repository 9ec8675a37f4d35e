"""Mobilities of the heads and of their harmonic mean."""

from __future__ import annotations

import torch
from torch import Tensor

from jko.averages import harmonic_mean
from jko.checks import check_tensors
from jko.errors import InvalidInput
from jko.reductions import Auto

__all__ = ["effective_mobility", "head_mobility", "particle_weights"]


def head_mobility(points: Tensor, D: Tensor, weights: Tensor | None = None, *, at: Tensor | None = None) -> Tensor:
    """Return the head mobilities m_h(x) = sum_j w_j exp<x, D_h x_j>, eq. (28), the softmax denominators.

    Args:
        points: particles x_j, shape (*batch, n, d).
        D: head matrices, shape (*batch, H, d, d).
        weights: masses w_j; None means 1/n.
        at: evaluation points x, shape (*batch, m, d); None means the particles themselves.

    Returns:
        Shape (*batch, H, n), or (*batch, H, m) at other points.

    Raises:
        InvalidInput: when the shapes do not fit together.
    """
    check_tensors(points=points, D=D)
    if points.ndim < 2:
        raise InvalidInput(f"points must have shape (*batch, n, d), got {tuple(points.shape)}")
    if D.ndim < 3 or D.shape[-2:] != (points.shape[-1],) * 2:
        raise InvalidInput(
            f"D has shape {tuple(D.shape)}; for points of shape {tuple(points.shape)} it must be "
            f"(*batch, H, {points.shape[-1]}, {points.shape[-1]})"
        )
    if at is not None:
        check_tensors(at=at)
        if at.ndim < 2 or at.shape[-1] != points.shape[-1]:
            raise InvalidInput(f"at must have shape (*batch, m, {points.shape[-1]}), got {tuple(at.shape)}")
    w = particle_weights(points[..., 0], weights)
    leading = (points.shape[:-2], D.shape[:-3], w.shape[:-1], at.shape[:-2] if at is not None else ())
    batch = torch.broadcast_shapes(*leading)
    x = points.expand(*batch, *points.shape[-2:]).reshape(-1, *points.shape[-2:])
    z = x if at is None else at.to(points).expand(*batch, *at.shape[-2:]).reshape(-1, *at.shape[-2:])
    heads = D.to(points).expand(*batch, *D.shape[-3:]).reshape(-1, *D.shape[-3:])
    masses = w.expand(*batch, points.shape[-2]).reshape(-1, points.shape[-2])
    rows = [Auto().cross_mass(z[k], x[k], masses[k], heads[k]) for k in range(x.shape[0])]
    return torch.stack(rows).reshape(*batch, *rows[0].shape)


def effective_mobility(mobility: Tensor, head_weights: Tensor | None = None) -> Tensor:
    """Return b(x) = 1 / mean_h(1 / m_h(x)), eq. (36): the harmonic mean over heads, shape (*batch, n)."""
    check_tensors(mobility=mobility)
    return harmonic_mean(mobility, head_weights)


def particle_weights(values: Tensor, weights: Tensor | None) -> Tensor:
    """Weights for values of shape (*batch, n): 1/n where none are given."""
    n = values.shape[-1]
    if weights is None:
        return torch.full((n,), 1.0 / n, dtype=values.dtype, device=values.device)
    check_tensors(weights=weights)
    if weights.shape[-1:] != (n,):
        raise InvalidInput(f"weights have shape {tuple(weights.shape)}, but there are {n} particles")
    return weights.to(values)
