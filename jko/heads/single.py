"""One head of a path as a path of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jko.heads.base import AbstractHeads
from jko.typing import Float, Tensor

__all__ = ["SingleHead"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class SingleHead(AbstractHeads):
    """Head number `index` of a path; its weight is 1."""

    path: AbstractHeads
    index: int

    def at(self, t: float) -> Float[Tensor, "*batch h d d"]:
        return self.path.at(t)[..., self.index : self.index + 1, :, :]

    @property
    def head_weights(self) -> Tensor | None:
        return None

    @property
    def t1(self) -> float:
        return self.path.t1

    @property
    def moves(self) -> bool:
        return self.path.moves
