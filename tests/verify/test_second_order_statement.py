from __future__ import annotations

from jko.verify import Setting, Verdict, second_order
from tests.verify.statements import assert_as_expected, run


def test_modified_velocities():
    assert_as_expected(run("second-order"))


def test_a_correction_of_the_wrong_sign_is_caught(monkeypatch):
    right = second_order.ModifiedVelocity.at
    monkeypatch.setattr(second_order.ModifiedVelocity, "at", lambda self, x, t, taus: right(self, x, t, -taus))
    monkeypatch.setattr(second_order, "_cases", lambda setting: [(4, True, 1, second_order.METRICS[1])])
    (finding,) = second_order.second_order(Setting(quick=True))
    assert finding.verdict is Verdict.FAILS
