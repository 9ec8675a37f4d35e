from __future__ import annotations

import functools

import pytest

from jko.verify.base import Setting, Verdict
from jko.verify.faults import faults
from jko.verify.mutations import CHECKS, examine, mutation_table

QUICK = Setting(quick=True)
CAUGHT_BY = {
    "wrong sign": {"limit velocity", "first-order residual", "weak form", "JKO-explicit order"},
    "wrong mobility": {"limit velocity", "first-order residual", "weak form", "JKO-explicit order"},
    "energy at t_{k-1}": {"first-order residual", "weak form"},
    "coupling broken": {"coupling certificate", "energy inequality", "many starts", "first-order residual"},
    "inner tolerance loosened": {"first-order residual", "many starts"},
    "wrong branch (|xi| beyond": {"cut locus", "many starts"},
    "wrong branch (a minimum": {"many starts"},
}
UNSEEN_BY_DE_GIORGI = ("wrong sign", "wrong mobility", "energy at t_{k-1}")


@functools.cache
def table() -> dict[str, dict[str, float]]:
    return {fault.name: examine(fault) for fault in faults(QUICK)}


def alarms(start: str) -> set[str]:
    (ratios,) = [ratios for fault, ratios in table().items() if fault.startswith(start)]
    return {name for name, ratio in ratios.items() if ratio > 1}


def test_a_right_step_raises_no_alarm() -> None:
    clean = [fault for fault in table() if fault.startswith("no fault")]
    assert len(clean) == 2
    assert not any(alarms(fault) for fault in clean)


@pytest.mark.parametrize("fault", CAUGHT_BY)
def test_every_fault_is_caught_by_named_checks(fault: str) -> None:
    assert CAUGHT_BY[fault] <= alarms(fault)


def test_what_the_identity_of_de_giorgi_cannot_see() -> None:
    assert all("De Giorgi identity" not in alarms(fault) for fault in UNSEEN_BY_DE_GIORGI)
    assert "De Giorgi identity" in alarms("coupling broken")


def test_every_check_catches_something() -> None:
    caught = set().union(*(alarms(fault) for fault in CAUGHT_BY))
    assert caught == set(CHECKS)


def test_the_verdict_needs_every_fault_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {name: dict(ratios) for name, ratios in table().items()}
    monkeypatch.setattr("jko.verify.mutations.examine", lambda fault: planted[fault.name])
    (finding,) = mutation_table(QUICK)
    assert finding.verdict is Verdict.HOLDS
    assert "blind to: wrong sign, wrong mobility" in finding.explanation
    planted["energy at t_{k-1}"] = dict.fromkeys(CHECKS, 0.5)
    assert mutation_table(QUICK)[0].verdict is Verdict.FAILS
    planted["energy at t_{k-1}"] = {**dict.fromkeys(CHECKS, 0.5), "weak form": 2.0}
    planted["no fault, 8 tokens"] = {**planted["no fault, 8 tokens"], "cut locus": 1.5}
    assert mutation_table(QUICK)[0].verdict is Verdict.FAILS
