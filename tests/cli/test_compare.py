from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

import jko
from jko import diagnostics

TINY = ("-n", "12", "-H", "2", "--t1", "0.1", "--tau", "0.05", "--tau", "0.025", "-q")
FIGURES = ("distance", "energy", "gap", "snapshots-wasserstein2", "snapshots-weighted", "snapshots-headwise")


@pytest.fixture
def keep(monkeypatch):
    """The comparisons that the command made."""
    kept = []

    def compare(*arguments, **keywords):
        kept.append(_compare(*arguments, **keywords))
        return kept[-1]

    _compare = diagnostics.compare
    monkeypatch.setattr(diagnostics, "compare", compare)
    return kept


def test_compare_leaves_everything_behind(jko_command, real_figures, keep, tmp_path):
    status, out, err = jko_command("compare", *TINY, "--samples", "2")
    assert (status, err) == (0, "")
    folder = tmp_path / "jko-compare"
    (comparison,) = keep

    summary = json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary == comparison.numbers()
    assert "W_{m,2}" in out
    assert "sign = +1" in out
    assert "does NOT approach the head-wise explicit flow" in out.replace("\n", " ")
    assert max(len(line) for line in out.splitlines()) <= 100
    for entry in comparison.metrics:
        for pair in entry.pairs:
            assert f"{pair.supremum:.3e}" in out
            assert f"{pair.jko.motion_part:.4f}" in out
            assert f"{pair.explicit.time_part:.4f}" in out
    assert f"{comparison.gaps[-1].supremum:.4f}" in out

    run = json.loads((folder / "run.json").read_text())
    assert (run["format"], run["kind"], run["status"]) == (1, "comparison", "success")
    assert len(run["solutions"]) == 6
    for name in run["solutions"]:
        metric, scheme = name.split("-")
        entry = comparison.metrics[["wasserstein2", "weighted", "headwise"].index(metric)]
        kept = getattr(entry.finest, scheme).solution
        loaded = jko.load(folder / name)
        assert torch.equal(loaded.points, kept.points)
        assert torch.equal(loaded.times, kept.times)
        assert all(torch.equal(loaded.records[column], value) for column, value in kept.records.numeric().items())
    with pytest.raises(jko.RunFolderError, match=r"comparison of several runs.*weighted-jko"):
        jko.load(folder)

    for name in FIGURES:
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert matplotlib.image.imread(folder / f"{name}.png")[..., :3].std() > 0.02, name


def test_the_echoed_configuration_repeats_the_run(jko_command, keep, tmp_path):
    jko_command("compare", *TINY, "--metric", "weighted", "--out", "a")
    config = tmp_path / "a" / "config.toml"
    written = tomllib.loads(config.read_text())
    assert written["measure"] == {"n": 12, "d": 3}
    assert written["heads"] == {"process": "ou", "num_heads": 2, "sigma2": 1.0, "dt": 0.025}
    assert jko_command("compare", config, "-q", "--out", "b")[0] == 0
    assert torch.equal(jko.load("a/weighted-jko").points, jko.load("b/weighted-jko").points)


def test_options_override_the_configuration(jko_command, keep, tmp_path):
    Path("c.toml").write_text(
        'seed = 1\n[measure]\nn = 5\n[flow]\nmetrics = ["weighted"]\nsign = 1\n[solve]\nt1 = 0.1\ntaus = [0.1]\n'
    )
    assert jko_command("compare", "c.toml", "-n", "7", "--sign", "-1", "-q")[0] == 0
    (comparison,) = keep
    assert (comparison.n, comparison.sign, comparison.t1) == (7, -1, 0.1)
    assert [entry.title for entry in comparison.metrics] == ["W_{m,2}"]


def test_json_is_the_summary_and_nothing_else(jko_command):
    status, out, err = jko_command("compare", *TINY[:-1], "--metric", "weighted", "--json")
    assert status == 0
    assert json.loads(out, parse_constant=pytest.fail) == json.loads(Path("jko-compare/summary.json").read_text())
    assert "Results in jko-compare" in err
    assert "distance.png" in err


def test_tokens_and_heads_from_files(jko_command, keep):
    points = jko.initial_tokens(6, 4, 5).numpy()
    np.save("x.npy", points)
    np.save("D.npy", np.stack([np.eye(4), 2 * np.eye(4)])[:, None] * 0.5)
    np.save("t.npy", np.array([0.0, 0.1]))
    files = ("--points", "x.npy", "--heads", "D.npy", "--times", "t.npy")
    assert jko_command("compare", *files, "--t1", "0.1", "--tau", "0.05", "-q")[0] == 0
    (comparison,) = keep
    assert (comparison.n, comparison.d, comparison.num_heads) == (6, 4, 1)
    assert np.array_equal(comparison.metrics[0].finest.jko.solution.points[0].numpy(), points)


def test_points_in_single_precision_are_accepted(jko_command, keep):
    np.save("x.npy", jko.initial_tokens(6, 3, 5, dtype=torch.float32).numpy())
    for dtype in ("float64", "float32"):
        options = ("--points", "x.npy", "--t1", "0.1", "--tau", "0.05", "--metric", "weighted", "--dtype", dtype)
        assert jko_command("compare", *options, "-q", "--out", dtype)[0] == 0
    assert [item.metrics[0].finest.jko.solution.points.dtype for item in keep] == [torch.float64, torch.float32]


@pytest.mark.parametrize("process", [("--process", "oscillating", "--phases", "shared"), ("--process", "constant")])
def test_other_head_processes(jko_command, process):
    assert jko_command("compare", *TINY, "--metric", "weighted", *process)[0] == 0


def test_a_flow_in_the_plane(jko_command):
    assert jko_command("compare", *TINY, "--manifold", "euclidean", "-d", "2", "--metric", "weighted")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tau", "0.03"), "tau = 0.03 does not divide t1 = 1.0"),
        (("--tau", "-0.1"), "solve.taus.0 = -0.1: must be greater than 0"),
        (("--tau", "x"), "--tau"),
        (("--nn", "3"), "No such option: --nn"),
        (("nothing.toml",), "nothing.toml does not exist"),
        (("--points", "nothing.npy"), "points: the file nothing.npy does not exist"),
        (
            ("--points", "text.npy"),
            "text.npy is no .npy file of numbers; write it with numpy.save, an array of shape (n",
        ),
        (("--points", "flat.npy"), "flat.npy must have shape (n, d), got (3,)"),
        (("--points", "off.npy"), "norm"),
        (("--points", "nan.npy"), "nan"),
        (("--points", "objects.npy"), "objects.npy"),
        (("--heads", "off.npy"), "must have shape (H, d, d)"),
        (("--times", "flat.npy"), "times belongs to file"),
        (("--heads", "heads2.npy"), "have d = 2, the points have d = 3"),
        (("--metric", "w3"), "flow.metrics.0"),
        (("--sign", "2"), "flow.sign = 2"),
        (("--phases", "shared"), "phases belongs to"),
        (("--device", "abacus"), "device 'abacus' is none of the choices: cpu, cuda"),
        (("--dtype", "float16"), "dtype"),
        (("--seed", "-1"), "seed = -1"),
        (("--out", "full"), "full is not empty and holds no comparison"),
        (("--out", "flat.npy"), "flat.npy is a file"),
        (("-d", "1"), "dimension must be at least 2"),
        (("--tau", "1e-9"), "tau = 1e-09 needs 1e+09 steps to t1 = 1, more than 1e+07; take a larger tau"),
        (("--dt", "1e-12"), "the matrices of the head path of shape (1e+12, 4, 3, 3) in float64, 2 times over, take"),
    ],
)
def test_bad_input_is_one_line_and_status_2(jko_command, arguments, message):
    Path("text.npy").write_text("hello")
    Path("full").mkdir()
    Path("full/letter.txt").write_text("dear")
    np.save("flat.npy", np.ones(3))
    np.save("off.npy", np.ones((2, 3)))
    np.save("nan.npy", np.full((2, 3), np.nan))
    np.save("objects.npy", np.array([[None]]), allow_pickle=True)
    np.save("heads2.npy", np.eye(2)[None])
    before = sorted(Path().rglob("*"))
    status, out, err = jko_command("compare", *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert sorted(Path().rglob("*")) == before


def test_unknown_command_and_no_command(jko_command):
    assert jko_command("bogus") == (2, "", "error: No such command 'bogus'.\n")
    status, out, err = jko_command()
    assert (status, err) == (2, "")
    assert "compare" in out


def test_version_and_help(jko_command, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", {"jko": "1.2.3"}.__getitem__)
    assert jko_command("--version") == (0, "jko 1.2.3\n", "")
    status, out, _ = jko_command("compare", "--help")
    assert status == 0
    for option in ("--points", "--heads", "--times", "--process", "--phases", "--small", "--json", "--out"):
        assert option in out
    tables = ("[measure]", "[heads]", "[flow]", "[scheme]", "[solve]")
    assert all(name in jko_command("run", "--help")[1] for name in tables)
    assert all(name in jko_command("--help")[1] for name in tables)


def test_help_of_a_command_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['jko', 'compare', '--help']\nfrom jko.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit([name for name in ('torch', 'numpy', 'scipy', 'matplotlib') if name in sys.modules] or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=_root())
    assert done.returncode == 0, done.stderr


def test_a_numerical_failure_is_saved_with_status_3(jko_command):
    np.save("D.npy", 2000 * np.eye(3)[None])
    # The heads come from the file: -H would contradict it.
    options = [item for item in TINY if item not in ("-H", "2")]
    status, out, err = jko_command("compare", *options, "--metric", "weighted", "--heads", "D.npy")
    assert err == "NON_FINITE; what is complete is saved in jko-compare\n"
    assert status == 3
    assert "NON_FINITE" in out
    told = out.replace("\n", " ")
    assert told.count("largest exponent 2") == 1
    assert "0.000e+00" not in out
    assert "0.0000" not in out
    assert "0 of 0" not in out
    assert "No statement was checked" in told
    assert json.loads(Path("jko-compare/run.json").read_text())["status"] == "non_finite"
    assert jko.load("jko-compare/weighted-jko").status is jko.Status.NON_FINITE


def test_a_statement_that_fails_is_status_1(jko_command, monkeypatch):
    check = diagnostics.Check("the sky is green", False, "measured: blue")
    monkeypatch.setattr(diagnostics.Comparison, "checks", (check,))
    status, out, _ = jko_command("compare", *TINY, "--metric", "weighted")
    assert status == 1
    assert "FAILED: the sky is green (measured: blue)" in out


def test_an_earlier_comparison_is_replaced_file_by_file(jko_command):
    jko_command("compare", *TINY, "--metric", "weighted", "--metric", "headwise")
    Path("jko-compare/mine.txt").write_text("kept")
    assert Path("jko-compare/gap.png").exists()
    assert jko_command("compare", *TINY, "--metric", "weighted", "--overwrite")[0] == 0
    assert Path("jko-compare/mine.txt").read_text() == "kept"
    assert not Path("jko-compare/gap.png").exists()
    assert not Path("jko-compare/headwise-jko").exists()
    assert jko.load("jko-compare/weighted-jko").status.ok


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_what_is_complete(tmp_path, number, status):
    code = "from jko.cli import main; main()"
    options = ["-n", "20", "--tau", "0.05", "--tau", "0.00001", "--metric", "weighted", "--samples", "4", "-v"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "compare", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_root())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder = tmp_path / "jko-compare"
    try:
        # The third run is the long one: the first step size is complete when it begins.
        while "run 3/4" not in (line := process.stderr.readline()):
            assert line, "the command ended early"
        time.sleep(0.5)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == status, err
    assert err.endswith("interrupted; what is complete is saved in jko-compare\n")
    assert "Traceback" not in err
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "interrupted"
    assert jko.load(folder / "unfinished").status is jko.Status.INTERRUPTED
    assert jko.load(folder / "weighted-jko").steps == 20
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"


def test_an_interrupt_before_any_result_is_told_and_recorded(jko_command, monkeypatch):
    def interrupted(*arguments, **keywords):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(diagnostics, "compare", interrupted)
    status, out, err = jko_command("compare", *TINY)
    assert (status, out) == (143, "")
    assert err == "interrupted before anything was complete; jko-compare holds the configuration\n"
    assert json.loads(Path("jko-compare/run.json").read_text())["status"] == "interrupted"


def test_an_interrupt_before_the_folder_is_told(jko_command, monkeypatch):
    monkeypatch.setattr(diagnostics, "common_intervals", lambda *_: signal.raise_signal(signal.SIGINT))
    assert jko_command("compare", *TINY) == (130, "", "interrupted before there was anything to save\n")
    assert not Path("jko-compare").exists()


def test_signals_while_saving_lose_nothing(jko_command, monkeypatch):
    def save(self, *arguments, **keywords):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        return _save(self, *arguments, **keywords)

    _save = jko.Solution.save
    monkeypatch.setattr(jko.Solution, "save", save)
    assert jko_command("compare", *TINY, "--metric", "weighted")[0] == 0
    assert jko.load("jko-compare/weighted-jko").status.ok


def test_a_second_signal_does_not_lose_what_the_first_one_keeps(jko_command, monkeypatch):
    def compare(*arguments, **keywords):
        result = _compare(*arguments, **keywords)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return replace(result, status=jko.Status.INTERRUPTED)

    _compare = diagnostics.compare
    monkeypatch.setattr(diagnostics, "compare", compare)
    status, _, err = jko_command("compare", *TINY, "--metric", "weighted")
    assert status == 130
    assert err.endswith("interrupted; what is complete is saved in jko-compare\n")
    assert jko.load("jko-compare/weighted-jko").status.ok


def test_lack_of_memory_is_one_line(jko_command, monkeypatch):
    def exhausted(*arguments, **keywords):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr(diagnostics, "compare", exhausted)
    status, _, err = jko_command("compare", *TINY)
    assert status == 2
    assert err.startswith("error: out of memory; take fewer tokens")
    assert err.count("\n") == 1
    assert "9 TiB" in err
    assert json.loads(Path("jko-compare/run.json").read_text())["status"] == "failed"
