"""A kernel that is never stored: formed anew for every sum, block by block of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.transport.cost import GroundCost
from jko.transport.entropic.base import AbstractGibbsKernel, DualPoint

__all__ = ["BlockedKernel"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class BlockedKernel(AbstractGibbsKernel):
    """Sums in memory O(n + m) and a block. Both sums of an iteration share one pass, since blocks hold whole rows.

    Attributes:
        cost: the ground cost; sources are rows.
        a: row weights, shape (n,).
        b: column weights, shape (m,).
    """

    cost: GroundCost
    a: Tensor
    b: Tensor

    @property
    def row_weights(self) -> Tensor:
        return self.a

    @property
    def column_weights(self) -> Tensor:
        return self.b

    def softmin(self, v: Tensor, eps: float) -> Tensor:
        u = torch.empty_like(self.a)
        for rows, exponent in self._exponents(v, eps):
            u[rows] = -eps * torch.logsumexp(exponent, 1)
        return u

    def evaluate(self, v: Tensor, eps: float) -> DualPoint:
        u, columns = torch.empty_like(self.a), torch.zeros_like(self.b)
        for rows, exponent in self._exponents(v, eps):
            largest = exponent.amax(1)
            kernel = exponent.sub_(largest[:, None]).exp_()
            sums = kernel.sum(1)
            u[rows] = -eps * (largest + sums.log())
            columns.addmv_(kernel.mT, self.a[rows] / sums)
        log_ratio = columns.log() - self.b.log()
        lost = columns == 0
        if bool(lost.any()):
            every = torch.ones_like(self.a, dtype=torch.bool)
            part = BlockedKernel(self.cost.restricted(every, lost).swapped(), self.b[lost], self.a)
            log_ratio[lost] = (v[lost] - part.softmin(u, eps)) / eps
        return DualPoint.of(v, u, eps, log_ratio, self.a, self.b)

    def transfer(self, point: DualPoint) -> Callable[[Tensor], Tensor]:
        def product(p: Tensor) -> Tensor:
            out = torch.zeros_like(p)
            for rows, exponent in self._exponents(point.v, point.eps):
                kernel = exponent.add_(point.u[rows, None] / point.eps).exp_()
                out.addmv_(kernel.mT, self.a[rows] * (kernel @ p))
            return out

        return product

    def transfer_matrix(self, point: DualPoint, scale: Tensor) -> Tensor:
        out = torch.zeros(*scale.shape, *scale.shape, dtype=scale.dtype, device=scale.device)
        left = point.u / point.eps + self.a.log() / 2
        for rows, exponent in self._exponents(point.v, point.eps):
            part = exponent.add_(left[rows, None]).exp_().mul_(scale)
            out.addmm_(part.mT, part)
        return out

    def _exponents(self, v: Tensor, eps: float) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of rows with log b_i + (v_i - c_ji) / eps, each in a tensor of its own."""
        bias = v / eps + self.b.log()
        for rows in self.cost.blocks():
            yield rows, self.cost.block(rows).div_(-eps).add_(bias)
