"""Moments of the attention kernel over pairs, contracted to a few numbers per head: what the balance (147) needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.reductions import PairSums
from jko.storable import storable

__all__ = ["PairMoments"]


@storable
@final
@dataclass(frozen=True, slots=True, eq=False)
class PairMoments:
    """Sums over pairs of w_i w_j K_h(x_i, x_j) times what their derivatives in D_h bring, float64, without a sign.

    Attributes:
        first: sum_ij w_i w_j K_h x_i x_j^T, shape (*batch, H, d, d): twice the derivative of E_h in D_h.
        spread: sum_ij w_i w_j K_h (|x_i|^2 |x_j|^2 + <x_i, x_j>^2), shape (*batch, H): four times the derivative of
            the mean of E_h in the variance of symmetric noise in D_h.
    """

    first: Tensor
    spread: Tensor

    @staticmethod
    def of(sums: PairSums, points: Tensor, weights: Tensor) -> PairMoments:
        """Contract pair sums with first and second moments; points (n, d), weights (n,)."""
        assert sums.first is not None
        assert sums.second is not None
        x, w = points.to(torch.float64), weights.to(torch.float64)
        a, b = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
        # sum_a M_aa |x|^2 + sum_ab M_ab x_a x_b from the upper triangle of M, whose other half counts as well.
        products = torch.where(a == b, x.square().sum(-1, keepdim=True), 0.0) + x[:, a] * x[:, b] * (1.0 + (a != b))
        first, second = sums.first.to(torch.float64), sums.second.to(torch.float64)
        if not bool(weights.all()):
            # A tracer adds nothing even where its own sums overflow.
            first, second = first.masked_fill(w == 0, 0.0), second.masked_fill(w == 0, 0.0)
        return PairMoments(
            first=torch.tensordot(first, w[:, None] * x, dims=1).mT,
            spread=torch.tensordot(second, (w[:, None] * products).mT, dims=2),
        )
