"""A second process that computes distances while the first one goes on with the next run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

__all__ = ["distance_worker"]

_PARTICLES_WORTH_A_PROCESS = 200


@contextmanager
def distance_worker(n: int) -> Iterator[Executor | None]:
    """Start one worker, where the distances are worth it and there is a core for it."""
    if n < _PARTICLES_WORTH_A_PROCESS or (os.cpu_count() or 1) < 2:
        yield None
        return
    # A fork would inherit the threads' locks; a fresh interpreter does not.
    executor = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare)
    _start(executor)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _start(executor: Executor) -> None:
    """Start the process with SIGINT ignored: Ctrl-C reaches it too, and the command still needs its distances."""
    if threading.current_thread() is not threading.main_thread():
        executor.submit(_nothing)
        return
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        executor.submit(_nothing)
    finally:
        signal.signal(signal.SIGINT, old)


def _prepare() -> None:
    import torch

    from jko.runs import end_with_parent

    torch.set_num_threads(1)
    end_with_parent()


def _nothing() -> None:
    """The first task, for which the process is started."""
