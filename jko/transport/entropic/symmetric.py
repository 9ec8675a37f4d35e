"""Transport of a measure to itself: one potential, found by averaging it with its own update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.transport.entropic.base import AbstractGibbsKernel

__all__ = ["SelfAscent", "ascend_symmetric"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class SelfAscent:
    """The potential f = u = v of a measure and itself, shape (n,), the value, the error and the updates it took."""

    potential: Tensor
    value: float
    error: float
    iterations: int


def ascend_symmetric(
    kernel: AbstractGibbsKernel, eps: float, *, tolerance: float, most: int, guess: Tensor | None = None
) -> SelfAscent:
    """Iterate f <- (f + T f) / 2 with T f = softmin(f) on a symmetric cost until the error of the rows is small.

    Where exp(-c / eps) is positive definite the error halves at least every time. f = 0 is a good start for every eps,
    since nothing has to move: potentials are of the size eps log n.
    """
    a = kernel.row_weights
    f = torch.zeros_like(a) if guess is None else guess
    spent, error, value = 0, math.inf, math.nan
    while error > tolerance and spent < most:
        u = kernel.softmin(f, eps)
        error, value = torch.stack([a @ torch.expm1((f - u) / eps).abs(), a @ u + a @ f]).tolist()
        f, spent = (f + u) / 2, spent + 1
    return SelfAscent(f, value, error, spent)
