"""`jko sweep`: combinations, restarts, one table."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import jko
from jko.cli.combinations import expand
from jko.config import read_toml
from jko.errors import InvalidInput
from jko.runs import RunFolder, writer

BASE = """
seed = 3
[measure]
n = 8
[scheme]
name = "explicit"
tau = 0.02
[solve]
t1 = 0.06
checkpoint_every = 1
"""


def _write(sweep: str, base: str = BASE) -> str:
    Path("s.toml").write_text(f"{base}[sweep]\n{sweep}\n")
    return "s.toml"


def _rows() -> list[dict[str, str]]:
    with Path("jko-sweep/results.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_sweep_is_its_runs(jko_command):
    status, out, err = jko_command("sweep", _write('H = [1, 2]\npaths = 2\nmetric = ["weighted"]'), "-j", "1")
    assert status == 0
    assert "4 runs" in out
    assert "Results in jko-sweep: results.csv, results.json, 4 runs" in err
    rows = _rows()
    assert [(row["H"], row["path"], row["metric"]) for row in rows] == [
        (H, path, "weighted") for H in ("1", "2") for path in ("0", "1")
    ]
    told = json.loads(Path("jko-sweep/results.json").read_text(), parse_constant=pytest.fail)
    assert told["parameters"] == ["H", "path", "metric"]
    for row, data in zip(rows, told["rows"], strict=True):
        solution = jko.load(f"jko-sweep/runs/{row['run']}")
        assert float(row["energy_final"]) == data["energy_final"] == float(solution.states.energy[-1])
        assert data["slope2_mean"] == float(solution.states.slope2.mean())
        assert row["status"] == "success"
    # Independent noise on the same heads and tokens.
    first, second = (jko.load(f"jko-sweep/runs/H2_path{k}_metric-weighted") for k in range(2))
    assert torch.equal(first.points[0], second.points[0])
    assert float(first.states.energy[0]) == float(second.states.energy[0])
    assert float(first.states.energy[1]) != float(second.states.energy[1])
    assert "sweep" in jko_command("info", "jko-sweep")[1]


def test_a_sweep_goes_on_where_it_stopped(jko_command, monkeypatch):
    name = _write("seed = [1, 2, 3]")
    begun = []

    def write(path, tensors, about):
        begun.append((path.parts[-3], about["kind"]))
        if path.parts[-3] == "seed2" and about["kind"] == "chunk" and about["last"] == 2 and armed:
            signal.raise_signal(signal.SIGTERM)
        return _written(path, tensors, about)

    _written, armed = writer.write_described, True
    monkeypatch.setattr(writer, "write_described", write)
    status, _, err = jko_command("sweep", name, "-j", "1", "-q")
    assert status == 143
    assert "interrupted; the same command goes on with what is in jko-sweep" in err
    assert [row["status"] for row in _rows()] == ["success", "not finished", "not begun"]
    armed = False
    begun.clear()
    assert jko_command("sweep", name, "-j", "1", "-q")[0] == 0
    # The first run was left alone, the second continued, the third begun.
    assert {run for run, _ in begun} == {"seed2", "seed3"}
    assert json.loads(Path("jko-sweep/runs/seed2/run.json").read_text())["resumed"] == [2]
    again = _rows()
    shutil.rmtree("jko-sweep")
    jko_command("sweep", name, "-j", "1", "-q")
    assert _rows() == again
    # More values: the old runs stay.
    begun.clear()
    assert jko_command("sweep", _write("seed = [1, 2, 3, 4]"), "-j", "1", "-q")[0] == 0
    assert {run for run, _ in begun} == {"seed4"}


@pytest.mark.slow
def test_processes_give_the_same_table(jko_command):
    assert jko_command("sweep", _write("sign = [1, -1]"), "-j", "1", "-q")[0] == 0
    assert jko_command("sweep", "s.toml", "-j", "2", "-q", "--out", "two")[0] == 0
    assert Path("two/results.csv").read_bytes() == Path("jko-sweep/results.csv").read_bytes()


def test_a_folder_of_another_sweep_is_refused(jko_command):
    assert jko_command("sweep", _write("seed = [1]"), "-j", "1", "-q")[0] == 0
    status, _, err = jko_command("sweep", _write("seed = [1]", BASE.replace("n = 8", "n = 9")), "-j", "1", "-q")
    assert status == 2
    assert (
        "jko-sweep/runs/seed1/run.json holds a run of a sweep with other settings: measure.n was 8 and is 9 now" in err
    )


def test_runs_that_fail_are_rows(jko_command):
    base = BASE.replace("n = 8", "n = 8\nd = 3").replace("tau = 0.02", "tau = 0.02\n[heads]\nsigma2 = 1e9")
    status, _, err = jko_command("sweep", _write("seed = [1]", base), "-j", "1", "-q")
    assert status == 3
    (row,) = _rows()
    assert row["status"] == "non_finite"
    assert row["failure"]
    assert err.startswith("seed1: NON_FINITE")
    status, _, err = jko_command("sweep", _write("dt = 1", base), "-j", "1", "-q")
    assert status == 2
    assert "unknown key sweep.dt" in err


def test_one_path_for_every_tau(jko_command):
    runs = expand(read_toml(_write("tau = [0.02, 0.01]\nH = [1]")))
    assert [run.config.heads.dt for run in runs] == [0.01, 0.01]
    assert [run.config.scheme.tau for run in runs] == [0.02, 0.01]
    assert [run.name for run in runs] == ["tau0.02_H1", "tau0.01_H1"]
    (fixed,) = expand(read_toml(_write("tau = [0.02]", BASE + "[heads]\ndt = 0.005\n")))
    assert fixed.config.heads.dt == 0.005


def test_any_key_of_a_run(jko_command):
    runs = expand(read_toml(_write('"measure.n" = [4, 5]\nscheme.rtol = [1e-6]\nscheme.name = ["jko"]\nsign = [-1]')))
    assert [run.config.measure.n for run in runs] == [4, 5]
    assert {run.config.scheme.name for run in runs} == {"jko"}
    assert [run.name for run in runs] == [f"n{n}_scheme.rtol1e-06_scheme-jko_sign-1" for n in (4, 5)]


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("taus = [0.1]", "unknown key sweep.taus; did you mean tau?"),
        ("tau = 0.1", "sweep.tau = 0.1: must be a list of values"),
        ("tau = []", "must be a list of values"),
        ("tau = [0.01, -1.0]", "s.toml, tau-1.0: scheme.tau = -1.0: must be greater than 0"),
        ('"scheme.tua" = [0.1]', "did you mean scheme.tau?"),
        ("seed = [1, 1]", "has the run seed1 twice"),
        ("paths = 2\npath = [1]", "gives path twice"),
        ("paths = 0", "[sweep] paths must be at least 1"),
        ("seed = [1]\nmetric = ['w2']", "flow.metric"),
        ("[measur]\nn = 3", "unknown key measur"),
        ("H = [1, 1.0]", "has the run H1 twice"),
        ("measure = [1]", "sweep.measure is a table: name one of its keys, such as measure.n"),
        ("paths = 1000000000000", "[sweep] paths = 1000000000000 are more than 100000 runs"),
        (
            "n = [4, 999999999999]",
            "s.toml, n999999999999: the tokens and the vertices of shape (1.00000000001e+12, 3) in float64 take",
        ),
        ("tau = [1e-300]", "s.toml, tau1e-300: tau = 1e-300 needs"),
        ('"heads.file" = ["no.npy"]', "heads: the file no.npy does not exist"),
    ],
)
def test_bad_sweeps_are_one_line(jko_command, sweep, message):
    status, out, err = jko_command("sweep", _write(sweep), "-j", "1")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert not Path("jko-sweep").exists()


def test_a_sweep_does_not_report_other_times_or_limits_than_asked_for(jko_command):
    assert jko_command("sweep", _write("H = [1]", BASE + "max_steps = 1\n"), "-j", "1", "-q")[0] == 3
    assert jko_command("sweep", _write("H = [1]", BASE + "max_steps = 2\n"), "-j", "1", "-q")[0] == 3
    assert [(row["status"], row["steps"]) for row in _rows()] == [("max_steps", "2")]
    assert jko_command("sweep", _write("H = [1]"), "-j", "1", "-q")[0] == 0
    assert [(row["status"], row["steps"]) for row in _rows()] == [("success", "3")]
    assert jko_command("sweep", _write("H = [1]", BASE.replace("0.06", "0.08")), "-j", "1", "-q")[0] == 0
    assert [(row["status"], row["steps"]) for row in _rows()] == [("success", "4")]
    status, out, err = jko_command("sweep", _write("H = [1]"), "-j", "1", "-q")
    assert (status, out) == (2, "")
    assert "solve.t1 was 0.08 and is 0.06 now, and a run is not made shorter" in err
    assert [row["steps"] for row in _rows()] == ["4"]


def test_options_that_a_sweep_overrides_are_refused(jko_command):
    status, out, err = jko_command("sweep", _write("seed = [1, 2]"), "--seed", "5", "-q")
    assert (status, out) == (2, "")
    assert err == "error: --seed 5 has no effect, since [sweep] gives seed; leave one of them out\n"
    assert not Path("jko-sweep").exists()


def test_a_run_that_cannot_be_written_keeps_what_it_has(jko_command, monkeypatch):
    jko_command("sweep", _write("H = [1]"), "-j", "1", "-q")
    jko_command("resume", "jko-sweep/runs/H1", "--t1", "1.0", "--max-steps", "1", "-q")
    before = sorted(path.name for path in Path("jko-sweep/runs/H1/chunks").iterdir())

    def full(folder, run):
        raise jko.RunFolderError(f"{folder.path / 'run.json'} could not be written: No space left on device")

    monkeypatch.setattr(RunFolder, "write", full)
    status, _, err = jko_command("sweep", _write("H = [1]", BASE.replace("0.06", "1.0")), "-j", "1", "-q")
    assert status == 2
    assert "No space left on device" in err
    assert sorted(path.name for path in Path("jko-sweep/runs/H1/chunks").iterdir()) == before


def test_damaged_summaries_are_made_anew(jko_command):
    jko_command("sweep", _write("H = [1, 2]"), "-j", "1", "-q")
    table = _rows()
    for text in ("[]", "{"):
        Path("jko-sweep/runs/H2/summary.json").write_text(text)
        assert jko_command("sweep", "s.toml", "-j", "1", "-q")[0] == 0
        assert _rows() == table


def test_a_sweep_from_python_takes_what_python_has(tmp_path):
    config = {
        "measure": {"n": np.int64(4)},
        "scheme": {"name": "explicit", "tau": 0.1},
        "solve": {"t1": np.float64(0.1)},
    }
    lists = {"seed": range(2), "sigma2": np.array([0.5]), "H": (1,)}
    table = jko.sweep({**config, "sweep": lists}, tmp_path / "sweep")
    assert [(row["seed"], row["sigma2"], row["H"]) for row in table.rows] == [(0, 0.5, 1), (1, 0.5, 1)]
    for arguments, message in (
        ((3, tmp_path), "config must be an instance of dict or str or Path, got 3"),
        ((config, 3), "folder must be an instance of str or Path, got 3"),
    ):
        with pytest.raises(InvalidInput, match=message):
            jko.sweep(*arguments)
    with pytest.raises(InvalidInput, match="jobs must be at least 1"):
        jko.sweep(config, tmp_path, jobs=0)


def test_too_many_runs_are_refused():
    data = {"sweep": {"paths": 1000, "seed": list(range(1000))}}
    with pytest.raises(InvalidInput, match="the sweep has 1000000 runs"):
        expand(data)


def test_one_run_per_core_that_there_is(jko_command, monkeypatch):
    import joblib

    from jko.cli import sweeping

    asked = []

    def sweep(*arguments, jobs, **options):
        asked.append(jobs)
        raise InvalidInput("enough")

    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(sweeping, "sweep", sweep)
    jko_command("sweep", _write("seed = [1]"))
    assert asked == [3]
