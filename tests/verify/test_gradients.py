from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from jko.metrics import HeadwiseWasserstein, WeightedWasserstein
from jko.verify import gradients, identity, ledger
from jko.verify.base import Finding, Measurement, Setting, Verdict, decide
from jko.verify.gradients import Cloud, TwoTokens
from jko.verify.problems import bounded_heads, tokens

QUICK = Setting(quick=True)
EXPECTED = {
    "upper-gradient-one-head": Verdict.HOLDS,
    "upper-gradient": Verdict.FAILS,
    "upper-gradient-weighted": Verdict.HOLDS,
    "energy-identity-one-head": Verdict.HOLDS,
    "energy-identity": Verdict.FAILS,
    "rising-energy": Verdict.FAILS,
    "energy-identity-weighted": Verdict.HOLDS,
    "chain-rule": Verdict.HOLDS,
    "ledger": Verdict.HOLDS,
}


@functools.cache
def findings() -> dict[str, Finding]:
    statements = (*gradients.STATEMENTS, *identity.STATEMENTS, *ledger.STATEMENTS)
    return {finding.key: finding for statement in statements for finding in statement.run(QUICK)}


def numbers(key: str) -> dict[str, Measurement]:
    return {measurement.name: measurement for measurement in findings()[key].measurements}


@pytest.mark.parametrize("key", EXPECTED)
def test_verdicts_are_the_predicted_ones(key: str) -> None:
    assert findings()[key].verdict is EXPECTED[key]
    assert findings()[key].as_expected


def test_two_tokens_by_hand() -> None:
    two = TwoTokens((1.0, 3.0))
    assert two.b == pytest.approx(3.160883, abs=5e-7)
    assert two.squared_paper_slope == pytest.approx(0.133627, abs=5e-7)
    assert two.dissipation == pytest.approx(0.205610, abs=5e-7)
    assert two.squared_slope == pytest.approx(0.316367, abs=5e-7)
    found = numbers("upper-gradient")
    assert found["b by hand, two tokens"].value == pytest.approx(3.160883, abs=5e-7)
    assert found["G^2 by hand, two tokens"].value == pytest.approx(0.133627, abs=5e-7)
    assert found["weighted slope^2 by differences, two tokens"].value == pytest.approx(0.316367, abs=5e-7)
    fall = numbers("rising-energy")["-dE/dt along the transformer by hand, two tokens, D = (1 I, 3 I)"]
    assert fall.value == pytest.approx(0.205610, abs=5e-7)


def test_energy_rises_along_the_transformer() -> None:
    found = numbers("rising-energy")
    name = "two tokens, D = (3.99 I, -1.97 I)"
    assert found[f"-dE/dt along the transformer by hand, {name}"].value == pytest.approx(-0.4182, abs=5e-5)
    assert found[f"G^2, {name}"].value == pytest.approx(0.766, abs=5e-4)
    assert found[f"weighted slope^2, {name}"].value == pytest.approx(0.228, abs=5e-4)


def test_the_excess_of_the_slope_is_that_of_the_covariance() -> None:
    for betas in ((1.0, 3.0), (3.99, -1.97)):
        two = TwoTokens(betas)
        cloud = Cloud(two.measure, two.heads, 1)
        assert cloud.squared_slope_excess == pytest.approx(two.squared_slope - two.squared_paper_slope, abs=1e-13)
    alike = Cloud(tokens(6, 0, weighted=True), bounded_heads(1, 0, 2.0).expand(3, -1, -1), -1)
    assert alike.squared_slope_excess == pytest.approx(0, abs=1e-14)


def test_a_smaller_bound_is_no_upper_gradient() -> None:
    cloud = Cloud(tokens(6, 0, weighted=True), bounded_heads(1, 0, 2.0), 1)
    right = gradients._bounded(cloud, cloud.paper_slope, cloud.transformer, "")
    wrong = gradients._bounded(cloud, 0.999 * cloud.paper_slope, cloud.transformer, "")
    assert decide((right,)) is Verdict.HOLDS
    assert decide((wrong,)) is Verdict.FAILS


def test_the_margin_of_the_identity_is_predicted() -> None:
    found = numbers("energy-identity")
    claims = [m for name, m in found.items() if name.startswith("what (116) leaves")]
    predictions = [m for name, m in found.items() if name.startswith("the same against int")]
    assert len(claims) == len(predictions) == 2
    for claim, prediction in zip(claims, predictions, strict=True):
        assert abs(claim.value) > 50 * claim.tolerance
        assert prediction.value == pytest.approx(prediction.reference, rel=1e-2)


def test_another_rate_does_not_close() -> None:
    problem = identity._Problem.of(QUICK, 4, HeadwiseWasserstein(), 1)
    right, lifted = problem.balance("dissipation"), problem.balance("slope2")
    assert decide((right.closes("chain rule"),)) is Verdict.HOLDS
    assert decide((lifted.closes("chain rule"),)) is Verdict.FAILS
    weighted = identity._Problem.of(QUICK, 4, WeightedWasserstein(), 1)
    assert decide((weighted.balance("paper_slope2").closes("(116)"),)) is Verdict.FAILS


def test_the_step_of_the_paper_is_shown_beside_the_limit() -> None:
    found = numbers("energy-identity-one-head")
    beside = [m for name, m in found.items() if "paper's dt = 0.01" in name]
    closing = [m for name, m in found.items() if name.startswith("what (116)")]
    assert len(beside) == len(closing) == 4
    for at, limit in zip(beside, closing, strict=True):
        assert abs(at.value) > 100 * abs(limit.value)


def test_exact_time_parts_beat_the_ito_form() -> None:
    drawn = ledger.NoisyPaths.draw(QUICK, 20, 32, 1)
    coarse, fine = drawn.residuals(4), drawn.residuals(1)
    assert np.square(fine.exact).mean() < np.square(fine.ito).mean() / 4
    # Without noise both forms are one up to O(dt).
    quiet = replace(drawn, noise=torch.zeros_like(drawn.noise)).residuals(1)
    assert np.allclose(quiet.exact, quiet.exact[0], rtol=1e-12)
    assert np.square(coarse.exact).mean() > np.square(fine.exact).mean()


def test_the_order_of_noisy_residuals() -> None:
    steps = (0.08, 0.04, 0.02, 0.01)
    noise = np.random.Generator(np.random.Philox(0)).standard_normal((4, 400))
    for order in (0.5, 1.0):
        found, error = ledger._order(steps, [step**order * row for step, row in zip(steps, noise, strict=True)])
        assert abs(found - order) < 4 * error
        assert error < 0.1
    exact, none = ledger._order(steps, [step * np.ones(10) for step in steps])
    assert exact == pytest.approx(1)
    assert none == pytest.approx(0)
    assert math.isfinite(exact)
