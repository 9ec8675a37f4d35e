"""Cache-blocked pair sums in PyTorch: exponents, exponential and products on one buffer that stays in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.checks import check_integer
from jko.reductions.base import AbstractReduction, PairSums

__all__ = ["Blocked"]

_CPU_BLOCK_BYTES = 1_600_000
_DEVICE_BLOCK_BYTES = 256_000_000
_SMALLEST_TILE = 100


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

    def exponential_sums(self, points: Tensor, weights: Tensor, D: Tensor, *, first: bool = True) -> PairSums:
        tiles = _Tiles.of(self.block_bytes, points, D)
        right = _right_factor(points, weights, tiles.heads, first=first)
        out, transposed = tiles.accumulators(right.shape[-2])
        for k, i, j, kernel in tiles.kernels():
            _add_products(out, transposed, right, kernel, k, i, j)
        return _as_sums(out, transposed, first=first)

    def directional_sums(self, points: Tensor, weights: Tensor, D: Tensor, direction: Tensor) -> PairSums:
        tiles = _Tiles.of(self.block_bytes, points, D)
        right = _right_factor(points, weights, tiles.heads, first=True)
        moving = torch.zeros_like(right)
        moving[:, 1:] = (weights[:, None] * direction).mT
        shape = (tiles.heads, *points.shape[-2:])
        rows = torch.cat([direction.expand(shape), points.expand(shape)], -1)
        columns = torch.cat([tiles.columns, D @ direction.mT], 1)
        out, transposed = tiles.accumulators(right.shape[-2])
        for k, i, j, kernel in tiles.kernels():
            rate = torch.bmm(rows[k, i], columns[k, :, j]).mul_(kernel)
            _add_products(out, transposed, right, rate, k, i, j)
            _add_products(out, transposed, moving, kernel, k, i, j)
        return _as_sums(out, transposed, first=True)

    def cross_mass(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> Tensor:
        columns = D @ points.T
        out = torch.zeros(D.shape[0], targets.shape[0], dtype=points.dtype, device=points.device)
        edge = max(1, math.isqrt(_block_elements(self.block_bytes, points)))
        for i in range(0, targets.shape[0], edge):
            for j in range(0, points.shape[0], edge):
                for h in range(D.shape[0]):
                    kernel = (targets[i : i + edge] @ columns[h, :, j : j + edge]).exp_()
                    out[h, i : i + edge] += kernel @ weights[j : j + edge]
        return out

    def largest_exponent(self, points: Tensor, D: Tensor) -> float:
        tiles = _Tiles.of(self.block_bytes, points, D)
        return max(float(exponent.amax()) for _, _, _, exponent in tiles.exponents())


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Tiles:
    """The tiles of one reduction: which (heads, rows, columns) to form, in which order, on one buffer."""

    rows: Tensor
    columns: Tensor
    symmetric: bool
    group: int
    spans: list[slice]
    buffer: Tensor

    @staticmethod
    def of(block_bytes: int | None, points: Tensor, D: Tensor) -> _Tiles:
        n, heads = points.shape[-2], D.shape[0]
        budget = _block_elements(block_bytes, points)
        edge = _tile_edge(n, heads, budget)
        group = max(1, min(heads, budget // (edge * edge)))
        return _Tiles(
            rows=points.expand(heads, n, points.shape[-1]),
            columns=D @ points.mT,
            symmetric=torch.equal(D, D.mT),
            group=group,
            spans=[slice(a, min(n, a + edge)) for a in range(0, n, edge)],
            buffer=torch.empty(group * edge * edge, dtype=points.dtype, device=points.device),
        )

    @property
    def heads(self) -> int:
        return self.rows.shape[0]

    def exponents(self) -> Iterator[tuple[slice, slice, slice, Tensor]]:
        for a in range(0, self.heads, self.group):
            k = slice(a, min(self.heads, a + self.group))
            for p, i in enumerate(self.spans):
                for j in self.spans[p if self.symmetric else 0 :]:
                    shape = (k.stop - k.start, i.stop - i.start, j.stop - j.start)
                    block = self.buffer[: math.prod(shape)].view(shape)
                    torch.bmm(self.rows[k, i], self.columns[k, :, j], out=block)
                    yield k, i, j, block

    def kernels(self) -> Iterator[tuple[slice, slice, slice, Tensor]]:
        for k, i, j, block in self.exponents():
            yield k, i, j, block.exp_()

    def accumulators(self, rows: int) -> tuple[Tensor, Tensor]:
        """Zeroed sums (H, rows, n) for both sides: one tensor for both where D is symmetric."""
        shape = (self.heads, rows, self.rows.shape[1])
        out = torch.zeros(shape, dtype=self.rows.dtype, device=self.rows.device)
        return out, out if self.symmetric else torch.zeros_like(out)


def _add_products(out: Tensor, transposed: Tensor, right: Tensor, kernel: Tensor, k: slice, i: slice, j: slice) -> None:
    transposed[k, :, j] += torch.bmm(right[k, :, i], kernel)
    if transposed is not out or i != j:
        out[k, :, i] += torch.bmm(right[k, :, j], kernel.mT)


def _right_factor(points: Tensor, weights: Tensor, heads: int, *, first: bool) -> Tensor:
    """The columns w [1, x] as rows, shape (H, 1 + d, n) or (H, 1, n); heads share it where they share the cloud."""
    mass = weights.expand(points.shape[:-1])[..., None, :]
    factor = torch.cat([mass, weights * points.mT], -2) if first else mass
    return factor.expand(heads, *factor.shape[-2:])


def _as_sums(out: Tensor, transposed: Tensor, *, first: bool) -> PairSums:
    mass, moment = out[:, 0], out[:, 1:] if first else None
    if transposed is out:
        return PairSums(mass, moment, mass, moment)
    return PairSums(mass, moment, transposed[:, 0], transposed[:, 1:] if first else None)


def _block_elements(block_bytes: int | None, points: Tensor) -> int:
    if block_bytes is None:
        block_bytes = _CPU_BLOCK_BYTES if points.device.type == "cpu" else _DEVICE_BLOCK_BYTES
    return max(1, block_bytes // points.element_size())


def _tile_edge(n: int, heads: int, budget: int) -> int:
    """Edge of a tile: the whole cloud where all heads fit twice the budget, else even parts of the cloud."""
    if n * n * heads <= 2 * budget:
        return n
    edge = max(_SMALLEST_TILE, math.isqrt(budget // min(heads, 16)))
    return math.ceil(n / math.ceil(n / min(edge, n)))
