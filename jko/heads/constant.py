"""Heads that do not move."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, final

import torch

from jko.heads.base import AbstractItoHeads, HeadIncrement, check_head_matrices, check_head_weights, check_time
from jko.heads.nodes import SNAP
from jko.typing import Float, Tensor

__all__ = ["ConstantHeads"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class ConstantHeads(AbstractItoHeads):
    """The same head matrices at every time t >= 0.

    Args:
        D: head matrices, shape (*batch, H, d, d). Copied.
        head_weights: weights on the simplex, shape (H,); None means 1/H.

    Raises:
        InvalidInput: for another shape, non-finite entries, or weights off the simplex.
    """

    D: Tensor = field(repr=False)
    head_weights: Tensor | None

    def __init__(self, D: Any, head_weights: Any = None) -> None:
        matrices = check_head_matrices(D, "D", batched=True)
        object.__setattr__(self, "D", matrices)
        object.__setattr__(self, "head_weights", check_head_weights(head_weights, matrices.shape[-3]))

    @property
    def t1(self) -> float:
        """There is no end: the heads are defined for every t >= 0."""
        return math.inf

    @property
    def moves(self) -> bool:
        """Whether D(t) may depend on t: it does not."""
        return False

    def at(self, t: float) -> Float[Tensor, "*batch h d d"]:
        """Return the same matrices at every t >= 0; see `AbstractHeads.at`."""
        check_time(t, math.inf, slack=SNAP)
        return self.D.clone()

    def increment(self, t: float, tau: float) -> HeadIncrement:
        """Return zeros, whatever the step; see `AbstractItoHeads.increment`."""
        check_time(t, math.inf, slack=SNAP)
        rest = torch.zeros_like(self.D)
        return HeadIncrement(rest, rest, rest[..., 0, 0])
