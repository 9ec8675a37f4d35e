from __future__ import annotations

import json
import re
from pathlib import Path

import matplotlib.image
import pytest

from jko import verify
from jko.verify import Curve, Finding, FindingFigure, Measurement, Relation, Statement, Verdict, decide, suite

FIGURE = FindingFigure("W_{m,2}, sign = +1", "tau", "error", (Curve("W2", (0.1, 0.2), (1.0, 2.0)),))


def finding(
    key: str, value: float, expected: Verdict = Verdict.HOLDS, figure: FindingFigure | None = FIGURE
) -> Finding:
    measured = (Measurement(f"number of {key}", value, 1.0, Relation.AT_MOST),)
    return Finding(key, "Lemma 0", "claim", "test", measured, decide(measured), f"because of {key}", figure, expected)


@pytest.fixture
def statements(monkeypatch):
    """Put tests of our own in place of the suite."""

    def put(**runs):
        chosen = tuple(Statement(key, f"title of {key}", run) for key, run in runs.items())
        monkeypatch.setattr(suite, "STATEMENTS", chosen)

    return put


def test_a_real_statement_leaves_everything_behind(jko_command, tmp_path):
    status, out, err = jko_command("verify", "--quick", "--only", "reduced-metric", "--seed", "3", "-q")
    assert (status, err) == (0, "")
    assert "Lemma 3.8" in out
    assert "holds" in out
    assert "1 of 1 verdicts" in out
    assert max(len(line) for line in out.splitlines()) <= 100
    folder = tmp_path / "jko-verify"
    data = json.loads((folder / "verify.json").read_text(), parse_constant=pytest.fail)
    assert (data["status"], data["quick"], data["seed"]) == ("success", True, 3)
    (only,) = data["findings"]
    assert f"{only['measurements'][0]['value']:.6g}" in out
    assert matplotlib.image.imread(folder / "reduced-metric.png")[..., :3].std() > 0.02
    run = json.loads((folder / "run.json").read_text())
    assert (run["kind"], run["status"], run["files"]) == ("verification", "success", ["reduced-metric.png"])
    assert 'only = [\n    "reduced-metric",\n]' in (folder / "config.toml").read_text()


def test_status_1_only_where_theory_is_contradicted(jko_command, statements):
    statements(a=lambda s: (finding("a", 0.5),), b=lambda s: (finding("b", 2.0, Verdict.FAILS),))
    status, out, _ = jko_command("verify", "-q")
    assert status == 0
    assert "b fails: because of b" in out
    assert "UNEXPECTED" not in out
    statements(a=lambda s: (finding("a", 2.0),), b=lambda s: (finding("b", 0.5, Verdict.FAILS),))
    status, out, _ = jko_command("verify", "-q", "--overwrite")
    assert status == 1
    assert "0 of 2 verdicts" in out
    assert "UNEXPECTED: a fails, theory predicts: holds" in out
    assert "UNEXPECTED: b holds, theory predicts: fails" in out


def test_a_broken_test_is_status_1(jko_command, statements):
    def refused(setting):
        verify.select(["nothing"])

    statements(a=refused)
    status, out, _ = jko_command("verify", "-q")
    assert status == 1
    assert "not testable" in out.replace("\n", " ")


def test_an_interrupt_keeps_what_is_complete(jko_command, statements, tmp_path):
    def interrupted(setting):
        raise KeyboardInterrupt

    statements(a=lambda s: (finding("a", 0.5),), b=interrupted)
    status, out, err = jko_command("verify")
    assert status == 130
    assert "interrupted; what is complete is saved in jko-verify" in err
    assert "Lemma 0" in out
    data = json.loads((tmp_path / "jko-verify" / "verify.json").read_text())
    assert data["status"] == "interrupted"
    assert [f["key"] for f in data["findings"]] == ["a"]
    assert json.loads((tmp_path / "jko-verify" / "run.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "jko-verify" / "a.png").exists()


def test_results_are_on_the_disk_after_every_finding(jko_command, statements, tmp_path):
    seen = []

    def second(setting):
        data = json.loads((tmp_path / "jko-verify" / "verify.json").read_text())
        seen.append([f["key"] for f in data["findings"]])
        return (finding("b", 0.5),)

    statements(a=lambda s: (finding("a", 0.5),), b=second)
    assert jko_command("verify", "-q")[0] == 0
    assert seen == [["a"]]


def test_what_an_earlier_run_left_is_cleared(jko_command, statements, tmp_path):
    statements(a=lambda s: (finding("a", 0.5),), b=lambda s: (finding("b", 0.5),))
    jko_command("verify", "-q")
    assert (tmp_path / "jko-verify" / "b.png").exists()
    jko_command("verify", "-q", "--only", "a", "--overwrite")
    assert not (tmp_path / "jko-verify" / "b.png").exists()
    assert (tmp_path / "jko-verify" / "a.png").exists()


def test_json_is_the_file_and_nothing_else(jko_command, statements, tmp_path):
    statements(a=lambda s: (finding("a", 0.5, figure=None),))
    status, out, err = jko_command("verify", "--json", "--out", "v")
    assert status == 0
    assert json.loads(out, parse_constant=pytest.fail) == json.loads((tmp_path / "v" / "verify.json").read_text())
    assert "Results in v: verify.json, 0 figures" in err


def test_the_list_names_every_statement_and_runs_none(jko_command, tmp_path):
    status, out, _ = jko_command("verify", "--list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == [s.key for s in verify.STATEMENTS]
    assert not (tmp_path / "jko-verify").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "lemma"), r"there is no statement 'lemma'; there are .*equivalence"),
        (("--seed", "-1"), "seed"),
        (("--out", "taken"), r"taken is not empty and holds no verification"),
    ],
)
def test_bad_input_is_one_line_and_status_2(jko_command, arguments, message):
    Path("taken").mkdir()
    Path("taken/notes.txt").write_text("mine")
    status, out, err = jko_command("verify", *arguments)
    assert (status, out) == (2, "")
    assert re.search(message, err)
    assert err.count("\n") == 1
