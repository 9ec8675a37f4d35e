"""Which kernel serves a cost: stored where it fits, formed block by block or by KeOps where it does not."""

from __future__ import annotations

from torch import Tensor

from jko.reductions.keops_probe import keops_available, require_keops
from jko.transport.cost import GroundCost
from jko.transport.entropic.base import AbstractGibbsKernel
from jko.transport.entropic.blocked import BlockedKernel
from jko.transport.entropic.dense import DenseKernel
from jko.transport.entropic.keops import KeOpsKernel, keops_serves

__all__ = ["make_kernel"]

# Two matrices of this many entries are stored: 512 MB.
_LARGEST_DENSE = 1 << 25


def make_kernel(
    cost: GroundCost, a: Tensor, b: Tensor, *, lazy: bool | None = None, keops: bool | None = None
) -> AbstractGibbsKernel:
    """Return the kernel of a cost.

    Args:
        cost: sources are rows.
        a: weights of the rows, positive, with sum 1.
        b: weights of the columns, likewise.
        lazy: whether to form the kernel anew for every sum; None decides by size, True for `keops`.
        keops: whether KeOps forms the sums of a lazy kernel; None takes it on a GPU where it works.

    Raises:
        MissingDependency: for `keops=True` where KeOps does not work.
    """
    n, m = cost.shape
    if keops:
        require_keops()
        return KeOpsKernel(cost, a, b) if keops_serves(cost) else BlockedKernel(cost, a, b)
    if not (n * m > _LARGEST_DENSE if lazy is None else lazy):
        return DenseKernel.of(cost, a, b)
    if keops is None and a.device.type == "cuda" and keops_serves(cost) and keops_available().available:
        return KeOpsKernel(cost, a, b)
    return BlockedKernel(cost, a, b)
