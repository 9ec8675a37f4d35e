"""How far many jobs of unequal size are, and when they will be done."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

__all__ = ["AbstractWorkProgress", "RichWork", "remaining_seconds"]


class AbstractWorkProgress(ABC):
    """Told about work in units that jobs of every size share."""

    @abstractmethod
    def start(self, total: float, jobs: int) -> None:
        """`jobs` jobs with `total` units of work begin; what was finished before is not counted."""

    @abstractmethod
    def update(self, done: float, finished: int) -> None:
        """`done` units of the work and `finished` of the jobs are done."""

    @abstractmethod
    def close(self) -> None:
        """It is over, for whatever reason."""


def remaining_seconds(done: float, total: float, elapsed: float) -> float | None:
    """Return the time that the rest takes at the average speed so far; None before there is any."""
    if done <= 0 or elapsed <= 0:
        return None
    return max(total - done, 0.0) * elapsed / done


def _bar() -> Progress:
    return Progress(
        BarColumn(bar_width=28),
        TaskProgressColumn(),
        TextColumn("{task.fields[jobs]} jobs"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rest]}"),
        console=Console(stderr=True),
        transient=True,
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class RichWork(AbstractWorkProgress):
    """A bar on standard error; the remaining time is work over measured speed, not jobs over jobs."""

    bar: Progress = field(default_factory=_bar)

    def start(self, total: float, jobs: int) -> None:
        self.bar.start()
        self.bar.add_task("", total=total, jobs=f"0/{jobs}", count=jobs, begun=time.monotonic(), rest="")

    def update(self, done: float, finished: int) -> None:
        (task,) = self.bar.tasks
        rest = remaining_seconds(done, task.total or 0.0, time.monotonic() - task.fields["begun"])
        self.bar.update(
            task.id,
            completed=done,
            jobs=f"{finished}/{task.fields['count']}",
            rest="" if rest is None else f"about {_duration(rest)} left",
        )

    def close(self) -> None:
        self.bar.stop()
        for task in self.bar.task_ids:
            self.bar.remove_task(task)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 2:
        return f"{60 * minutes + rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
