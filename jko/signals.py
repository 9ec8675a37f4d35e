"""Signals that wait, or that are ignored, while something is written, and an end by SIGTERM that saves first."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["postponed", "saving_before_end", "uninterrupted"]

_log = logging.getLogger("jko.runs")
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM: half of a result is worse than a second of waiting."""
    # Python lets the main thread alone handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {number: signal.signal(number, signal.SIG_IGN) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def postponed() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the work is done; the first one that came then does what it always does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    old = {number: signal.signal(number, note) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])


@contextmanager
def saving_before_end(message: str) -> Iterator[None]:
    """Let SIGTERM, which would end the process at once, interrupt the work as Ctrl-C does, and end the process then.

    A handler that somebody installed stays in charge, and so does a process that ignores the signal. Outside the main
    thread nothing changes.

    Args:
        message: a warning for the log before the process ends.
    """
    # Python lets the main thread alone handle signals.
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    caught: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        # A second one would lose what is being saved because of the first.
        if len(caught) == 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if caught:
            _log.warning(message)
            signal.raise_signal(signal.SIGTERM)
