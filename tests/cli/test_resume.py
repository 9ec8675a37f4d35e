"""`jko resume`, `jko info`, `jko plot`; configurations and signals as users meet them: reports H24, H27, H28."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch

import jko
from jko.runs import writer
from tests.runs.kills import differences

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
seed = 11
[measure]
n = 12
[heads]
num_heads = 2
[flow]
metric = "{metric}"
[scheme]
name = "{scheme}"
tau = 0.01
[solve]
t1 = {t1}
checkpoint_every = 1
"""


def _write(name: str = "c.toml", t1: str = "0.1", scheme: str = "jko", metric: str = "weighted", more: str = "") -> str:
    Path(name).write_text(CONFIG.format(t1=t1, scheme=scheme, metric=metric) + more)
    return name


def _unbroken(t1: float = 0.1, scheme=jko.JKO) -> jko.Solution:
    heads = jko.OrnsteinUhlenbeckHeads(jko.initial_heads(2, 3, 11), dt=0.01, t1=t1, seed=11)
    measure = jko.ParticleMeasure(jko.initial_tokens(12, 3, 11))
    return jko.solve(jko.GradientFlow(jko.AttentionEnergy(heads)), measure, scheme(0.01), t1=t1)


# H28: Ctrl-C loses the run


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_h28_a_signal_leaves_a_run_that_goes_on(jko_command, tmp_path, number, status):
    process = subprocess.Popen(
        [sys.executable, "-c", "from jko.cli import main; main()", "run", _write(t1="20.0")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while process.poll() is None and len(list(tmp_path.glob("jko-run/chunks/*.safetensors"))) < 5:
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == status, err
    assert err == "interrupted; what is complete is saved in jko-run; continue with `jko resume jko-run`\n"
    partial = jko.load("jko-run")
    assert partial.status is jko.Status.INTERRUPTED
    assert partial.steps >= 3
    code, out, _ = jko_command("resume", "jko-run", "--max-steps", "2", "-q")
    assert code == 3
    assert "MAX_STEPS" in out
    resumed = jko.load("jko-run")
    assert resumed.steps == partial.steps + 2
    whole = _unbroken(0.01 * resumed.steps)
    assert torch.equal(resumed.measure(-1).points, whole.measure(-1).points)
    assert torch.equal(resumed.records.energy, whole.records.energy)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_h28_a_second_signal_during_the_save_loses_nothing(jko_command, monkeypatch, number):
    calls = []

    def write(path, tensors, about):
        # Into the middle of a write after step 4, and into the save because of it.
        calls.append(about["kind"])
        if calls.count("chunk") >= 5:
            signal.raise_signal(number)
        return _written(path, tensors, about)

    _written = writer.write_described
    monkeypatch.setattr(writer, "write_described", write)
    status, _, err = jko_command("run", _write(), "-q")
    monkeypatch.setattr(writer, "write_described", _written)
    assert status == 128 + number
    assert "continue with `jko resume jko-run`" in err
    assert "Traceback" not in err
    assert jko.load("jko-run").steps >= 4


def test_resume_finishes_what_was_interrupted(jko_command, monkeypatch):
    def write(path, tensors, about):
        if about["kind"] == "chunk" and about["last"] == 6:
            signal.raise_signal(signal.SIGINT)
        return _written(path, tensors, about)

    _written = writer.write_described
    monkeypatch.setattr(writer, "write_described", write)
    assert jko_command("run", _write(), "-q")[0] == 130
    monkeypatch.setattr(writer, "write_described", _written)
    assert json.loads(Path("jko-run/run.json").read_text())["status"] == "interrupted"
    status, out, err = jko_command("run", "c.toml")
    assert (status, out) == (2, "")
    assert "holds a run that has not ended: continue it with `jko resume jko-run`" in err
    told = jko_command("info", "jko-run")[1]
    assert "interrupted: not at its end" in told
    assert "t = 0.06 of 0.1 after 6 steps" in told
    assert "jko resume jko-run" in told
    assert jko_command("plot", "jko-run", "-q")[0] == 0
    status, out, err = jko_command("resume", "jko-run")
    assert status == 0
    assert "SUCCESS" in out
    assert "Run in jko-run; figures: energy.png" in err
    assert differences(jko.load("jko-run"), _unbroken()) == []
    summary = json.loads(Path("jko-run/summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["steps"] == 10
    assert "resumed" in jko_command("info", "jko-run")[1]
    # It is replaced when that is asked for.
    assert jko_command("run", _write(scheme="explicit"), "-q")[0] == 2
    assert jko_command("run", _write(scheme="explicit"), "-q", "--overwrite")[0] == 0


def test_resume_to_a_later_time(jko_command):
    assert jko_command("run", _write(), "-q")[0] == 0
    assert jko_command("resume", "jko-run", "--t1", "0.13", "-q")[0] == 0
    assert differences(jko.load("jko-run"), _unbroken(0.13)) == []
    assert tomllib.loads(Path("jko-run/config.toml").read_text())["solve"]["t1"] == 0.13
    assert jko_command("resume", "jko-run", _write(t1="0.15"), "-q")[0] == 0
    assert differences(jko.load("jko-run"), _unbroken(0.15)) == []
    assert jko_command("resume", "jko-run", "-q")[0] == 0
    status, _, err = jko_command("resume", "jko-run", "--t1", "0.1")
    assert status == 2
    assert "t1 was 0.15" in err
    told = json.loads(jko_command("info", "jko-run", "--json")[1])
    assert told["continue"] == "jko resume jko-run --t1 T, with T above 0.15"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed = 11", "seed = 12", "seed was 11 in the run that is to be continued, and is 12 now"),
        ("tau = 0.01", "tau = 0.02", "scheme.tau was 0.01 in the run that is to be continued, and is 0.02 now"),
        ("n = 12", "n = 12\nd = 4", "measure.d was 3 in the run that is to be continued, and is 4 now"),
        ("n = 12", "n = 13", "measure.n was 12"),
        ('"weighted"', '"headwise"', "flow.metric was 'weighted'"),
        ("t1 = 0.03", "t1 = 0.03\nsave_every = 2", "solve.save_every was 1"),
        ("num_heads = 2", "num_haeds = 2", "did you mean heads.num_heads?"),
    ],
)
def test_resume_refuses_another_configuration(jko_command, old, new, message):
    jko_command("run", _write(t1="0.03"), "-q")
    Path("other.toml").write_text(Path("c.toml").read_text().replace(old, new))
    status, out, err = jko_command("resume", "jko-run", "other.toml")
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_resume_takes_no_negative_number_of_steps(jko_command):
    jko_command("run", _write(t1="0.03"), "-q")
    status, out, err = jko_command("resume", "jko-run", "--t1", "0.05", "--max-steps", "-1")
    assert (status, out, err) == (2, "", "error: max_steps must be at least 0, got -1\n")
    assert jko.load("jko-run").status is jko.Status.SUCCESS


def test_resume_refuses_a_configuration_that_was_edited_in_the_folder(jko_command):
    jko_command("run", _write(t1="0.03"), "-q")
    path = Path("jko-run/config.toml")
    path.write_text(path.read_text().replace("seed = 11", "seed = 12"))
    assert "seed was 11" in jko_command("resume", "jko-run", "--t1", "0.05")[2]


def test_resume_refuses_what_is_no_run(jko_command):
    status, _, err = jko_command("resume", "nowhere")
    assert status == 2
    assert "does not exist; is this a run folder?" in err
    flow = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(jko.initial_heads(2, 3, 1))))
    measure = jko.ParticleMeasure(jko.initial_tokens(5, 3, 1))
    from jko.driver import Checkpoint

    jko.solve(flow, measure, jko.JKO(0.1), t1=0.2, checkpoint=Checkpoint("own"))
    assert "continue it with jko.resume in Python" in jko_command("resume", "own")[2]
    assert "in Python: jko.resume('own', flow, scheme)" in jko_command("info", "own")[1]
    assert jko_command("plot", "own", "-q")[0] == 0


# H24: numbers in configurations


@pytest.mark.parametrize(
    ("text", "table", "key", "value"),
    [
        ("[scheme]\ntau = 1e-2", "scheme", "tau", 0.01),
        ("[scheme]\nrtol = 5.0e-9", "scheme", "rtol", 5e-9),
        ("[measure]\nn = 6.0", "measure", "n", 6),
        ("[solve]\nmax_steps = 10.0", "solve", "max_steps", 10),
        ("[solve]\nt1 = 1", "solve", "t1", 1.0),
    ],
)
def test_h24_numbers_mean_what_they_say(jko_command, text, table, key, value):
    base = {"measure": "n = 5", "solve": "t1 = 0.02", "scheme": 'name = "jko"'}
    base.pop(table)
    Path("c.toml").write_text(text + "\n" + "".join(f"[{name}]\n{line}\n" for name, line in base.items()))
    more = ["--overwrite"] if key == "t1" else []
    assert jko_command("run", "c.toml", "-q", *more)[0] in (0, 3)
    echoed = tomllib.loads(Path("jko-run/config.toml").read_text())[table][key]
    assert echoed == value
    assert type(echoed) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[measure]\nn = "64"', 'measure.n = "64": must be a whole number; write it without quotes'),
        ("seed = 010", "is no TOML"),
        ("[solve]\nsave_clouds = off", "is no TOML"),
        ('[solve]\nsave_clouds = "off"', 'solve.save_clouds = "off": must be true or false'),
        ("[solve]\nmax_steps = 10.5", "solve.max_steps = 10.5: must be a whole number"),
        ('[scheme]\ntau = "1e-2"', 'scheme.tau = "1e-2": must be a number; write it without quotes'),
        ("[solve]\nsave_times = [0.1]\nsave_every = 2", "give one of save_every, save_times and save_clouds"),
        ("[solve]\nsave_times = [2.0]", "save_times ends at 2.0, after t1 = 1.0"),
        ('path = 1\n[heads]\nprocess = "constant"', 'only process = "ou" has'),
        ("[sweep]\nH = [1]", "[sweep] belongs to a configuration of `jko sweep`"),
    ],
)
def test_h24_what_is_no_number_is_one_clear_line(jko_command, text, message):
    Path("c.toml").write_text(text)
    status, out, err = jko_command("run", "c.toml")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(("value", "status"), [("1e-2", 0), ("0.02", 0), ("1e-2x", 2), ("ten", 2)])
def test_h24_numbers_on_the_command_line(jko_command, value, status):
    code, _, err = jko_command("compare", "-n", "5", "--t1", "0.02", "--tau", value, "--metric", "weighted", "-q")
    assert code == status
    if status:
        assert err.count("\n") == 1
        assert value in err


# H27: no display


def test_h27_figures_ask_for_no_window(jko_command, real_figures, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "TkAgg")
    monkeypatch.delenv("DISPLAY", raising=False)
    jko_command("run", _write(t1="0.03", scheme="explicit"), "-q")
    assert jko_command("plot", "jko-run", "-q")[0] == 0
    assert Path("jko-run/energy.png").read_bytes().startswith(b"\x89PNG")
    assert os.environ["MPLBACKEND"] == "TkAgg"


def test_h27_figures_need_no_display(jko_command, tmp_path):
    jko_command("run", _write(t1="0.03", scheme="explicit"), "-q")
    for name in ("energy", "snapshots"):
        Path(f"jko-run/{name}.png").unlink()
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-c", "from jko.cli import main; main()", "plot", "jko-run"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT), "MPLBACKEND": "nonsense"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        f"jko-run/{name}.{kind}" for name in ("energy", "snapshots") for kind in ("png", "pdf")
    ]
    for name in ("energy", "snapshots"):
        assert Path(f"jko-run/{name}.png").read_bytes().startswith(b"\x89PNG")


def test_plot_takes_the_runs_of_a_comparison(jko_command):
    jko_command("compare", "-n", "6", "--t1", "0.1", "--tau", "0.1", "--metric", "weighted", "-q", "--out", "c")
    Path("figures").mkdir()
    status, out, _ = jko_command("plot", "c", "--out", "figures", "-q")
    assert status == 0
    assert "figures/weighted-jko-energy.png" in out
    assert "figures/weighted-explicit-snapshots.pdf" in out
    told = jko_command("info", "c")[1]
    assert "comparison" in told
    assert "success" in told


def test_functionals_alone(jko_command):
    jko_command("run", _write(t1="0.03", more="save_clouds = false\n"), "-q")
    assert jko.load("jko-run").times.tolist() == [0.03]
    jko_command("run", _write(t1="0.03", more="save_times = [0.01]\n"), "-q", "--overwrite")
    assert jko.load("jko-run").times.tolist() == [0.01, 0.03]


def test_a_run_continues_from_another_working_directory(jko_command, monkeypatch):
    import numpy as np

    np.save("x.npy", jko.initial_tokens(6, 3, 1).numpy())
    Path("c.toml").write_text('[measure]\npoints = "x.npy"\n[solve]\nt1 = 0.03\n')
    assert jko_command("run", "c.toml", "-q")[0] == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert jko_command("resume", "../jko-run", "--t1", "0.05", "-q")[0] == 0
    assert jko.load("../jko-run").steps == 5
