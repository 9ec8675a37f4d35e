"""Some heads of a path as a path of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from jko.heads.base import AbstractHeads
from jko.typing import Float, Tensor

__all__ = ["SelectedHeads"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class SelectedHeads(AbstractHeads):
    """The heads of a path with these numbers, in this order; their weights are equal."""

    path: AbstractHeads
    indices: tuple[int, ...]
    jumps: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "jumps", self.path.jumps)

    def at(self, t: float) -> Float[Tensor, "*batch h d d"]:
        return self.path.at(t)[..., list(self.indices), :, :]

    @property
    def head_weights(self) -> Tensor | None:
        return None

    @property
    def t1(self) -> float:
        return self.path.t1

    @property
    def moves(self) -> bool:
        return self.path.moves
