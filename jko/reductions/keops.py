"""Pair sums by KeOps: no array over pairs, compiled on first use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from jko.reductions.base import AbstractReduction, PairSums
from jko.reductions.blocked import Blocked
from jko.reductions.keops_probe import require_keops, run_lazy

__all__ = ["KeOps"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class KeOps(AbstractReduction):
    """Lazy sums over pairs by KeOps (Charlier et al. 2021): memory O(n d H), whatever n is.

    It earns its place on a GPU and for large n; on a CPU the blocked sums are faster. Each formula is compiled once
    per machine, which takes some seconds.

    Raises:
        MissingDependency: at construction, when KeOps does not work here.
    """

    def __post_init__(self) -> None:
        require_keops()

    @property
    def name(self) -> str:
        return "KeOps"

    def exponential_sums(
        self, points: Tensor, weights: Tensor, D: Tensor, *, first: bool = True, second: bool = False
    ) -> PairSums:
        massive = weights != 0
        if _lone(massive):
            return Blocked().exponential_sums(points, weights, D, first=first, second=second)
        factor = _right_factor(points[..., massive, :], weights[massive], order=2 if second else int(first))
        sources = _clouds(points[..., massive, :])
        return _both_sides(D, points.shape[-1], lambda A: _exponential(_clouds(points), sources @ A.mT, factor))

    def directional_sums(self, points: Tensor, weights: Tensor, D: Tensor, direction: Tensor) -> PairSums:
        massive = weights != 0
        if _lone(massive):
            return Blocked().directional_sums(points, weights, D, direction)
        w = weights[massive]
        sources, moving = _clouds(points[..., massive, :]), _clouds(direction[..., massive, :])
        factor = _right_factor(sources, w, order=1)
        shift = torch.cat([torch.zeros_like(moving[..., :1]), w[:, None] * moving], -1)
        targets, rows = _clouds(points), _clouds(direction)
        return _both_sides(
            D,
            points.shape[-1],
            lambda A: _directional(targets, rows, sources @ A.mT, moving @ A.mT, factor, shift),
        )

    def cross_mass(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> Tensor:
        massive = weights != 0
        if _lone(massive) or targets.shape[-2] == 1:
            return Blocked().cross_mass(targets, points, weights, D)
        factor = _right_factor(points[massive], weights[massive], order=0)
        return _exponential(_clouds(targets), points[massive] @ D.mT, factor)[:, 0]

    def cross_sums(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> PairSums:
        massive = weights != 0
        if _lone(massive) or targets.shape[-2] == 1:
            return Blocked().cross_sums(targets, points, weights, D)
        sources = _clouds(points[..., massive, :])
        factor = _right_factor(sources, weights[massive], order=1)
        return _both_sides(D, points.shape[-1], lambda A: _exponential(_clouds(targets), sources @ A.mT, factor))

    def largest_exponent(self, points: Tensor, D: Tensor) -> float:
        if points.shape[-2] == 1:
            return Blocked().largest_exponent(points, D)
        clouds = _clouds(points)

        def largest(lazy: Any) -> Tensor:
            return (lazy(clouds, 1) | lazy(clouds @ D.mT, 0)).max(2)

        return float(run_lazy(("attention", "largest", *_kind(points)), largest).amax())


def _lone(massive: Tensor) -> bool:
    """Whether one particle carries all the mass: KeOps would take a lone point for a parameter."""
    return int(massive.sum()) == 1


def _exponential(targets: Tensor, columns: Tensor, factor: Tensor) -> Tensor:
    """sum_j exp<z_i, y_j> f_j, shape (H, R, m), of targets (1 or H, m, d), columns (H, n, d), factor (1 or H, n, R)."""

    def formula(lazy: Any) -> Tensor:
        return ((lazy(targets, 1) | lazy(columns, 0)).exp() * lazy(factor, 0)).sum(2)

    return run_lazy(("attention", "exponential", *_kind(targets), factor.shape[-1]), formula).mT


def _directional(
    targets: Tensor, rows: Tensor, columns: Tensor, moving: Tensor, factor: Tensor, shift: Tensor
) -> Tensor:
    """The derivative of `_exponential` where everything moves, shape (H, 1 + d, m)."""
    # One product serves both parts of the exponent's derivative.
    left = torch.cat(torch.broadcast_tensors(rows, targets), -1)
    right = torch.cat([columns, moving], -1)

    def formula(lazy: Any) -> Tensor:
        kernel = (lazy(targets, 1) | lazy(columns, 0)).exp()
        rate = lazy(left, 1) | lazy(right, 0)
        return (kernel * (rate * lazy(factor, 0) + lazy(shift, 0))).sum(2)

    return run_lazy(("attention", "directional", *_kind(targets)), formula).mT


def _both_sides(D: Tensor, d: int, side: Any) -> PairSums:
    out = side(D)
    return PairSums.of(out, out if torch.equal(D, D.mT) else side(D.mT), d)


def _right_factor(points: Tensor, weights: Tensor, *, order: int) -> Tensor:
    """The columns w, w x, w x x^T up to an order, shape (1 or H, n, R)."""
    clouds = _clouds(points)
    columns = [torch.ones_like(clouds[..., :1])]
    if order >= 1:
        columns.append(clouds)
    if order >= 2:
        a, b = torch.triu_indices(clouds.shape[-1], clouds.shape[-1], device=clouds.device)
        columns.append(clouds[..., a] * clouds[..., b])
    return weights[:, None] * torch.cat(columns, -1)


def _clouds(points: Tensor) -> Tensor:
    """Clouds (1 or H, n, d): heads share one where they share the points."""
    return points if points.ndim == 3 else points[None]


def _kind(points: Tensor) -> tuple[Any, ...]:
    return points.shape[-1], str(points.dtype), points.device.type
