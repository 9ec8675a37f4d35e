from __future__ import annotations

import json
import tomllib
from pathlib import Path

import matplotlib.image
import pytest
import torch

import jko

CONFIG = """
seed = 2
[measure]
n = 10
[heads]
process = "constant"
num_heads = 2
[flow]
metric = "{metric}"
sign = -1
[scheme]
name = "{scheme}"
tau = 0.02
[solve]
t1 = 0.1
save_every = 2
"""


def _write(**changes: str) -> str:
    Path("c.toml").write_text(CONFIG.format(**{"metric": "weighted", "scheme": "jko", **changes}))
    return "c.toml"


@pytest.mark.parametrize("scheme", ["jko", "explicit"])
@pytest.mark.parametrize("metric", ["wasserstein2", "weighted", "headwise"])
def test_run_leaves_a_run_folder(jko_command, real_figures, scheme, metric):
    status, out, err = jko_command("run", _write(scheme=scheme, metric=metric))
    assert status == 0
    assert "sign = -1" in out
    assert "SUCCESS" in out
    assert "Run in jko-run" in err
    solution = jko.load("jko-run")
    assert solution.times.tolist() == pytest.approx([0, 0.04, 0.08, 0.1])
    assert solution.config["flow"] == {"metric": metric, "sign": -1, "manifold": "sphere"}
    for name in ("energy", "snapshots"):
        assert matplotlib.image.imread(f"jko-run/{name}.png")[..., :3].std() > 0.02
        assert Path(f"jko-run/{name}.pdf").exists()


def test_run_is_the_library_run(jko_command):
    jko_command("run", _write())
    heads = jko.ConstantHeads(jko.initial_heads(2, 3, 2))
    flow = jko.GradientFlow(jko.AttentionEnergy(heads, sign=-1))
    solution = jko.solve(flow, jko.ParticleMeasure(jko.initial_tokens(10, 3, 2)), jko.JKO(0.02), t1=0.1)
    loaded = jko.load("jko-run")
    assert torch.equal(loaded.points[-1], solution.points[-1])
    assert torch.equal(loaded.records.energy, solution.records.energy)


def test_echo_repeats_the_run_and_options_override(jko_command):
    jko_command("run", _write(), "--out", "a", "-q")
    written = tomllib.loads(Path("a/config.toml").read_text())
    assert written["measure"] == {"n": 10, "d": 3}
    jko_command("run", "a/config.toml", "--out", "b", "-q")
    assert torch.equal(jko.load("a").points, jko.load("b").points)
    jko_command("run", "a/config.toml", "--out", "b", "-q", "--seed", "3", "--overwrite")
    assert not torch.equal(jko.load("a").points, jko.load("b").points)


def test_json_is_the_summary(jko_command):
    status, out, _ = jko_command("run", _write(), "--json", "-q")
    assert status == 0
    assert json.loads(out, parse_constant=pytest.fail) == json.loads(Path("jko-run/summary.json").read_text())


def test_a_run_that_ends_early_is_saved_with_status_3(jko_command):
    name = _write()
    Path(name).write_text(Path(name).read_text() + "max_steps = 2\n")
    status, out, err = jko_command("run", name)
    assert status == 3
    assert "MAX_STEPS" in out
    assert jko.load("jko-run").steps == 2
    assert err.startswith("MAX_STEPS; what is complete is saved in jko-run\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[scheme]\ntua = 0.1", "did you mean scheme.tau?"),
        ("[solve]\ntau = 0.1", "unknown key solve.tau = 0.1; tau belongs to [scheme]"),
        ("[measure]\nseed = 1", "seed belongs to the top of the file"),
        ("[solve]\ntaus = [0.1]", "[solve] taus belongs to a configuration of `jko compare`"),
        ('device = "tpu"', "device 'tpu' is none of the choices: cpu, cuda"),
        ('[scheme]\ntau = "1e-2"', "must be a number; write it without quotes"),
        ("[solve]\nt1 = -1.0", "solve.t1 = -1.0: must be greater than 0"),
        ("[solve\n", "is no TOML"),
        ('[measure]\npoints = "no.npy"', "no.npy does not exist"),
        ("[measure]\nn = 999999999999", "the tokens and the vertices of shape (1.00000000001e+12, 3) in float64 take"),
        ("[measure]\nd = 99999999", "the tokens and the vertices of shape (400000296, 99999999) in float64 take"),
        ("[measure]\nd = 99999999999999999999", "measure.d = 99999999999999999999: must be less than"),
        (
            '[heads]\nprocess = "constant"\nnum_heads = 9999999999',
            "the matrices of the head path of shape (1, 9999999999, 3, 3) in float64",
        ),
    ],
)
def test_bad_configurations_are_one_line(jko_command, text, message):
    Path("c.toml").write_text(text)
    status, out, err = jko_command("run", "c.toml")
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert not Path("jko-run").exists()


def test_what_the_system_refuses_is_one_line(jko_command, monkeypatch):
    Path("c.toml").write_text("[measure]\nn = 4\n[solve]\nt1 = 0.02\n")
    status, out, err = jko_command("run", "c.toml", "--out", "x" * 300)
    assert (status, out) == (2, "")
    assert "File name too long" in err

    def unreadable(path):
        raise PermissionError(13, "Permission denied", str(path))

    Path("jko-run").mkdir()
    monkeypatch.setattr(Path, "iterdir", unreadable)
    status, out, err = jko_command("run", "c.toml")
    assert (status, out) == (2, "")
    assert err == "error: [Errno 13] Permission denied: 'jko-run'\n"


def test_run_refuses_the_folder_of_a_comparison(jko_command):
    options = ("-n", "6", "--t1", "0.1", "--tau", "0.1", "--metric", "weighted", "-q", "--out", "c")
    assert jko_command("compare", *options)[0] == 0
    status, _, err = jko_command("run", _write(), "--out", "c")
    assert status == 2
    assert "holds no solution of jko" in err
