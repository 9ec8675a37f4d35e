from __future__ import annotations

import pytest

from jko.verify import Verdict
from tests.verify.statements import assert_as_expected, run


@pytest.mark.parametrize("key", ["existence", "existence-plane", "noisy-heads"])
def test_statements_about_theorem_3_11(key):
    assert_as_expected(run(key))


def test_the_energy_rises_along_the_headwise_step_at_the_rate_of_the_counterexample():
    (finding,) = run("headwise-energy").values()
    assert_as_expected({"": finding})
    assert finding.verdict is Verdict.FAILS
    (rate,) = [m for m in finding.measurements if m.name.startswith("rate of E as tau -> 0, head-wise")]
    assert rate.value == pytest.approx(0.4182, abs=5e-4)
    assert rate.reference == pytest.approx(0.4182, abs=1e-4)
