"""Averages over heads: the one place where head weights are applied."""

from __future__ import annotations

import torch
from torch import Tensor

from jko.errors import InvalidInput

__all__ = ["head_average"]


def head_average(values: Tensor, head_weights: Tensor | None = None, *, axis: int = -2) -> Tensor:
    """Average over the head axis: (*batch, H, n) -> (*batch, n), or with axis=-3 (*batch, H, n, d) -> (*batch, n, d).

    Raises:
        InvalidInput: when `head_weights` does not have one entry per head.
    """
    if head_weights is None:
        return values.mean(axis)
    if head_weights.shape != values.shape[axis : axis + 1 or None]:
        raise InvalidInput(
            f"head_weights have shape {tuple(head_weights.shape)}, but there are {values.shape[axis]} heads"
        )
    return torch.tensordot(values.movedim(axis, -1), head_weights.to(values), dims=1)
