"""A sweep in processes of its own that is interrupted: every finished step is on the disk."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jko

ROOT = Path(__file__).resolve().parents[2]
# Nothing but the end of a run writes.
SWEEP = """
[measure]
n = 6
[heads]
process = "constant"
[scheme]
name = "explicit"
tau = 0.001
[solve]
t1 = 1000.0
save_clouds = false
checkpoint_seconds = 1e6
[sweep]
H = [1, 2, 3]
"""
# Python reads this file by itself when it starts: the processes of joblib tell of every step, too.
COUNTER = """
import os, sys
if not any("resource_tracker" in word for word in sys.orig_argv):
    from pathlib import Path
    from jko.loop import Run

    append = Run._append

    def counted(run, step, *rest):
        append(run, step, *rest)
        with open(Path(os.environ["COUNTS"], run.writer.folder.path.name), "a") as file:
            file.write(f"{step}\\n")

    Run._append = counted
"""


def _steps(counts: Path) -> dict[str, int]:
    return {path.name: int(path.read_text().split("\n")[:-1][-1]) for path in counts.iterdir() if path.stat().st_size}


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("number", "group", "status"),
    [
        # What a terminal does, what `kill` does, and what a batch system does.
        pytest.param(signal.SIGINT, True, 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, False, 143, id="kill"),
        pytest.param(signal.SIGTERM, True, 143, id="batch"),
    ],
)
def test_an_interrupted_sweep_in_two_processes_loses_no_step(tmp_path, number, group, status):
    counts = tmp_path / "counts"
    for folder in (counts, tmp_path / "site"):
        folder.mkdir()
    (tmp_path / "s.toml").write_text(SWEEP)
    (tmp_path / "site" / "sitecustomize.py").write_text(COUNTER)
    with subprocess.Popen(
        [sys.executable, "-c", "from jko.cli import main; main()", "sweep", "s.toml", "-j", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}", "COUNTS": str(counts)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            while process.poll() is None and list(_steps(counts).values() or [0])[-1] < 20:
                time.sleep(0.05)
            while process.poll() is None and len(_steps(counts)) < 2:
                time.sleep(0.05)
            (os.killpg if group else os.kill)(process.pid, number)
            err = process.stderr.read()
            process.wait(timeout=120)
        finally:
            process.kill()
    assert process.returncode == status, err
    assert "the runs end after the steps in progress and are saved" in err
    assert "interrupted; the same command goes on with what is in jko-sweep" in err
    assert "Traceback" not in err
    steps = _steps(counts)
    folder = tmp_path / "jko-sweep"
    assert max(steps.values()) >= 20
    for name, count in steps.items():
        run = jko.load(folder / "runs" / name)
        assert (run.steps, run.status) == (count, jko.Status.INTERRUPTED)
        assert json.loads((folder / "runs" / name / "run.json").read_text())["status"] == "interrupted"
    with (folder / "results.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["not finished", "not finished", "not begun"]
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    assert not list(folder.glob(".halt*"))
