"""Processes that compute for another one, and are of no use without it."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
import time

__all__ = ["end_with_parent"]

_PAUSE = 0.5


@functools.cache
def end_with_parent() -> None:
    """End this process soon after the one that started it: that may be killed without a chance to say so.

    An orphan would take a core from the command that is started again, and keep the lock on its run. Whatever it was
    writing is whole or not there. In a process that nobody computes for, and in one of dask, whose parent watches it,
    nothing changes.
    """
    if multiprocessing.parent_process() is not None and os.name == "posix":
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PAUSE)
    os._exit(1)
