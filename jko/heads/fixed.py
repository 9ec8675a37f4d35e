"""Heads at one time: what a step works with once its end time is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from jko.heads.base import AbstractHeads

__all__ = ["FixedHeads"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class FixedHeads(AbstractHeads):
    """The matrices of a path at one time, in the precision and on the device of the particles.

    `at` gives them whatever the time, unchecked and not copied: for the inner loop of a step.
    """

    D: Tensor = field(repr=False)
    head_weights: Tensor | None = None

    @property
    def t1(self) -> float:
        return math.inf

    @property
    def moves(self) -> bool:
        return False

    def at(self, t: float) -> Tensor:
        return self.D
