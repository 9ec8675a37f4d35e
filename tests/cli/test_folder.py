"""A finished result is never replaced unasked: one rule for every command that leaves results."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import jko
from jko.cli import folder as folders
from jko.runs import writer
from jko.storage import write_sealed

RUN = """
seed = 3
[measure]
n = 6
[heads]
process = "constant"
num_heads = 2
[scheme]
name = "explicit"
tau = {tau}
[solve]
t1 = {t1}
checkpoint_every = {every}
{more}
"""
SMALL = ("--t1", "0.1", "--tau", "0.1", "--metric", "weighted", "-q")
TINY = ("--small", "-n", "4", "--t1", "0.2", "--dt", "0.1", "--paths", "2", "--heads", "1,2", "-j", "1", "-q")


def _config(tau="0.02", t1="0.06", every="1", more="") -> str:
    Path("c.toml").write_text(RUN.format(tau=tau, t1=t1, every=every, more=more))
    return "c.toml"


COMMANDS = {
    "run": (lambda: ("run", _config(), "-q"), lambda: ("run", _config(tau="0.03"), "-q"), "scheme.tau was 0.02 and is"),
    "sweep": (
        lambda: ("sweep", _config(more="[sweep]\nH = [1, 2]"), "-j", "1", "-q"),
        lambda: ("sweep", _config(tau="0.03", more="[sweep]\nH = [1, 2]"), "-j", "1", "-q"),
        "scheme.tau was 0.02 and is 0.03 now",
    ),
    "compare": (
        lambda: ("compare", "-n", "6", *SMALL),
        lambda: ("compare", "-n", "7", *SMALL),
        "measure.n was 6 and is 7 now",
    ),
    "verify": (
        lambda: ("verify", "--quick", "--only", "reduced-metric", "-q"),
        lambda: ("verify", "--quick", "--only", "reduced-metric", "-q", "--seed", "5"),
        "seed was 0 and is 5 now",
    ),
    "paper": (
        lambda: ("paper", "fig2", *TINY),
        lambda: ("paper", "fig2", *TINY, "--sign", "-1"),
        "sign was 1 and is -1 now",
    ),
}
every_command = pytest.mark.parametrize("name", COMMANDS)


def _content(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@every_command
def test_a_finished_result_of_other_settings_is_refused_by_its_keys(jko_command, name):
    first, other, message = COMMANDS[name]
    assert jko_command(*first())[0] == 0
    before = _content(Path(f"jko-{name}"))
    status, out, err = jko_command(*other())
    assert (status, out) == (2, "")
    assert message in err
    assert "--out" in err
    assert "--overwrite" in err
    assert err.count("\n") == 1
    assert _content(Path(f"jko-{name}")) == before
    assert jko_command(*other(), "--overwrite")[0] == 0
    assert jko_command(*other())[0] == 0
    assert jko_command(*first())[0] == 2


@every_command
def test_a_finished_result_of_the_same_settings_is_told_and_left(jko_command, name):
    first = COMMANDS[name][0]
    status, whole, _ = jko_command(*first(), "--json")
    assert status == 0
    before = _content(Path(f"jko-{name}"))
    again, out, err = jko_command(*first(), "--json")
    assert (again, json.loads(out)) == (0, json.loads(whole))
    assert f"jko-{name} holds th" in err
    assert "nothing was run; --overwrite repeats" in err
    assert _content(Path(f"jko-{name}")) == before


def _stop_the_work(monkeypatch, name):
    """End the command the hard way after it has claimed its folder."""

    def end(*arguments, **options):
        raise RuntimeError("killed")

    target = {
        "run": "jko.cli.execution.PreparedRun.begin",
        "sweep": "jko.cli.sweeping._take",
        "compare": "jko.diagnostics.compare",
        "verify": "jko.verify.verify",
        "paper": "jko.paper.execute",
    }[name]
    monkeypatch.setattr(target, end)
    monkeypatch.setattr(folders.Folder, "_end", lambda folder, status: None)


@every_command
def test_an_overwrite_that_is_cut_short_leaves_nothing_of_the_old_result(jko_command, monkeypatch, name):
    first, other, _ = COMMANDS[name]
    assert jko_command(*first())[0] == 0
    root = Path(f"jko-{name}")
    (root / "notes.txt").write_text("mine")
    with monkeypatch.context() as patch:
        _stop_the_work(patch, name)
        with pytest.raises(RuntimeError, match="killed"):
            jko_command(*other(), "--overwrite")
    assert json.loads((root / "run.json").read_text())["status"] == "running"
    left = {path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file()}
    assert left - {"jobs"} == {"run.json", "config.toml", "notes.txt"}
    # What was begun is no result: nothing protects it.
    assert jko_command(*other())[0] == 0
    assert (root / "notes.txt").read_text() == "mine"


def _reseal(path, run):
    write_sealed(path, {key: value for key, value in run.items() if key != "digest"})


def test_what_changes_no_result_is_no_setting(jko_command, monkeypatch):
    assert jko_command("run", _config(), "-q")[0] == 0
    path = Path("jko-run/run.json")
    run = json.loads(path.read_text())
    _reseal(path, {**run, "versions": {"jko": "0.0.1"}, "threads": 17})
    status, out, err = jko_command("run", _config(every="2"))
    assert status == 0
    assert "SUCCESS" in out
    assert "jko-run holds this solution already (success, finished 2" in err


def test_settings_are_those_of_the_result_not_of_an_edited_file(jko_command):
    assert jko_command("compare", "-n", "6", *SMALL)[0] == 0
    path = Path("jko-compare/config.toml")
    path.write_text(path.read_text().replace("n = 6", "n = 8"))
    assert "measure.n was 6 and is 8 now" in jko_command("compare", path, "-q")[2]


@pytest.mark.parametrize("name", ["run", "compare"])
def test_a_file_that_was_written_after_the_result_is_another_setting(jko_command, name):
    np.save("x.npy", jko.initial_tokens(6, 3, 1).numpy())
    Path("p.toml").write_text('[measure]\npoints = "x.npy"\n[solve]\nt1 = 0.02\n')
    more = ("--tau", "0.02", "--metric", "weighted") if name == "compare" else ()
    assert jko_command(name, "p.toml", "-q", *more)[0] == 0
    assert "nothing was run" in jko_command(name, "p.toml", "-q", *more)[2]
    np.save("x.npy", jko.initial_tokens(6, 3, 2).numpy())
    later = Path(f"jko-{name}/run.json").stat().st_mtime + 1
    os.utime("x.npy", (later, later))
    status, _, err = jko_command(name, "p.toml", "-q", *more)
    assert status == 2
    assert "x.npy was written after the result" in err


def test_a_longer_run_is_referred_to_resume_and_protected_when_it_is_made(jko_command):
    assert jko_command("run", _config(), "-q")[0] == 0
    assert "`jko resume jko-run --t1 T`" in jko_command("run", _config(t1="0.1"), "-q")[2]
    assert jko_command("resume", "jko-run", "--t1", "0.1", "-q")[0] == 0
    assert "solve.t1 was 0.1 and is 0.06 now" in jko_command("run", _config(), "-q")[2]
    assert "nothing was run" in jko_command("run", _config(t1="0.1"), "-q")[2]
    # One that `jko resume` was told to end early has not ended.
    assert jko_command("resume", "jko-run", "--t1", "0.2", "--max-steps", "1", "-q")[0] == 3
    assert "holds a run that has not ended" in jko_command("run", _config(t1="0.2"), "-q")[2]


def test_a_result_keeps_its_exit_status(jko_command, monkeypatch):
    assert jko_command("run", _config(more="max_steps = 2"), "-q")[0] == 3
    assert jko_command("run", _config(more="max_steps = 2"), "-q")[0] == 3
    from jko.diagnostics import Check, Comparison

    with monkeypatch.context() as patch:
        patch.setattr(Comparison, "checks", property(lambda self: (Check("the sky is green", False, "blue"),)))
        assert jko_command("compare", "-n", "6", *SMALL)[0] == 1
    assert jko_command("compare", "-n", "6", *SMALL)[0] == 1


def test_a_sweep_does_not_lose_runs_of_its_table(jko_command):
    assert jko_command("sweep", _config(more="[sweep]\nH = [1, 2]"), "-j", "1", "-q")[0] == 0
    status, _, err = jko_command("sweep", _config(more="[sweep]\nH = [2, 3]"), "-j", "1", "-q")
    assert status == 2
    assert "the lists asked for runs/H1 and do not now" in err
    assert jko_command("sweep", _config(more="[sweep]\nH = [2, 3]"), "-j", "1", "-q", "--overwrite")[0] == 0
    assert sorted(path.name for path in Path("jko-sweep/runs").iterdir()) == ["H2", "H3"]


def test_a_sweep_does_not_replace_a_run_by_a_shorter_one(jko_command):
    limited = "max_steps = {}\n[sweep]\nH = [1]"
    assert jko_command("sweep", _config(more=limited.format(2)), "-j", "1", "-q")[0] == 3
    assert "solve.max_steps was 2 and is 1 now" in jko_command("sweep", _config(more=limited.format(1)), "-q")[2]
    assert jko.load("jko-sweep/runs/H1").steps == 2


def test_an_overwrite_spares_a_run_that_another_process_writes(jko_command):
    assert jko_command("sweep", _config(more="[sweep]\nH = [1]"), "-j", "1", "-q")[0] == 0
    with jko.runs.locked(Path("jko-sweep/runs/H1")):
        status, _, err = jko_command("sweep", _config(more="[sweep]\nH = [1]"), "-j", "1", "-q", "--overwrite")
    assert status == 2
    assert "is being written by another process" in err
    assert jko.load("jko-sweep/runs/H1").status.ok


def test_an_overwrite_removes_nothing_outside_its_folder(jko_command):
    assert jko_command("compare", "-n", "6", *SMALL)[0] == 0
    Path("precious").mkdir()
    Path("precious/summary.json").write_text("mine")
    path = Path("jko-compare/run.json")
    run = json.loads(path.read_text())
    names = ["../precious", str(Path("precious").resolve())]
    _reseal(path, {**run, "solutions": names, "files": ["../precious/summary.json"]})
    assert jko_command("compare", "-n", "6", *SMALL, "--overwrite")[0] == 0
    assert Path("precious/summary.json").read_text() == "mine"


def test_an_interrupted_overwrite_of_a_run_is_the_new_run(jko_command, monkeypatch):
    assert jko_command("run", _config(), "-q")[0] == 0

    def write(path, tensors, about):
        if about["kind"] == "chunk" and about["last"] == 1:
            signal.raise_signal(signal.SIGTERM)
        return _written(path, tensors, about)

    _written = writer.write_described
    monkeypatch.setattr(writer, "write_described", write)
    assert jko_command("run", _config(tau="0.01"), "-q", "--overwrite")[0] == 143
    solution = jko.load("jko-run")
    assert (solution.status, solution.config["scheme"]["tau"]) == (jko.Status.INTERRUPTED, 0.01)
