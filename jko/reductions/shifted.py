"""Pair sums relative to the largest exponent of each target: quotients of sums whose exponentials leave the floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.reductions.base import default_block_bytes

__all__ = ["ShiftedSums", "shifted_sums", "within_range"]

_DOUBLE = torch.float64


@final
@dataclass(frozen=True, slots=True, eq=False)
class ShiftedSums:
    """Sums over the sources j with mass, without the factor e^{s_hi}, float64.

    Attributes:
        exponent: s_hi = max_j <x_i, D_h x_j>, shape (H, n).
        mass: sum_j w_j exp(<x_i, D_h x_j> - s_hi), shape (H, n), between the smallest positive weight and 1.
        first: sum_j w_j exp(<x_i, D_h x_j> - s_hi) x_j, shape (H, d, n).
    """

    exponent: Tensor
    mass: Tensor
    first: Tensor


def shifted_sums(points: Tensor, weights: Tensor, D: Tensor) -> ShiftedSums:
    """Form the sums of `PairSums.mass` and `first` for points (n, d) in blocks of targets, whatever the exponents.

    In float64, where float32 would round an exponent l by 6e-8 l. Blocks keep the memory O(n d H + block).
    """
    x, w, heads = points.to(_DOUBLE), weights.to(_DOUBLE), D.to(_DOUBLE)
    sources, masses = x[w > 0], w[w > 0]
    columns = heads @ sources.mT
    right = (masses * torch.cat([torch.ones_like(sources[:, :1]), sources], 1).mT).expand(len(heads), -1, -1)
    exponent, sums = x.new_empty(len(heads), len(x)), x.new_empty(len(heads), 1 + x.shape[1], len(x))
    edge = max(1, default_block_bytes(x.device) // (x.element_size() * columns.shape[0] * columns.shape[2]))
    for start in range(0, len(x), edge):
        i = slice(start, start + edge)
        exponents = x[i] @ columns
        exponent[:, i] = exponents.amax(-1)
        kernel = exponents.sub_(exponent[:, i, None]).exp_()
        sums[:, :, i] = right @ kernel.mT
    return ShiftedSums(exponent, sums[:, 0], sums[:, 1:])


def within_range(mass: Tensor) -> bool:
    """Return whether quotients by these sums of exponentials are right: all are far from overflow and underflow."""
    # The first moments are mass times a point: a third of the exponents is left for the points.
    limit = torch.finfo(mass.dtype).max ** (2 / 3)
    smallest, largest = torch.aminmax(mass)
    return float(smallest) > 1 / limit and float(largest) < limit
