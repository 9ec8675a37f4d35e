"""Progress of long work: an object that the caller passes; the library itself never prints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

__all__ = ["AbstractProgress", "RichProgress"]


class AbstractProgress(ABC):
    """Told by the driver how far a run is. Any subclass will do: a bar, a log, a notebook widget."""

    @abstractmethod
    def start(self, total: int, title: str) -> None:
        """A run of `total` steps begins."""

    @abstractmethod
    def update(self, step: int, t: float, columns: dict[str, float]) -> None:
        """Step number `step` (from 1) ended at time t; `columns` holds at least the energy where there is one."""

    @abstractmethod
    def close(self) -> None:
        """The run is over, for whatever reason."""


@final
@dataclass(slots=True, eq=False)
class RichProgress(AbstractProgress):
    """A bar on standard error with time, energy and residual.

    Args:
        console: where to draw; None means standard error.
    """

    console: Console | None = None
    _bar: Any = field(default=None, init=False)
    _task: TaskID = field(default=TaskID(0), init=False)

    def start(self, total: int, title: str) -> None:
        self.close()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=self.console or Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(title, total=total, numbers="")

    def update(self, step: int, t: float, columns: dict[str, float]) -> None:
        parts = [f"t = {t:.4g}"]
        if "energy" in columns:
            parts.append(f"energy {columns['energy']:.6g}")
        if "residual" in columns:
            parts.append(f"residual {columns['residual']:.1e}")
        self._bar.update(self._task, completed=step, numbers="  ".join(parts))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
