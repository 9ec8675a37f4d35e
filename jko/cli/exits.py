"""Exit status, and signals that end the work in order."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, final

from jko.signals import uninterrupted

__all__ = [
    "EXIT_BAD_INPUT",
    "EXIT_DAMAGED",
    "EXIT_NUMERICAL",
    "EXIT_STATEMENT",
    "INTERRUPTED",
    "Interrupts",
    "uninterrupted",
]

EXIT_STATEMENT = 1
EXIT_BAD_INPUT = 2
EXIT_NUMERICAL = 3
EXIT_DAMAGED = 4
INTERRUPTED = -1
"""What a command returns when it saved what was complete; the application knows which signal it was."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Interrupts:
    """Turns SIGTERM into the KeyboardInterrupt that the driver knows, and remembers which signal came.

    Only the first one interrupts: a second would lose what is being saved because of the first. Used as a context
    manager; outside it the handlers are what they were.
    """

    seen: list[int] = field(default_factory=list)
    old: dict[int, Any] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """128 + the number of the first signal: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + (self.seen[0] if self.seen else signal.SIGINT)

    def __enter__(self) -> Interrupts:
        # Python lets the main thread alone handle signals.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.old[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.seen.append(number)
        if len(self.seen) == 1:
            raise KeyboardInterrupt
        if len(self.seen) == 2:
            # Not print: the signal may have come in the middle of one.
            os.write(2, b"already interrupted: saving what is complete (SIGQUIT, Ctrl-\\, ends at once)\n")
