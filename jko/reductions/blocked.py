"""Cache-blocked pair sums in PyTorch: exponents, exponential and products on one buffer that stays in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.checks import check_integer
from jko.reductions.base import AbstractReduction, PairSums, default_block_bytes

__all__ = ["Blocked"]

_SMALLEST_TILE = 60
_ALIGNED = 4


@final
@dataclass(frozen=True, slots=True, eq=False)
class Blocked(AbstractReduction):
    """Sums by tiles (heads x rows x columns) whose exponentials fit the cache; memory O(n d H + block).

    For symmetric D only the tiles on and above the diagonal are formed, and each serves both sides. The batched
    products give every thread whole heads, so that a thread finds in its own cache what it just wrote.

    Args:
        block_bytes: size of the buffer; None means 1.6 MB on the CPU (the second-level cache of two cores) and
            256 MB on a GPU.
    """

    block_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.block_bytes is not None:
            check_integer(self.block_bytes, "block_bytes", least=4096)

    @property
    def name(self) -> str:
        return "blocked"

    def exponential_sums(
        self, points: Tensor, weights: Tensor, D: Tensor, *, first: bool = True, second: bool = False
    ) -> PairSums:
        n, heads, order = points.shape[-2], D.shape[0], 2 if second else int(first)
        factor = _right_factor(points, weights, heads, order=order)
        if n * n * heads <= _block_elements(self.block_bytes, points):
            return _one_tile(points, weights, D, factor)
        tiles = _Tiles.of(self.block_bytes, points, D)
        right = tiles.split(factor)
        sums = tiles.accumulators(right, weights)
        for k in tiles.groups:
            local, local_sums = _at(right, k), sums.at(k)
            for i, j, exponent in tiles.exponents(k):
                local_sums.add(local, exponent.exp_(), i, j)
        return sums.gathered(points.shape[-1])

    def directional_sums(self, points: Tensor, weights: Tensor, D: Tensor, direction: Tensor) -> PairSums:
        tiles = _Tiles.of(self.block_bytes, points, D)
        factor = _right_factor(points, weights, tiles.heads, order=1)
        shift = torch.zeros_like(factor)
        shift[:, 1:] = (weights[:, None] * direction).mT
        right, moving = tiles.split(factor), tiles.split(shift)
        shape = (tiles.heads, *points.shape[-2:])
        rows = torch.cat([direction.expand(shape), points.expand(shape)], -1).split(tiles.edge, -2)
        columns = tiles.split(torch.cat([D @ points.mT, D @ direction.mT], 1))
        sums = tiles.accumulators(right, weights)
        for k in tiles.groups:
            local, local_moving, local_sums = _at(right, k), _at(moving, k), sums.at(k)
            for i, j, exponent in tiles.exponents(k):
                kernel = exponent.exp_()
                local_sums.add(local, torch.bmm(rows[i][k], columns[j][k]).mul_(kernel), i, j)
                local_sums.add(local_moving, kernel, i, j, first=False)
        return sums.gathered(points.shape[-1])

    def cross_mass(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> Tensor:
        massive = weights != 0
        return self._one_sided(targets, points[massive], weights[massive], D, order=0)[:, 0]

    def cross_sums(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> PairSums:
        massive = weights != 0
        points, weights = points[..., massive, :], weights[massive]
        out = self._one_sided(targets, points, weights, D, order=1)
        if torch.equal(D, D.mT):
            return PairSums.of(out, out, points.shape[-1])
        return PairSums.of(out, self._one_sided(targets, points, weights, D.mT, order=1), points.shape[-1])

    def _one_sided(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor, *, order: int) -> Tensor:
        """Rows sum_j w_j [1, x_j] exp<z_i, D_h x_j>, shape (H, 1 + d, m); order 0 the first row alone."""
        heads, m = D.shape[0], targets.shape[-2]
        rows = targets.expand(heads, m, targets.shape[-1])
        columns, right = D @ points.mT, _right_factor(points, weights, heads, order=order)
        out = torch.empty(heads, right.shape[1], m, dtype=points.dtype, device=points.device)
        edge = max(1, _block_elements(self.block_bytes, points) // max(1, heads * points.shape[-2]))
        for start in range(0, m, edge):
            i = slice(start, start + edge)
            kernel = torch.bmm(rows[:, i], columns).exp_()
            out[:, :, i] = torch.bmm(right, kernel.mT)
        return out

    def largest_exponent(self, points: Tensor, D: Tensor) -> float:
        tiles = _Tiles.of(self.block_bytes, points, D)
        return max(float(exponent.amax()) for k in tiles.groups for _, _, exponent in tiles.exponents(k))


def _one_tile(points: Tensor, weights: Tensor, D: Tensor, factor: Tensor) -> PairSums:
    """The sums of few pairs, whose exponentials fit the buffer as one tile: three products and an exponential."""
    n, d = points.shape[-2:]
    # K = exp(x D x^T); sums over sources are F K^T, those of the other side F K, with F = [w, w x, ..]^T.
    kernel = torch.bmm(points.expand(D.shape[0], n, d), D @ points.mT).exp_()
    rows = columns = kernel
    tracers = weights == 0
    if bool(tracers.any()):
        # A tracer adds nothing even where exp overflows, and 0 * inf is not 0.
        rows, columns = kernel.masked_fill(tracers[:, None], 0.0), kernel.masked_fill(tracers, 0.0)
    transposed = torch.bmm(factor, rows)
    out = transposed if torch.equal(D, D.mT) else torch.bmm(factor, columns.mT)
    return PairSums.of(out, transposed, d)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Tiles:
    """The tiles of one reduction: which (heads, rows, columns) to form, in which order, on one buffer."""

    rows: tuple[Tensor, ...]
    columns: tuple[Tensor, ...]
    symmetric: bool
    edge: int
    groups: list[slice]
    buffer: Tensor

    @staticmethod
    def of(block_bytes: int | None, points: Tensor, D: Tensor) -> _Tiles:
        n, heads = points.shape[-2], D.shape[0]
        budget = _block_elements(block_bytes, points)
        edge = _tile_edge(n, heads, budget)
        group = max(1, min(heads, budget // (edge * edge)))
        return _Tiles(
            rows=points.expand(heads, n, points.shape[-1]).split(edge, -2),
            columns=(D @ points.mT).split(edge, -1),
            symmetric=torch.equal(D, D.mT),
            edge=edge,
            groups=[slice(a, min(heads, a + group)) for a in range(0, heads, group)],
            buffer=torch.empty(group * edge * edge, dtype=points.dtype, device=points.device),
        )

    @property
    def heads(self) -> int:
        return self.columns[0].shape[0]

    def split(self, factor: Tensor) -> tuple[Tensor, ...]:
        """Cut a factor (H, r, n) at the edges of the tiles."""
        return factor.split(self.edge, -1)

    def accumulators(self, right: Sequence[Tensor], weights: Tensor) -> _Accumulators:
        """Sums of both sides, cut like the right factor; one set for both where D is symmetric."""
        out = _Parts.like(right)
        tracers = weights == 0
        return _Accumulators(
            out,
            out if self.symmetric else _Parts.like(right),
            tracers.split(self.edge) if bool(tracers.any()) else None,
        )

    def exponents(self, k: slice) -> Iterator[tuple[int, int, Tensor]]:
        """The exponents of the tiles of a group of heads, one at a time on the common buffer."""
        rows, columns = _at(self.rows, k), _at(self.columns, k)
        heads, blocks = rows[0].shape[0], {}
        for i, row in enumerate(rows):
            for j in range(i if self.symmetric else 0, len(columns)):
                shape = (heads, row.shape[1], columns[j].shape[2])
                if shape not in blocks:
                    blocks[shape] = self.buffer[: math.prod(shape)].view(shape)
                yield i, j, torch.bmm(row, columns[j], out=blocks[shape])


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Sums (H, r, n) cut at the edges of the tiles, each part contiguous on one stretch of memory.

    Only into contiguous memory does a batched product write in one call.
    """

    memory: Tensor
    parts: list[Tensor]

    @staticmethod
    def like(right: Sequence[Tensor]) -> _Parts:
        first = right[0]
        sizes = [part.shape.numel() for part in right]
        memory = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        return _Parts(memory, [flat.view(part.shape) for flat, part in zip(memory.split(sizes), right, strict=True)])

    def joined(self) -> Tensor:
        """The sums as one tensor (H, r, n)."""
        first = self.parts[0]
        heads, rows, edge = first.shape
        if all(part.shape == first.shape for part in self.parts):
            return self.memory.view(-1, heads, rows, edge).permute(1, 2, 0, 3).reshape(heads, rows, -1)
        return torch.cat(self.parts, -1)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Accumulators:
    """The sums of both sides and what each tile adds to them; the first product of a part writes it."""

    out: _Parts
    transposed: _Parts
    tracers: tuple[Tensor, ...] | None

    @property
    def symmetric(self) -> bool:
        return self.transposed is self.out

    def at(self, k: slice) -> _Accumulators:
        """The part of a group of heads."""
        out = _Parts(self.out.memory, _at(self.out.parts, k))
        transposed = out if self.symmetric else _Parts(self.transposed.memory, _at(self.transposed.parts, k))
        return _Accumulators(out, transposed, self.tracers)

    def add(self, right: list[Tensor], kernel: Tensor, i: int, j: int, *, first: bool = True) -> None:
        """Add what the tile in row i and column j contributes to both sides.

        `first` says that nothing was added for this tile before.
        """
        rows = columns = kernel
        if self.tracers is not None:
            # A tracer adds nothing even where exp overflows, and 0 * inf is not 0.
            rows, columns = (
                kernel.masked_fill(self.tracers[i][:, None], 0.0),
                kernel.masked_fill(self.tracers[j], 0.0),
            )
        _put(self.transposed.parts[j], right[i], rows, new=first and i == 0)
        if i != j or not self.symmetric:
            new = first and j == 0 and not self.symmetric
            _put(self.out.parts[i], right[j], columns.transpose(-1, -2), new=new)

    def gathered(self, d: int) -> PairSums:
        out = self.out.joined()
        return PairSums.of(out, out if self.symmetric else self.transposed.joined(), d)


def _put(part: Tensor, right: Tensor, kernel: Tensor, *, new: bool) -> None:
    """Write a product into a part of the sums, or add it where something stands there already."""
    if new:
        torch.bmm(right, kernel, out=part)
    else:
        part.baddbmm_(right, kernel)


def _at(parts: Sequence[Tensor], k: slice) -> list[Tensor]:
    return [part[k] for part in parts]


def _right_factor(points: Tensor, weights: Tensor, heads: int, *, order: int) -> Tensor:
    """The rows w, w x, w x x^T up to an order, shape (H, r, n); heads share it where they share the cloud."""
    rows = [weights.expand(points.shape[:-1])[..., None, :]]
    if order >= 1:
        rows.append(weights * points.mT)
    if order >= 2:
        a, b = torch.triu_indices(points.shape[-1], points.shape[-1], device=points.device)
        rows.append(weights * (points[..., a] * points[..., b]).mT)
    factor = torch.cat(rows, -2)
    return factor.expand(heads, *factor.shape[-2:])


def _block_elements(block_bytes: int | None, points: Tensor) -> int:
    if block_bytes is None:
        block_bytes = default_block_bytes(points.device)
    return max(1, block_bytes // points.element_size())


def _tile_edge(n: int, heads: int, budget: int) -> int:
    """Edge of a tile: the whole cloud where all heads fit the budget, else nearly even parts of the cloud."""
    edge = max(_SMALLEST_TILE, math.isqrt(budget // heads))
    if edge >= n:
        return n
    even = math.ceil(n / math.ceil(n / edge))
    # Whole vector registers: rows of 59 numbers take longer than rows of 60.
    return math.ceil(even / _ALIGNED) * _ALIGNED
