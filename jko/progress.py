"""Progress of long work: an object that the caller passes; the library itself never prints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["AbstractProgress", "RichProgress"]


class AbstractProgress(ABC):
    """Told by the driver how far a run is. Any subclass will do: a bar, a log, a notebook widget."""

    __slots__ = ()

    @abstractmethod
    def start(self, total: int, title: str) -> None:
        """A run of `total` steps begins."""

    @abstractmethod
    def update(self, step: int, t: float, columns: dict[str, float]) -> None:
        """Step number `step` (from 1) ended at time t; `columns` holds at least the energy where there is one."""

    @abstractmethod
    def close(self) -> None:
        """The run is over, for whatever reason."""


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class RichProgress(AbstractProgress):
    """A bar with time, energy and residual, by default on standard error.

    Args:
        bar: the `rich` bar to draw on; its columns may show the task field `numbers`.
    """

    bar: Progress = field(default_factory=_bar)

    def start(self, total: int, title: str) -> None:
        self.bar.start()
        self.bar.add_task(title, total=total, numbers="")

    def update(self, step: int, t: float, columns: dict[str, float]) -> None:
        parts = [f"t = {t:.4g}"]
        if "energy" in columns:
            parts.append(f"energy {columns['energy']:.6g}")
        if "residual" in columns:
            parts.append(f"residual {columns['residual']:.1e}")
        self.bar.update(self.bar.task_ids[-1], completed=step, numbers="  ".join(parts))

    def close(self) -> None:
        self.bar.stop()
        for task in self.bar.task_ids:
            self.bar.remove_task(task)
