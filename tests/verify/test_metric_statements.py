from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from jko import weighted
from jko.verify import Setting, Verdict, metric
from tests.verify.statements import assert_as_expected, run


@pytest.mark.parametrize("key", ["equivalence", "reduced-metric", "metric-speed"])
def test_statements_about_the_metric(key):
    findings = run(key)
    assert_as_expected(findings)
    if key == "equivalence":
        (finding,) = findings.values()
        assert finding.verdict is Verdict.RESTRICTED
        sharp = [m for m in finding.measurements if m.name.startswith("sharpness")]
        assert [m.value for m in sharp] == pytest.approx([1, 1], abs=1e-4)


def test_wrong_constants_are_caught(monkeypatch):
    exact = weighted.equivalence_constants

    def narrow(D, head_weights=None):
        constants = exact(D, head_weights)
        return replace(constants, upper=constants.upper * 0.2)

    monkeypatch.setattr(metric.weighted, "equivalence_constants", narrow)
    (finding,) = metric.equivalence(Setting(quick=True))
    assert finding.verdict is Verdict.FAILS


def test_an_arithmetic_mean_in_place_of_the_harmonic_one_is_caught(monkeypatch):
    def arithmetic(velocity, mobility, weights=None, head_weights=None):
        return (weights * mobility.mean(-2) * velocity.square().sum(-1)).sum().sqrt()

    monkeypatch.setattr(metric.weighted, "metric_speed", arithmetic)
    for key in ("reduced-metric", "metric-speed"):
        (finding,) = run(key).values()
        assert finding.verdict is Verdict.FAILS


def test_the_extreme_pair_has_the_ratio_of_the_closed_form():
    for side, light in ((1, 0.3), (-1, 0.3)):
        b = (1 - light) * math.exp(side * 1.5) + light * math.exp(1.5)
        assert metric._extreme_ratio(1.5, light, side) == pytest.approx(math.sqrt(b), rel=1e-5)


def test_least_squares_finds_the_minimum_of_two_heads_by_hand():
    m = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    v = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    # b = 1 / mean(1, 1/3) = 3/2, and b |v|^2 = 6.
    assert metric._least_lifted_cost(v, m, torch.ones(1, dtype=torch.float64)) == pytest.approx(6)
