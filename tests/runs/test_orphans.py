"""Workers do not outlive the command that they compute for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKER = """
import multiprocessing, os, sys, time
sys.path.insert(0, {root!r})
from jko.runs.orphans import end_with_parent

def work():
    end_with_parent()
    os.write(1, b"up")
    time.sleep(60)

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
"""


@pytest.mark.skipif(os.name != "posix", reason="processes of POSIX")
def test_a_worker_ends_with_a_parent_that_was_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", WORKER.format(root=str(ROOT))], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.read(2) == b"up"
    finally:
        process.kill()
        process.wait()
    # The end of the pipe comes when the worker, too, has closed it.
    with process.stdout as pipe:
        assert pipe.read() == b""
