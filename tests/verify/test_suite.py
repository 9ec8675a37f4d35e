from __future__ import annotations

import json
import math

import pytest

import jko
from jko import verify
from jko.verify import Finding, Measurement, Relation, Setting, Statement, Verdict, decide, suite

QUICK = Setting(quick=True)


def finding(key: str, value: float, expected: Verdict = Verdict.HOLDS) -> Finding:
    measured = (Measurement("number", value, 1.0, Relation.AT_MOST), Measurement("shown", math.inf))
    return Finding(key, "Lemma 0", "a claim", "a test", measured, decide(measured), expected=expected)


@pytest.fixture
def statements(monkeypatch):
    """Put tests of our own in place of the suite."""

    def put(**runs):
        chosen = tuple(Statement(key, f"title of {key}", run) for key, run in runs.items())
        monkeypatch.setattr(suite, "STATEMENTS", chosen)

    return put


def test_keys_are_unique():
    keys = [statement.key for statement in verify.STATEMENTS]
    assert len(keys) == len(set(keys))
    assert {"equivalence", "minimizer", "existence", "weak-form", "second-order"} <= set(keys)


def test_select_keeps_the_order_of_the_suite():
    assert verify.select() == verify.STATEMENTS
    assert [s.key for s in verify.select(["weak-form", "equivalence"])] == ["equivalence", "weak-form"]
    with pytest.raises(jko.InvalidInput, match=r"no statement 'lemma'.*equivalence"):
        verify.select(["lemma"])
    with pytest.raises(jko.InvalidInput, match="list of statements"):
        verify.select("equivalence")


def test_a_number_on_the_wrong_side_changes_verdict_and_report(statements):
    statements(good=lambda s: (finding("good", 0.5),), bad=lambda s: (finding("bad", 1.5),))
    report = verify.verify(QUICK)
    assert [f.verdict for f in report.findings] == [Verdict.HOLDS, Verdict.FAILS]
    assert [f.key for f in report.unexpected] == ["bad"]
    assert report.status is jko.Status.SUCCESS


def test_a_predicted_failure_is_in_order_and_its_absence_is_not(statements):
    statements(
        predicted=lambda s: (finding("predicted", 1.5, Verdict.FAILS),),
        missing=lambda s: (finding("missing", 0.5, Verdict.FAILS),),
    )
    assert [f.key for f in verify.verify(QUICK).unexpected] == ["missing"]


@pytest.mark.parametrize(
    ("relation", "good", "bad"),
    [(Relation.AT_MOST, 1.05, 1.2), (Relation.AT_LEAST, 0.95, 0.8), (Relation.EQUAL, 0.95, 0.8)],
)
def test_relations_are_two_sided(relation, good, bad):
    for value, passed in ((1.0, True), (good, True), (bad, False), (math.nan, False)):
        assert Measurement("m", value, 1.0, relation, 0.1).passed is passed
    assert Measurement("m", 1.2, 1.0, Relation.EQUAL, 0.1).passed is False
    assert Measurement("m", math.nan).passed


def test_a_restriction_needs_something_outside_of_it():
    inside, outside = Measurement("in", 0.0, 1.0, Relation.AT_MOST), Measurement("out", 2.0, 1.0, Relation.AT_MOST)
    harmless = Measurement("out", 0.5, 1.0, Relation.AT_MOST)
    assert decide((inside,), expected_to_fail=(outside,), restriction="small") is Verdict.RESTRICTED
    assert decide((inside,), expected_to_fail=(harmless,), restriction="small") is Verdict.HOLDS
    assert decide((outside,), expected_to_fail=(outside,), restriction="small") is Verdict.FAILS
    with pytest.raises(jko.InvalidInput, match="at least one measurement"):
        decide((Measurement("shown", 1.0),))


def test_the_main_number_is_the_first_that_failed():
    numbers = (
        Measurement("shown", 1.0),
        Measurement("a", 0.0, 1.0, Relation.AT_MOST),
        Measurement("b", 2.0, 1.0, Relation.AT_MOST),
    )
    for count in (1, 2, 3):
        assert Finding("k", "s", "c", "t", numbers[:count], Verdict.HOLDS).main is numbers[count - 1]
    assert Finding("k", "s", "c", "t", (), Verdict.HOLDS).main is None


def test_data_is_strict_json(statements):
    statements(bad=lambda s: (finding("bad", math.nan),))
    report = verify.verify(Setting(quick=True, seed=7))
    data = json.loads(json.dumps(report.as_data(), allow_nan=False))
    assert (data["seed"], data["quick"], data["status"], data["unexpected"]) == (7, True, "success", ["bad"])
    (only,) = data["findings"]
    assert [m["value"] for m in only["measurements"]] == ["nan", "inf"]
    assert [m["passed"] for m in only["measurements"]] == [False, True]
    assert (only["verdict"], only["expected"], only["as_expected"]) == ("fails", "holds", False)
    assert data["versions"]["torch"]


def test_observers_see_every_finding(statements):
    statements(one=lambda s: (finding("a", 0.0), finding("b", 0.0)), two=lambda s: (finding("c", 0.0),))
    started, seen = [], []
    verify.verify(
        QUICK,
        on_start=lambda statement: started.append(statement.key),
        on_finding=lambda report: seen.append([f.key for f in report.findings]),
    )
    assert started == ["one", "two"]
    assert seen == [["a"], ["a", "b"], ["a", "b", "c"]]


def test_a_test_that_breaks_down_is_reported(statements):
    def broken(setting):
        raise jko.InvalidInput("no such measure")

    statements(broken=broken, good=lambda s: (finding("good", 0.0),))
    report = verify.verify(QUICK)
    assert [f.verdict for f in report.findings] == [Verdict.NOT_TESTABLE, Verdict.HOLDS]
    assert "no such measure" in report.findings[0].explanation
    assert [f.key for f in report.unexpected] == ["broken"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), jko.SolveFailed("", solution=None, status=jko.Status.INTERRUPTED)]
)
def test_an_interrupt_keeps_what_is_complete(statements, error):
    def interrupted(setting):
        raise error

    statements(good=lambda s: (finding("good", 0.0),), bad=interrupted, never=interrupted)
    report = verify.verify(QUICK)
    assert report.status is jko.Status.INTERRUPTED
    assert [f.key for f in report.findings] == ["good"]
    assert list(report.timings) == ["good"]


def test_a_fault_of_the_program_is_no_finding(statements):
    def wrong(setting):
        raise TypeError("a bug")

    statements(wrong=wrong)
    with pytest.raises(TypeError):
        verify.verify(QUICK)
