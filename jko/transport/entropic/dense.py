"""A kernel that is stored: one exponential a pair and eps, then products with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from jko.transport.cost import GroundCost
from jko.transport.entropic.base import AbstractGibbsKernel, DualPoint

__all__ = ["DenseKernel"]

# Potentials may leave those in the stored kernel by this many eps before it is formed anew.
_RANGE = 150.0
# Exponents below are all stored as this one: subnormal numbers are slow, and nothing that small is ever looked at.
_LOWEST = -650.0
_UNDERFLOWN = math.exp(_LOWEST + 2 * _RANGE)
_ENTRIES = 1 << 19


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Reference:
    """Which potentials the stored kernel contains: K_ji = exp((v_i - c_ji) / eps - offset_j), largest entry 1 a row."""

    v: Tensor
    offset: Tensor
    eps: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class DenseKernel(AbstractGibbsKernel):
    """Stores the cost and a kernel with the potentials in it, so that an update is a product with a matrix.

    Where potentials move by more than 150 eps the kernel is formed anew; columns whose sums underflow all the same
    are summed in logarithms. So it is as robust as an iteration in logarithms, at the price of plain products.

    Attributes:
        cost: c, shape (n, m).
        a: row weights, shape (n,).
        b: column weights, shape (m,).
    """

    cost: Tensor
    a: Tensor
    b: Tensor
    _kernel: Tensor = field(init=False, repr=False)
    _reference: list[_Reference] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kernel", torch.empty_like(self.cost))

    @staticmethod
    def of(cost: GroundCost, a: Tensor, b: Tensor) -> DenseKernel:
        """Return the kernel of a ground cost with weights of its sources (rows) and targets (columns)."""
        return DenseKernel(cost.matrix(), a, b)

    @property
    def row_weights(self) -> Tensor:
        return self.a

    @property
    def column_weights(self) -> Tensor:
        return self.b

    def softmin(self, v: Tensor, eps: float) -> Tensor:
        reference, shift = self._absorbed(v, eps)
        sums = self._kernel @ (self.b * shift.exp())
        return -eps * (reference.offset + sums.log())

    def evaluate(self, v: Tensor, eps: float) -> DualPoint:
        reference, shift = self._absorbed(v, eps)
        sums = self._kernel @ (self.b * shift.exp())
        u = -eps * (reference.offset + sums.log())
        columns = self._kernel.mT @ (self.a / sums)
        log_ratio = shift + columns.log()
        lost = columns < _UNDERFLOWN
        if bool(lost.any()):
            exponent = (u[:, None] - self.cost[:, lost]) / eps + self.a.log()[:, None]
            log_ratio[lost] = v[lost] / eps + torch.logsumexp(exponent, 0)
        return DualPoint.of(v, u, eps, log_ratio, self.a, self.b)

    def transfer(self, point: DualPoint) -> Callable[[Tensor], Tensor]:
        reference, shift = self._absorbed(point.v, point.eps)
        right, sums = self.b * shift.exp(), self._sums(point, reference)
        middle, kernel, transposed = self.a / sums.square(), self._kernel, self._kernel.mT

        def product(p: Tensor) -> Tensor:
            return (transposed @ (kernel @ (right * p)).mul_(middle)).mul_(right)

        return product

    def transfer_matrix(self, point: DualPoint, scale: Tensor) -> Tensor:
        reference, shift = self._absorbed(point.v, point.eps)
        left = self.a.sqrt() / self._sums(point, reference)
        part = self._kernel * left[:, None] * (self.b * shift.exp() * scale)
        return part.mT @ part

    def _sums(self, point: DualPoint, reference: _Reference) -> Tensor:
        return (-point.u / point.eps - reference.offset).exp()

    def _absorbed(self, v: Tensor, eps: float) -> tuple[_Reference, Tensor]:
        """Return what the kernel contains, after forming it anew if need be, and (v - its v) / eps."""
        if self._reference and self._reference[0].eps == eps:
            shift = (v - self._reference[0].v) / eps
            if float(shift.abs().amax()) <= _RANGE:
                return self._reference[0], shift
        offset = torch.empty_like(self.a)
        step = max(1, (_ENTRIES if v.device.type == "cpu" else self.cost.numel()) // v.shape[0])
        for start in range(0, offset.shape[0], step):
            rows = slice(start, start + step)
            block = torch.sub(v, self.cost[rows], out=self._kernel[rows]).div_(eps)
            offset[rows] = block.amax(1)
            block.sub_(offset[rows, None]).clamp_(min=_LOWEST).exp_()
        self._reference[:] = [_Reference(v, offset, eps)]
        return self._reference[0], torch.zeros_like(v)
