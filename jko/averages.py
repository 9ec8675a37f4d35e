"""Averages over heads: the one place where head weights are applied."""

from __future__ import annotations

import torch
from torch import Tensor

from jko.errors import InvalidInput

__all__ = ["head_average"]


def head_average(values: Tensor, head_weights: Tensor | None = None, *, axis: int = -2) -> Tensor:
    """Average over the head axis: (*batch, H, n) -> (*batch, n), or with axis=-3 (*batch, H, n, d) -> (*batch, n, d).

    A head of weight 0 is left out, whatever its values.

    Raises:
        InvalidInput: when `head_weights` does not have one entry per head.
    """
    if head_weights is None:
        return values.mean(axis)
    if head_weights.shape != values.shape[axis : axis + 1 or None]:
        raise InvalidInput(
            f"head_weights have shape {tuple(head_weights.shape)}, but there are {values.shape[axis]} heads"
        )
    values, weights = values.movedim(axis, -1), head_weights.to(values)
    active = weights != 0
    if not bool(active.all()):
        # A head without weight adds nothing even where exp overflows, and 0 * inf is not 0.
        values, weights = values[..., active], weights[active]
    return torch.tensordot(values, weights, dims=1)
