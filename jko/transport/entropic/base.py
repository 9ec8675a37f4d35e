"""The contract of a kernel: sums with exp((u_j + v_i - c_ji) / eps), dense or formed anew for every sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

__all__ = ["AbstractGibbsKernel", "DualPoint"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class DualPoint:
    """A potential v of the columns, the potential u that makes the rows exact, and what is missing in the columns.

    P_ji = a_j b_i exp((u_j + v_i - c_ji) / eps) has row sums a exactly, so its mass is 1.

    Attributes:
        v: shape (m,).
        u: shape (n,).
        eps: strength of the entropy.
        log_ratio: log(sum_j P_ji / b_i), shape (m,).
        error: sum_i |sum_j P_ji - b_i|.
        value: <a, u> + <b, v>, the dual objective: the transport cost up to the square of the error of v.
    """

    v: Tensor
    u: Tensor
    eps: float
    log_ratio: Tensor
    error: float
    value: float

    @staticmethod
    def of(v: Tensor, u: Tensor, eps: float, log_ratio: Tensor, a: Tensor, b: Tensor) -> DualPoint:
        """Return the point with its error and value."""
        error = b @ torch.expm1(log_ratio).abs()
        error, value = torch.stack([error, a @ u + b @ v]).tolist()
        return DualPoint(v, u, eps, log_ratio, error, value)


class AbstractGibbsKernel(ABC):
    """Sums over the kernel of a ground cost between n rows and m columns, all of them with positive weights."""

    __slots__ = ()

    @property
    @abstractmethod
    def row_weights(self) -> Tensor:
        """a, shape (n,), with sum 1."""

    @property
    @abstractmethod
    def column_weights(self) -> Tensor:
        """b, shape (m,), with sum 1."""

    @abstractmethod
    def softmin(self, v: Tensor, eps: float) -> Tensor:
        """Return u_j = -eps log sum_i b_i exp((v_i - c_ji) / eps), shape (n,)."""

    @abstractmethod
    def evaluate(self, v: Tensor, eps: float) -> DualPoint:
        """Return the point of the dual at v; right in the logarithms whatever underflows."""

    @abstractmethod
    def transfer(self, point: DualPoint) -> Callable[[Tensor], Tensor]:
        """Return the map p -> P^T diag(1/a) P p of vectors of shape (m,): from columns to rows and back.

        It holds until the kernel is evaluated elsewhere.
        """

    @abstractmethod
    def transfer_matrix(self, point: DualPoint, scale: Tensor) -> Tensor:
        """Return diag(s) P^T diag(1/a) P diag(s) as a matrix (m, m)."""
