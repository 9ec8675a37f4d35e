"""Signals that wait, or that are ignored, while something is written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["postponed", "uninterrupted"]

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
