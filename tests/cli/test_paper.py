from __future__ import annotations

import json
import tomllib

import matplotlib.image
import pytest
from PIL import Image

from jko.paper import Job
from jko.storage import read_tensors

TINY = ("--small", "-n", "6", "--t1", "0.2", "--heads", "1,3", "--paths", "2", "-q")


def _summary(folder):
    return json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)


def test_all_figures_end_to_end(jko_command, real_figures, tmp_path):
    status, out, err = jko_command("paper", "all", *TINY, "--animate", "gif")
    assert (status, err) == (0, "")
    folder = tmp_path / "jko-paper"
    for name in ("fig1", "fig2", "fig3"):
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert matplotlib.image.imread(folder / f"{name}.png")[..., :3].std() > 0.02, name
    with Image.open(folder / "clouds.gif") as image:
        assert image.n_frames > 5
    summary = _summary(folder)
    assert [regime["regime"] for regime in summary["regimes"]] == ["ou", "oscillating-shared"]
    assert summary["setting"]["sign"] == 1
    assert all(check["held"] for check in summary["checks"])
    assert max(len(line) for line in out.splitlines()) <= 100
    for regime in summary["regimes"]:
        for entry in regime["entries"]:
            assert f"{entry['mean_slope2'][0]['mean']:.3g}" in out
    assert f"{summary['regimes'][0]['fits'][0]['logarithmic']['b']:.3g}" in out
    assert "ou.H3.slope2.mean" in read_tensors(folder / "curves.safetensors")
    run = json.loads((folder / "run.json").read_text())
    assert (run["kind"], run["status"]) == ("paper", "success")
    assert run["execution"]["computed"] == 6
    assert len(list((folder / "jobs").glob("*.json"))) == 6
    config = tomllib.loads((folder / "config.toml").read_text())
    assert (config["what"], config["n"], config["heads"], config["sign"]) == ("all", 6, [1, 3], 1)


def test_a_rerun_computes_nothing_and_says_the_same(jko_command, monkeypatch, tmp_path):
    first = jko_command("paper", "all", *TINY, "--json")
    numbers = json.loads(first[1], parse_constant=pytest.fail)

    def run(*_):
        pytest.fail("a finished job was run again")

    monkeypatch.setattr(Job, "run", run)
    status, out, _ = jko_command("paper", "all", *TINY, "--json")
    assert status == 0
    assert json.loads(out) == numbers
    # Single figures need no other runs, and leave the rest of the same setting in place.
    folder = tmp_path / "jko-paper"
    assert jko_command("paper", "fig1", *TINY)[0] == 0
    assert (folder / "fig2.png").exists()
    assert [len(regime["entries"]) for regime in _summary(folder)["regimes"]] == [1, 1]


def test_another_setting_replaces_the_figures_and_keeps_the_runs(jko_command, tmp_path):
    folder = tmp_path / "jko-paper"
    jko_command("paper", "all", *TINY)
    assert jko_command("paper", "fig1", *TINY, "--sign", "-1", "--phases", "spread", "-d", "2", "--overwrite")[0] == 0
    assert (folder / "fig1.png").exists()
    assert not (folder / "fig2.png").exists()
    summary = _summary(folder)
    assert [regime["regime"] for regime in summary["regimes"]] == ["ou", "oscillating-spread"]
    assert (summary["setting"]["sign"], summary["setting"]["dimension"]) == (-1, 2)
    assert len(list((folder / "jobs").glob("*.json"))) == 6 + 3


def test_comparison(jko_command, real_figures, tmp_path):
    status, out, err = jko_command(
        "paper",
        "comparison",
        "--small",
        "-n",
        "6",
        "--t1",
        "0.08",
        "--heads",
        "2",
        "--phases",
        "spread",
        "--out",
        "c",
        "-q",
    )
    assert (status, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= 100
    summary = _summary(tmp_path / "c")
    assert [entry["regime"] for entry in summary["entries"]] == ["ou", "oscillating-spread"]
    for entry in summary["entries"]:
        assert len(entry["movements"]) == 6
        assert f"{entry['crossing']['sup_distance']:.3e}" in out
    for name in ("energy", "dissipation", "slope", "distance", "phases"):
        assert matplotlib.image.imread(tmp_path / "c" / f"comparison-{name}.png")[..., :3].std() > 0.02, name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("paper", "fig4"), "fig4"),
        (("paper", "all", "--small", "--as-printed"), "exclude each other"),
        (("paper", "all", "--small", "--heads", "1;2"), "whole numbers such as 1,10,100"),
        (("paper", "all", "--small", "--heads", "10,1"), "increasing numbers of heads"),
        (("paper", "all", "--small", "--sign", "2"), "sign must be +1 or -1"),
        (("paper", "all", "--small", "--dimension", "1"), "dimension must be"),
        (("paper", "all", "--small", "--phases", "same"), "same"),
        (("paper", "all", "--small", "--dt", "0.03", "--t1", "0.2"), "multiple of dt"),
        (("paper", "all", "--small", "--jobs", "0"), "jobs must be"),
        (("paper", "comparison", "--small", "--animate", "gif"), "comparison does not have"),
        (("paper", "all", "--small", "--device", "abacus"), "abacus"),
        (("paper", "all", "--small", "--dtype", "float16"), "dtype must be"),
        (("paper", "all", "--small", "--dt", "1e-12"), "dt = 1e-12 needs 2e+12 steps"),
        (("paper", "all", "--small", "--dt", "1e-300", "--t1", "1e300"), "dt = 1e-300 is too small"),
        (
            ("paper", "all", "--small", "--n", "99999999999999999999"),
            "the tokens and the vertices of shape (1e+20, 3)",
        ),
        (
            ("paper", "all", "--small", "--dimension", "9999999999"),
            "vertices of shape (40000000016, 9999999999)",
        ),
        (
            ("paper", "all", "--small", "--heads", "999999999"),
            "head path of shape (101, 999999999, 3, 3)",
        ),
        (("paper", "all", "--small", "--paths", "9999999999"), "take fewer"),
    ],
)
def test_bad_input_is_refused_before_any_work(jko_command, tmp_path, arguments, message):
    status, out, err = jko_command(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert not (tmp_path / "jko-paper").exists()


def test_mp4_without_ffmpeg_is_refused_before_any_work(jko_command, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    status, out, err = jko_command("paper", "fig1", *TINY, "--animate", "mp4")
    assert (status, out) == (2, "")
    assert "ffmpeg" in err
    assert "clouds.gif" in err
    assert not (tmp_path / "jko-paper").exists()


def test_a_regime_that_fails_numerically_is_named_and_the_other_one_shown(jko_command, monkeypatch, tmp_path):
    from jko.paper import Setting

    small = Setting.small
    monkeypatch.setattr(Setting, "small", staticmethod(lambda **changes: small(**changes, sigma2=1e9)))
    status, _, err = jko_command("paper", "all", *TINY)
    assert status == 3
    assert "ou-H3" in err
    folder = tmp_path / "jko-paper"
    assert [regime["regime"] for regime in _summary(folder)["regimes"]] == ["oscillating-shared"]
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"


def test_an_interrupt_keeps_what_is_finished(jko_command, monkeypatch, tmp_path):
    begun = []
    run = Job.run

    def interrupted(job, progress=None):
        begun.append(job)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return run(job, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "run", interrupted)
        status, out, err = jko_command("paper", "fig2", *TINY)
    assert (status, out) == (130, "")
    assert "2 finished runs" in err
    assert json.loads((tmp_path / "jko-paper" / "run.json").read_text())["status"] == "interrupted"
    status, out, _ = jko_command("paper", "fig2", *TINY)
    assert status == 0
    assert json.loads((tmp_path / "jko-paper" / "run.json").read_text())["execution"]["skipped"] == 2


def test_figures_with_other_phases_do_not_stay_beside_new_ones(jko_command, tmp_path):
    folder = tmp_path / "jko-paper"
    jko_command("paper", "fig1", *TINY, "--phases", "spread")
    assert jko_command("paper", "fig2", *TINY)[0] == 2
    assert jko_command("paper", "fig2", *TINY, "--overwrite")[0] == 0
    assert not (folder / "fig1.png").exists()
    assert json.loads((folder / "run.json").read_text())["files"] == ["curves.safetensors", "fig2.pdf", "fig2.png"]
    # The comparison shows both, and leaves the others.
    assert jko_command("paper", "comparison", *TINY, "--n", "4", "--overwrite")[0] == 0
    assert jko_command("paper", "fig1", *TINY, "--n", "4", "--phases", "spread")[0] == 0
    assert {"fig1.png", "comparison-phases.png"} <= {path.name for path in folder.glob("*.png")}
    assert jko_command("paper", "fig3", *TINY, "--n", "4", "--phases", "shared", "--overwrite")[0] == 0
    assert {path.name for path in folder.glob("*.png")} == {"fig3.png"}
