"""SIGTERM in a program that gave a checkpoint: saved as after Ctrl-C, and ended as by SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import jko
from jko.driver import Checkpoint
from jko.progress import AbstractProgress

ROOT = Path(__file__).parents[2]
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
TAU = 0.001
# Nothing but the end writes: what is saved is saved because of the signal.
PROGRAM = """
import signal, sys
from pathlib import Path
import jko
from tests.runs.test_signals import Counter, problem

{handler}
flow, measure, scheme = problem()
checkpoint = jko.Checkpoint({folder!r}, seconds=1e6)
t1 = {t1}
try:
    if {again}:
        jko.resume(checkpoint, flow, scheme, t1=t1, progress=Counter())
    else:
        jko.solve(flow, measure, scheme, t1=t1, checkpoint=checkpoint, progress=Counter())
except BaseException as error:
    print(type(error).__name__, flush=True)
    raise
print("went on", flush=True)
"""


class Counter(AbstractProgress):
    """Prints the number of every step that is complete."""

    def start(self, total: int, title: str) -> None:
        """Nothing to prepare."""

    def update(self, step: int, t: float, columns: dict[str, float]) -> None:
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing to close."""


def problem() -> tuple[jko.GradientFlow, jko.ParticleMeasure, jko.ExplicitEuler]:
    flow = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(jko.initial_heads(2, 3, 1))))
    return flow, jko.ParticleMeasure(jko.initial_tokens(8, 3, 1)), jko.ExplicitEuler(TAU)


def interrupted(folder: Path, number: int, *, t1: float = 1e3, handler: str = "", again: bool = False) -> tuple:
    """Run the program, send the signal after some steps: exit status, lines of its output, standard error."""
    program = PROGRAM.format(folder=str(folder), t1=t1, handler=handler, again=again)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            lines = [process.stdout.readline() for _ in range(5)]
            process.send_signal(number)
            # Not communicate: it passes over what readline has read ahead.
            out, err = process.stdout.read(), process.stderr.read()
            process.wait(timeout=120)
        finally:
            process.kill()
    return process.returncode, "".join([*lines, out]).split("\n")[:-1], err


@posix
def test_sigterm_saves_every_full_step_and_ends_the_process(tmp_path: Path) -> None:
    status, lines, err = interrupted(tmp_path / "run", signal.SIGTERM)
    assert status == -signal.SIGTERM
    # The program is ended as by the signal: none of its own code runs after the run.
    assert lines == [str(k + 1) for k in range(len(lines))]
    assert "ended by SIGTERM: jko.resume continues what is saved in" in err
    solution = jko.load(tmp_path / "run")
    assert solution.status is jko.Status.INTERRUPTED
    assert solution.steps - len(lines) in (0, 1)
    # A run that goes on is as safe as one that begins.
    status, lines, _ = interrupted(tmp_path / "run", signal.SIGTERM, again=True)
    assert status == -signal.SIGTERM
    again = jko.load(tmp_path / "run")
    assert again.steps - int(lines[-1]) in (0, 1)
    assert again.steps > solution.steps
    flow, measure, scheme = problem()
    whole = jko.solve(flow, measure, scheme, t1=TAU * again.steps)
    assert torch.allclose(again.measure(-1).points, whole.measure(-1).points, rtol=0, atol=1e-12)


@posix
def test_ctrl_c_saves_as_much_and_leaves_the_program_its_say(tmp_path: Path) -> None:
    status, lines, err = interrupted(tmp_path, signal.SIGINT)
    assert lines[-1] == "SolveFailed"
    assert status == 1
    assert "SIGTERM" not in err
    assert jko.load(tmp_path).steps - (len(lines) - 1) in (0, 1)


@posix
@pytest.mark.parametrize("handler", ["lambda *_: print('mine', flush=True)", "signal.SIG_IGN"])
def test_a_handler_of_the_program_stays_in_charge(tmp_path: Path, handler: str) -> None:
    handler_line = f"signal.signal(signal.SIGTERM, {handler})"
    status, lines, err = interrupted(tmp_path, signal.SIGTERM, t1=0.05, handler=handler_line)
    assert (status, lines[-1]) == (0, "went on"), err
    assert ("mine" in lines) == ("mine" in handler)
    assert jko.load(tmp_path).steps == 50


def _handlers_during(folder: Path | None) -> list[object]:
    seen: list[object] = []

    def look(progressed: object) -> bool:
        seen.append(signal.getsignal(signal.SIGTERM))
        return False

    flow, measure, scheme = problem()
    checkpoint = None if folder is None else Checkpoint(folder)
    jko.solve(flow, measure, scheme, t1=2 * TAU, checkpoint=checkpoint, stop=look)
    return seen


def test_the_handler_is_there_for_runs_with_a_checkpoint_alone(tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert _handlers_during(None) == [signal.SIG_DFL] * 2
    assert all(callable(handler) for handler in _handlers_during(tmp_path / "run"))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(jko.RunFolderError):
        _handlers_during(tmp_path / "run")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.extend(_handlers_during(tmp_path / "thread")))
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL] * 2
