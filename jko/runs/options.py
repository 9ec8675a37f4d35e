"""Choices of the caller: which clouds a run keeps, and how often it writes them."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from torch import Tensor

from jko.checks import check_finite_number, check_integer, check_kind, check_positive
from jko.errors import InvalidInput

__all__ = ["Checkpoint", "Save"]

_SLACK = 1e-9


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class Save:
    """Which particle clouds a run keeps; the records are complete whatever is kept, and so is the last cloud.

    Args:
        every: keep the initial cloud and every `every`-th step.
        times: keep instead the clouds at these times, a list or an array of shape (S,); between two steps, the cloud of
            the later one.
        clouds: False keeps none but the last: the run is its functionals.
    """

    every: int
    times: tuple[float, ...] | None
    clouds: bool

    def __init__(
        self,
        every: int = 1,
        *,
        times: Sequence[float] | np.ndarray[Any, Any] | Tensor | None = None,
        clouds: bool = True,
    ) -> None:
        if not isinstance(clouds, bool):
            raise InvalidInput(f"clouds must be True or False, got {clouds!r}")
        if (times is not None) + (not clouds) + (every != 1) > 1:
            raise InvalidInput(f"give one of every, times and clouds=False, got every={every!r}, times={times!r}")
        object.__setattr__(self, "every", check_integer(every, "every", least=1))
        object.__setattr__(self, "times", None if times is None else _times(times))
        object.__setattr__(self, "clouds", clouds)

    def steps(self, grid: Sequence[float], tau: float) -> frozenset[int] | None:
        """Return the steps that `times` asks for; None where it asks for nothing.

        Raises:
            InvalidInput: for a time outside the run.
        """
        if self.times is None:
            return None
        slack = _SLACK * tau
        for t in self.times:
            if not grid[0] - slack <= t <= grid[-1] + slack:
                raise InvalidInput(f"save asks for t = {t!r}, outside the run from {grid[0]!r} to {grid[-1]!r}")
        return frozenset(min(bisect.bisect_left(grid, t - slack), len(grid) - 1) for t in self.times)

    def keeps(self, step: int, asked: frozenset[int] | None) -> bool:
        """Whether the cloud of a step is kept, where `asked` is what `steps` returned."""
        return self.clouds and (step % self.every == 0 if asked is None else step in asked)

    def count(self, steps: int, asked: frozenset[int] | None) -> int:
        """Return how many clouds a run of so many steps keeps, where `asked` is what `steps` returned."""
        if not self.clouds:
            return 0
        return steps // self.every + 1 if asked is None else len(asked)

    def as_data(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        times = None if self.times is None else list(self.times)
        return {"every": self.every, "times": times, "clouds": self.clouds}


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class Checkpoint:
    """A folder that a run writes to while it goes on, so that it can be continued from there, see `jko.resume`.

    A run continues bit for bit as if it had never been cut short, on the same machine with the same number of threads.

    Args:
        folder: made where it does not exist.
        every: write after every `every`-th step.
        seconds: write when this much time has passed since the last write; 30 where `every` is not given either.
        overwrite: whether to replace a run that the folder holds.
    """

    folder: Path
    every: int | None
    seconds: float | None
    overwrite: bool

    def __init__(
        self, folder: str | Path, every: int | None = None, seconds: float | None = None, *, overwrite: bool = False
    ) -> None:
        check_kind(folder, (str, Path), "folder")
        seconds = 30.0 if every is None and seconds is None else seconds
        object.__setattr__(self, "folder", Path(folder))
        object.__setattr__(self, "every", None if every is None else check_integer(every, "every", least=1))
        object.__setattr__(self, "seconds", None if seconds is None else check_positive(seconds, "seconds", zero=True))
        object.__setattr__(self, "overwrite", bool(overwrite))


def _times(times: Any) -> tuple[float, ...]:
    if isinstance(times, np.ndarray | Tensor) and times.ndim == 1:
        times = times.tolist()
    if isinstance(times, str) or not isinstance(times, Sequence) or len(times) == 0:
        raise InvalidInput(f"times must be a list of at least one time, got {times!r}")
    return tuple(check_finite_number(t, "every time") for t in times)
