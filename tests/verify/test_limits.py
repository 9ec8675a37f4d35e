from __future__ import annotations

import functools

import pytest
import torch

from jko.flows import AttentionField, VelocityFlow
from jko.measure import ParticleMeasure
from jko.metrics import HeadwiseWasserstein, Wasserstein2, WeightedWasserstein
from jko.verify import limits
from jko.verify.base import Finding, Measurement, Relation, Setting, Verdict, decide
from jko.verify.evidence import climb, judge, value_at_zero
from jko.verify.problems import attention_flow, smooth_heads, tokens

QUICK = Setting(quick=True)
KEYS = ("limit-unnormalized", "limit-one-head", "limit-weighted", "limit-headwise", "limit-nonsymmetric")


@functools.cache
def findings() -> dict[str, Finding]:
    return {finding.key: finding for statement in limits.STATEMENTS for finding in statement.run(QUICK)}


def number(finding: Finding, start: str) -> Measurement:
    (found,) = [measurement for measurement in finding.measurements if measurement.name.startswith(start)]
    return found


@pytest.mark.parametrize("key", KEYS)
def test_verdicts_are_the_predicted_ones(key: str) -> None:
    finding = findings()[key]
    assert finding.as_expected
    assert finding.verdict is (Verdict.FAILS if key in {"limit-weighted", "limit-nonsymmetric"} else Verdict.HOLDS)
    assert finding.figure is not None
    assert len({curve.x for curve in finding.figure.curves}) == 1


def test_the_gap_of_the_weighted_step_is_that_of_the_limit_flows() -> None:
    finding = findings()["limit-weighted"]
    for sign in ("+1", "-1"):
        name = f"W_{{m,2}}, sign = {sign}, H = 4"
        claim = number(finding, f"distance to the attention flow as tau -> 0, {name}")
        gap = number(finding, f"the same against the distance of the two limit flows, {name}")
        assert not claim.passed
        assert claim.value > 100 * claim.tolerance
        assert gap.passed
        assert gap.value == pytest.approx(gap.reference, rel=1e-2)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_plain_field_is_the_velocity_of_the_plain_metric(sign: int) -> None:
    heads, measure = smooth_heads(3, 1, 1.5), tokens(7, 2, weighted=True)
    field = VelocityFlow(limits.Unnormalized(heads, sign))
    own = attention_flow(heads, Wasserstein2(), sign).velocity(measure, 0.3)
    assert torch.allclose(field.velocity(measure, 0.3), own, rtol=1e-13, atol=1e-15)
    x = measure.points
    assert limits.Unnormalized(heads, sign).largest_exponent(measure, 0.3) == pytest.approx(
        float(torch.einsum("ia,hab,jb->hij", x, heads.at(0.3), x).max())
    )


def test_a_wrong_sign_changes_the_verdict() -> None:
    heads = smooth_heads(1, 0, 1.5)
    right, wrong = (
        limits._case(QUICK, heads, WeightedWasserstein(), 1, VelocityFlow(AttentionField(heads, sign=sign)))
        for sign in (1, -1)
    )
    assert decide(right.claims) is Verdict.HOLDS
    assert decide(wrong.claims) is Verdict.FAILS


def test_a_wrong_prediction_is_no_refutation() -> None:
    heads = smooth_heads(4, 0, 1.5)
    case = limits._case(QUICK, heads, HeadwiseWasserstein(), 1, VelocityFlow(AttentionField(heads, sign=-1)))
    claim, predictions = case.failure
    assert judge(claim, predictions) is Verdict.FAILS
    off = Measurement("gap", case.gap, 2 * case.gap, Relation.EQUAL, case.to_target.slack)
    assert judge(claim, (*predictions, off)) is Verdict.NOT_TESTABLE
    passing = Measurement("zero", 0.0, 0.0, Relation.EQUAL)
    assert judge((passing,), (off,)) is Verdict.HOLDS


def test_extrapolation_is_exact_for_polynomials() -> None:
    taus = [0.4, 0.2, 0.1]
    limit, slack = value_at_zero(taus, [3 + 2 * tau - 5 * tau**2 for tau in taus])
    assert limit == pytest.approx(3, abs=1e-13)
    assert slack < 1
    base, first, second = (ParticleMeasure(tokens(4, seed).points).points for seed in (1, 2, 3))
    runs = [(base + tau * first + tau**2 * second)[None] for tau in taus]
    ladder = climb(taus, runs, base[None], rate=2.0, rounding=0.0)
    assert ladder.limit <= ladder.slack
    assert abs(ladder.order - 1) <= ladder.order_slack
    away = climb(taus, runs, base[None] + 0.5, rate=2.0, rounding=0.0)
    assert away.limit > 0.5 - away.slack
