"""Ctrl-C and SIGTERM in a command whose runs are in other processes: each ends with a full step, and is saved."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, final

from jko.progress import AbstractProgress

__all__ = ["Halt", "halting_on_signals"]

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_PAUSE = 0.1
_TOLD = b"interrupted: the runs end after the steps in progress and are saved (once more ends at once)\n"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Halt(AbstractProgress):
    """Interrupts a run after a full step once its file is there: a file crosses processes and machines alike.

    Attributes:
        path: of the file.
        owner: the process that makes and removes it.
        looked: when it was last looked for; a folder of a network is slow.
    """

    path: Path
    owner: int = field(default_factory=os.getpid)
    looked: list[float] = field(default_factory=lambda: [-float("inf")])

    def asked(self) -> bool:
        """Whether the runs are to end."""
        return self.path.exists()

    def ask(self) -> None:
        """Have the runs end."""
        self.path.touch()

    def start(self, total: int, title: str) -> None:
        """Nothing is shown."""

    def update(self, step: int, t: float, columns: dict[str, float]) -> None:
        now = time.monotonic()
        if now - self.looked[0] >= _PAUSE:
            self.looked[0] = now
            if self.asked():
                raise KeyboardInterrupt

    def close(self) -> None:
        """Leave the file to the first process."""


@contextmanager
def halting_on_signals(halt: Halt) -> Iterator[None]:
    """Have the first signal end the runs in order, and the second one interrupt this process.

    joblib kills its processes when this one is interrupted, so the first signal must not do that. Whoever handled
    signals before is told of it all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old: dict[int, Any] = {}
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > 1:
            raise KeyboardInterrupt
        with suppress(KeyboardInterrupt):
            if callable(old[number]):
                old[number](number, frame)
        try:
            halt.ask()
        except OSError:
            raise KeyboardInterrupt from None
        # Not print: the signal may have come in the middle of one.
        os.write(2, _TOLD)

    old |= {number: signal.signal(number, note) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
