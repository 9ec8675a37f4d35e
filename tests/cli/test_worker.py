from __future__ import annotations

import os
import signal

import pytest

from jko.cli import worker


def _state() -> tuple[int, bool]:
    import torch

    return torch.get_num_threads(), signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_the_worker_has_one_thread_and_ignores_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with worker.distance_worker(1000) as executor:
        assert signal.getsignal(signal.SIGINT) is before
        assert executor.submit(_pid_is_another, os.getpid()).result(timeout=120)
        threads, ignores = executor.submit(_state).result(timeout=120)
    assert threads == 1
    assert ignores or os.name != "posix"


def _pid_is_another(pid: int) -> bool:
    return os.getpid() != pid


def test_small_clouds_need_no_worker():
    with worker.distance_worker(10) as executor:
        assert executor is None
