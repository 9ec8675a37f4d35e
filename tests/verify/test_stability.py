from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from jko.metrics import HeadwiseWasserstein, Wasserstein2, WeightedWasserstein
from jko.verify import refinement, stability
from jko.verify.base import Finding, Measurement, Setting, Verdict
from jko.verify.problems import attention_flow, bounded_heads, smooth_heads, tokens
from jko.verify.refinement import HeadDraws

QUICK = Setting(quick=True)
EXPECTED = {
    "groenwall": Verdict.HOLDS,
    "groenwall-second-moment": Verdict.FAILS,
    "weights-stability": Verdict.HOLDS,
    "head-refinement": Verdict.HOLDS,
    "phase-refinement": Verdict.HOLDS,
}
METRICS = {"head-wise": HeadwiseWasserstein(), "weighted": WeightedWasserstein(), "W_2": Wasserstein2()}


@functools.cache
def findings() -> dict[str, Finding]:
    statements = (*stability.STATEMENTS, *refinement.STATEMENTS)
    return {finding.key: finding for statement in statements for finding in statement.run(QUICK)}


def measured(key: str, start: str) -> Measurement:
    (found,) = [m for m in findings()[key].measurements if m.name.startswith(start)]
    return found


@pytest.mark.parametrize("key", EXPECTED)
def test_verdicts_are_the_predicted_ones(key: str) -> None:
    assert findings()[key].verdict is EXPECTED[key]
    assert findings()[key].as_expected


def test_rates_of_the_estimates() -> None:
    D = bounded_heads(3, 0, 1.5)
    assert stability.sup_rate(D) == pytest.approx(2 * (1.5 + 2.25))
    assert stability.transport_rate(D) == pytest.approx((1.5 + 2.25) * (1 + np.exp(1.5)))


def test_small_heads_grow_in_first_order() -> None:
    for epsilon in (1.0, 0.25, 0.0625):
        found = measured("groenwall-second-moment", f"growth rate is 2 |D|, |D| = {epsilon:g}")
        assert found.value == pytest.approx(2 * epsilon, rel=1e-4)


def test_a_slower_estimate_is_broken() -> None:
    heads, measure = smooth_heads(1, 0, 1.0), tokens(8, 0)
    cluster = stability._clustered(heads, -1, 8, 0)
    growth = stability.Growth.along(heads, -1, cluster, stability._nudged(cluster, 1e-3, 0), 0.2)
    assert growth.ratios[0] < 1
    slower = replace(growth, sup_bound=growth.sup_bound ** (0.5 * growth.ratios[0]))
    assert slower.ratios[0] > 1
    assert measure.n == cluster.n


@pytest.mark.parametrize("dynamics", METRICS)
def test_plain_velocities_are_those_of_the_flows(dynamics: str) -> None:
    measure, D = tokens(6, 1), torch.stack([bounded_heads(3, seed, 2.0) for seed in (0, 1)])
    draws = HeadDraws(measure.points, 0, 2, dynamics, 0.1, 1)
    found = draws._velocity(measure.points.expand(2, -1, -1), D)
    for k in range(2):
        flow = attention_flow(D[k], METRICS[dynamics], 1)
        assert torch.allclose(found[k], flow.velocity(measure, 0.0), rtol=1e-12, atol=1e-13)


def test_refinement_of_the_heads() -> None:
    found = measured("head-refinement", "exponent of H")
    assert found.value == pytest.approx(-0.5, abs=0.3)
    assert measured("phase-refinement", "W_2 to 32 heads at H = 16").value < 1e-7
    assert measured("phase-refinement", "rate c").value > 0.8


def test_the_exponent_of_draws_can_fail() -> None:
    counts = (8, 16, 32, 64)
    noise = np.abs(np.random.Generator(np.random.Philox(1)).standard_normal((4, 200))) + 0.5
    for exponent in (-0.5, -0.2):
        samples = [count**exponent * row for count, row in zip(counts, noise, strict=True)]
        slope, error = refinement._rate(counts, samples)
        assert abs(slope - exponent) < 4 * error
        assert error < 0.05
