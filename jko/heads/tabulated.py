"""Heads given by a table of values in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import torch

from jko.checks import as_float_tensor, check_finite, first_bad_index
from jko.errors import InvalidInput
from jko.heads.base import AbstractHeads, check_head_matrices, check_head_weights
from jko.heads.nodes import NodePath
from jko.typing import Float, Tensor

__all__ = ["TabulatedHeads"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class TabulatedHeads(AbstractHeads):
    """Head matrices at given times, linear between them.

    Args:
        times: nodes in time, shape (K,), increasing from 0, K >= 2. A time inside that is given twice is a jump: its
            first matrices are the limit from the left, its second ones those from there on.
        D: head matrices at the nodes, shape (K, H, d, d) or (K, *batch, H, d, d). Copied.
        head_weights: weights on the simplex, shape (H,); None means 1/H.

    Raises:
        InvalidInput: for other shapes, times that do not increase from 0, non-finite entries, or weights off the
            simplex.
    """

    nodes: NodePath = field(repr=False)
    head_weights: Tensor | None
    jumps: tuple[float, ...] = field(repr=False)

    def __init__(self, times: Any, D: Any, head_weights: Any = None) -> None:
        matrices = check_head_matrices(D, "D", batched=True)
        grid = _check_times(times)
        if matrices.ndim < 4 or matrices.shape[0] != len(grid):
            raise InvalidInput(
                f"D must have shape (K, H, d, d) with one entry per time, K = {len(grid)}, got {tuple(matrices.shape)}"
            )
        object.__setattr__(self, "nodes", NodePath(grid, matrices))
        object.__setattr__(self, "jumps", self.nodes.jumps)
        object.__setattr__(self, "head_weights", check_head_weights(head_weights, matrices.shape[-3]))

    @property
    def t1(self) -> float:
        """End of the path."""
        return self.nodes.t1

    @property
    def moves(self) -> bool:
        """Whether D(t) may depend on t: it does."""
        return True

    def at(self, t: float) -> Float[Tensor, "*batch h d d"]:
        """Return the matrices at t, linear between the nodes; see `AbstractHeads.at`."""
        return self.nodes.at(t)


def _check_times(times: Any) -> list[float]:
    grid = as_float_tensor(times, "times", dtype=torch.float64).to("cpu")
    if grid.ndim != 1 or len(grid) < 2:
        raise InvalidInput(
            f"times must have shape (K,) with K >= 2, got {tuple(grid.shape)}; heads that do not move are ConstantHeads"
        )
    check_finite(grid, "times")
    if float(grid[0]) != 0.0:
        raise InvalidInput(f"times must start at 0, got {float(grid[0])!r}; subtract it, or add a node at 0")
    gaps = grid.diff()
    twice = gaps == 0
    # A jump has a side to come from and one to go to.
    stuck = (gaps < 0) | (twice & ((grid[1:] == grid[0]) | (grid[1:] == grid[-1])))
    stuck[1:] |= twice[1:] & twice[:-1]
    if bool(stuck.any()):
        (k,) = first_bad_index(stuck)
        raise InvalidInput(
            f"times must increase, and may repeat once where the heads jump between the first and the last, got "
            f"{float(grid[k])!r} followed by {float(grid[k + 1])!r}"
        )
    return [float(time) for time in grid]
