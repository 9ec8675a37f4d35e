"""A kernel whose sums KeOps forms: no array over pairs, compiled on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.manifolds import Euclidean, Sphere
from jko.reductions.keops_probe import run_lazy
from jko.transport.cost import GroundCost
from jko.transport.entropic.base import AbstractGibbsKernel, DualPoint
from jko.transport.entropic.blocked import BlockedKernel

__all__ = ["KeOpsKernel", "keops_serves"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class KeOpsKernel(AbstractGibbsKernel):
    """Lazy sums by KeOps (Charlier et al. 2021) in memory O(n + m); two formulas a manifold, each for both sides.

    Attributes:
        cost: the ground cost; sources are rows. At least two of either side.
        a: row weights, shape (n,).
        b: column weights, shape (m,).
    """

    cost: GroundCost
    a: Tensor
    b: Tensor

    def __post_init__(self) -> None:
        if not keops_serves(self.cost):
            raise InvalidInput(
                f"KeOps serves clouds of at least two points in R^d or on the sphere, not {self.cost.shape} points on "
                f"{type(self.cost.manifold).__name__}; leave keops at None"
            )

    @property
    def row_weights(self) -> Tensor:
        return self.a

    @property
    def column_weights(self) -> Tensor:
        return self.b

    def softmin(self, v: Tensor, eps: float) -> Tensor:
        return -eps * _log_sums(self.cost, eps, v / eps + self.b.log())

    def evaluate(self, v: Tensor, eps: float) -> DualPoint:
        u = self.softmin(v, eps)
        log_ratio = v / eps + _log_sums(self.cost.swapped(), eps, u / eps + self.a.log())
        return DualPoint.of(v, u, eps, log_ratio, self.a, self.b)

    def transfer(self, point: DualPoint) -> Callable[[Tensor], Tensor]:
        rows, columns = point.u / point.eps, point.v / point.eps + self.b.log()

        def product(p: Tensor) -> Tensor:
            middle = _sums(self.cost, point.eps, rows, columns, p)
            return _sums(self.cost.swapped(), point.eps, columns, rows, self.a * middle)

        return product

    def transfer_matrix(self, point: DualPoint, scale: Tensor) -> Tensor:
        return BlockedKernel(self.cost, self.a, self.b).transfer_matrix(point, scale)


def keops_serves(cost: GroundCost) -> bool:
    """Whether KeOps can form this cost; it would take a lone point for a parameter."""
    return min(cost.shape) > 1 and isinstance(cost.manifold, Euclidean | Sphere)


def _log_sums(cost: GroundCost, eps: float, columns: Tensor) -> Tensor:
    """Return log sum_i exp(columns_i - c_ji / eps), shape (n,)."""

    def formula(lazy: Any) -> Tensor:
        return (lazy(columns[:, None], 0) - _scaled_cost(lazy, cost, eps)).logsumexp(1)

    return _run("log sums", cost, formula)[:, 0]


def _sums(cost: GroundCost, eps: float, rows: Tensor, columns: Tensor, p: Tensor) -> Tensor:
    """Return sum_i exp(rows_j + columns_i - c_ji / eps) p_i, shape (n,)."""

    def formula(lazy: Any) -> Tensor:
        exponent = lazy(rows[:, None], 1) + lazy(columns[:, None], 0) - _scaled_cost(lazy, cost, eps)
        return (exponent.exp() * lazy(p[:, None], 0)).sum(1)

    return _run("sums", cost, formula)[:, 0]


def _scaled_cost(lazy: Any, cost: GroundCost, eps: float) -> Any:
    y, x = lazy(cost.source, 1), lazy(cost.target, 0)
    squares = (y - x).sqnorm2()
    if isinstance(cost.manifold, Sphere):
        squares = squares.sqrt().atan2((y + x).sqnorm2().sqrt()).square() * 4.0
    # Both factors, always: one formula serves every mobility and every eps.
    nothing = cost.source_factor is None and cost.target_factor is None
    beta, alpha = (
        torch.full_like(points[:, 0], default) if part is None else part
        for part, points, default in (
            (cost.source_factor, cost.source, float(nothing)),
            (cost.target_factor, cost.target, 0.0),
        )
    )
    return (lazy(beta[:, None] / eps, 1) + lazy(alpha[:, None] / eps, 0)) * squares


def _run(formula: str, cost: GroundCost, call: Any) -> Tensor:
    """Run a formula with the sources on side 1 and the targets on side 0."""
    kind = type(cost.manifold).__name__, cost.source.shape[1], cost.source.device.type
    return run_lazy(("transport", formula, *kind), call)
