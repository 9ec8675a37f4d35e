"""Averages over heads and over particles: the one place where weights are applied."""

from __future__ import annotations

import torch
from torch import Tensor

from jko.checks import check_tensors
from jko.errors import InvalidInput

__all__ = ["harmonic_mean", "head_average", "mass_average", "normalized_average", "weighted_heads"]


def head_average(values: Tensor, head_weights: Tensor | None = None, *, axis: int = -2) -> Tensor:
    """Average over the head axis: (*batch, H, n) -> (*batch, n), or with axis=-3 (*batch, H, n, d) -> (*batch, n, d).

    A head of weight 0 is left out, whatever its values.

    Raises:
        InvalidInput: when `head_weights` is no tensor with one entry per head.
    """
    if head_weights is None:
        return values.mean(axis)
    check_tensors(head_weights=head_weights)
    if head_weights.shape != values.shape[axis : axis + 1 or None]:
        raise InvalidInput(
            f"head_weights have shape {tuple(head_weights.shape)}, but there are {values.shape[axis]} heads"
        )
    values, weights = values.movedim(axis, -1), head_weights.to(values)
    rows = weighted_heads(head_weights)
    if rows is not None:
        # A head without weight adds nothing even where exp overflows, and 0 * inf is not 0.
        values, weights = values[..., rows], weights[rows]
    return torch.tensordot(values, weights, dims=1)


def weighted_heads(head_weights: Tensor | None) -> list[int] | None:
    """Return the numbers of the heads that have weight; None where all of them have."""
    if head_weights is None or bool((head_weights != 0).all()):
        return None
    return [int(row) for row in head_weights.nonzero()[:, 0]]


def harmonic_mean(mobility: Tensor, head_weights: Tensor | None = None) -> Tensor:
    """Return b = 1 / mean_h(1 / m_h), eq. (36) of Massucco et al. 2026: (*batch, H, n) -> (*batch, n)."""
    return head_average(mobility.reciprocal(), head_weights).reciprocal()


def normalized_average(vectors: Tensor, mobility: Tensor, head_weights: Tensor | None = None) -> Tensor:
    """Return mean_h(v_h / m_h) of (*batch, H, n, d) and (*batch, H, n): shape (*batch, n, d)."""
    # Across the particles, where head fields lie side by side in memory, not along the short last axis.
    quotient = (vectors.mT * mobility.reciprocal()[..., None, :]).mT
    return head_average(quotient, head_weights, axis=-3)


def mass_average(weights: Tensor, values: Tensor) -> Tensor:
    """Return sum_i w_i values_i along the last axis in float64; tracers are left out, whatever their values."""
    return (weights.to(torch.float64) * values).masked_fill(weights == 0, 0.0).sum(-1)
