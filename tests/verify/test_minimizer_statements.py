from __future__ import annotations

import pytest

import jko
from jko.verify import Setting, Verdict, minimizers
from jko.verify.problems import attention_flow, tokens
from tests.verify.statements import assert_as_expected, run


@pytest.mark.parametrize("key", ["minimizer", "unique-minimizer", "all-measures"])
def test_statements_about_minimizers(key):
    assert_as_expected(run(key))


def test_a_point_that_is_no_minimum_is_caught(monkeypatch):
    real = minimizers._objective

    def tilted(flow, measure, tau, displacement):
        return real(flow, measure, tau, 1.5 * displacement)

    monkeypatch.setattr(minimizers, "_objective", tilted)
    (finding,) = minimizers.minimizer(Setting(quick=True))
    assert finding.verdict is Verdict.FAILS


@pytest.mark.parametrize("metric", [jko.Wasserstein2(), jko.WeightedWasserstein(), jko.HeadwiseWasserstein()])
def test_the_objective_is_that_of_the_step(metric):
    flow = attention_flow(jko.initial_heads(2, 3, 0) / 4, metric, -1)
    measure = tokens(5, 0, weighted=True)
    info = jko.JKO(0.1).step(flow, measure).info
    energy = info.columns.get("head_energy")
    if energy is None:
        moved = measure.moved(flow.manifold.exp(measure.points, info.displacement))
        energy = float(flow.energy.value(moved, 0.1))
    expected = energy + info.squared_distance / 0.2
    assert minimizers._objective(flow, measure, 0.1, info.displacement) == pytest.approx(expected, rel=1e-12)
