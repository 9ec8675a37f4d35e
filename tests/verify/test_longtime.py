from __future__ import annotations

import functools
import math

import pytest
import torch

from jko.verify import longtime, rest
from jko.verify.base import Finding, Setting, Verdict
from jko.verify.longtime import LongRun
from jko.verify.rest import Angle

QUICK = Setting(quick=True)
EXPECTED = {
    "omega-limit": Verdict.HOLDS,
    "omega-limit-noise": Verdict.NOT_APPLICABLE,
    "omega-limit-shared": Verdict.NOT_APPLICABLE,
    "omega-limit-spread": Verdict.NOT_APPLICABLE,
    "omega-limit-many-phases": Verdict.HOLDS,
    "oscillating-phases": Verdict.RESTRICTED,
    "rest-of-the-transformer": Verdict.FAILS,
}


@functools.cache
def findings() -> dict[str, Finding]:
    statements = (*longtime.STATEMENTS, *rest.STATEMENTS)
    return {finding.key: finding for statement in statements for finding in statement.run(QUICK)}


def value(key: str, start: str) -> float:
    (found,) = [m for m in findings()[key].measurements if m.name.startswith(start)]
    return found.value


@pytest.mark.parametrize("key", EXPECTED)
def test_verdicts_are_the_predicted_ones(key: str) -> None:
    assert findings()[key].verdict is EXPECTED[key]
    assert findings()[key].as_expected
    assert findings()[key].figure is not None


def test_the_gradient_decays_slowly_along_integrable_heads() -> None:
    assert 5e-5 < value("omega-limit", "G^2 at t = 18.8, noise-free OU, H = 1, sign = +1") < 4e-4
    assert value("omega-limit", "G^2 at t = 18.8, noise-free OU, H = 1, sign = -1") < 1e-9


def test_plateaus_of_moving_heads() -> None:
    shared = value("omega-limit-shared", "plateau")
    assert 0.25 < shared < 0.55
    assert value("omega-limit-spread", "plateau") > 0.05
    assert value("oscillating-phases", "mean G^2 over the last period, H = 10, phases spread") < 0.004
    assert value("oscillating-phases", "mean G^2 over the last period, H = 10, phases shared") > 0.25


def test_where_the_transformer_rests() -> None:
    angle = Angle((3.99, -1.97))
    assert angle.root("transformer") == pytest.approx(0.785554, abs=5e-7)
    assert angle.root("gradient") == pytest.approx(-0.118416, abs=5e-7)
    found = [m for m in findings()["rest-of-the-transformer"].measurements if "where v_T rests, from" in m.name]
    rests = [m.value for m in found if m.name.startswith("inner product")]
    assert rests == pytest.approx([0.785554] * len(rests), abs=5e-7)
    assert value("rest-of-the-transformer", "inner product where v_B rests") == pytest.approx(-0.118416, abs=5e-7)
    assert value("rest-of-the-transformer", "weighted slope of E where v_T rests, from inner product 0.9") > 20


def test_one_head_rests_where_the_energy_does() -> None:
    for gamma in (-0.5, 0.3):
        angle = Angle((2.0,))
        ratio = angle.transformer(gamma) / angle.gradient(gamma)
        assert ratio == pytest.approx(2 / (math.exp(2.0) + math.exp(2.0 * gamma)))


def run_with(growths: tuple[float, float, float]) -> LongRun:
    parts = torch.cat([torch.full((10,), growth / 10, dtype=torch.float64) for growth in growths])
    t = torch.linspace(0, 6 * math.pi, 31, dtype=torch.float64)
    return LongRun("planted", t, torch.ones(31, dtype=torch.float64), -t, parts)


def test_the_hypothesis_is_told_by_its_growth() -> None:
    assert run_with((1.0, 0.01, 1e-5)).bounded.passed
    assert run_with((1.0, -0.5, -0.5)).bounded.passed
    assert not run_with((1.0, 1.0, 1.0)).bounded.passed
    assert not run_with((1.0, 0.5, 0.25)).bounded.passed
    run = run_with((1.0, 1.0, 1.0))
    assert longtime._verdict(run, (longtime._settles(run),)) is Verdict.NOT_APPLICABLE
    flat = run_with((1.0, 0.0, 0.0))
    assert longtime._verdict(flat, (longtime._settles(flat),)) is Verdict.FAILS
    assert float(run.hypothesis[-1]) == pytest.approx(3.0)
    assert run.int_G2 == pytest.approx(6 * math.pi)
