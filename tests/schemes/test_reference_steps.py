"""Single steps against an independent implementation, to ten digits."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import jko
from tests.schemes.problems import METRICS, attention, gap, solver, succeeded

REFERENCE = Path(__file__).parents[1] / "reference" / "one_step.json"


@functools.cache
def _problems() -> list[dict[str, Any]]:
    return json.loads(REFERENCE.read_text(encoding="utf-8"))


CASES = [(k, j) for k in range(4) for j in range(6)]


def test_every_step_is_here() -> None:
    assert [(k, j) for k, problem in enumerate(_problems()) for j in range(len(problem["steps"]))] == CASES
    kinds = {(s["metric"], s["sign"]) for p in _problems() for s in p["steps"]}
    assert kinds == {(metric, sign) for metric in METRICS for sign in (1, -1)}


@pytest.mark.parametrize("method", ["anderson", "trust"])
@pytest.mark.parametrize(("k", "j"), CASES)
def test_one_step(k: int, j: int, method: str) -> None:
    problem = _problems()[k]
    expected = problem["steps"][j]
    flow = attention(problem["D"], expected["metric"], expected["sign"])
    y = jko.ParticleMeasure(problem["y"])
    step = succeeded(jko.JKO(problem["tau"], **solver(method, 1e-12)).step(flow, y))
    info = step.info
    assert info.residual <= 1e-12
    assert gap(step.measure.points, expected["x"]) < 1e-10
    assert info.squared_distance == pytest.approx(expected["squared_distance"], rel=0, abs=1e-10)
    assert info.energy_previous == pytest.approx(expected["energy_before"], rel=0, abs=1e-12)
    after = step.state.flow_state.columns["energy"]
    assert after == pytest.approx(expected["energy_after"], rel=0, abs=1e-10)
    assert after == float(flow.energy.value(step.measure, problem["tau"])) or after == pytest.approx(
        float(flow.energy.value(step.measure, problem["tau"])), rel=1e-14
    )
    if expected["metric"] == "headwise":
        assert info.head_energy == pytest.approx(expected["mean_headwise_energy_after"], rel=0, abs=1e-10)
        assert info.displacement.shape == (problem["H"], problem["n"], problem["d"])
    else:
        assert "head_energy" not in info.columns
        assert info.displacement.shape == (problem["n"], problem["d"])


@pytest.mark.parametrize("k", range(4))
def test_velocities_and_slopes(k: int) -> None:
    problem = _problems()[k]
    quantities = problem["quantities"]
    y = jko.ParticleMeasure(problem["y"])
    # The reference has the head-wise velocities of symmetric heads alone.
    for metric in METRICS if problem["symmetric"] else ("w2", "weighted"):
        flow = attention(problem["D"], metric)
        assert gap(flow.velocity(y, 0.0), quantities[f"v_{metric}"]) < 1e-12
        opposite = attention(problem["D"], metric, sign=-1)
        assert torch.equal(opposite.velocity(y, 0.0), -flow.velocity(y, 0.0))
    columns = attention(problem["D"], "weighted").state(y, 0.0).columns
    assert columns["energy"] == pytest.approx(quantities["E"], rel=1e-13)
    assert columns["slope2"] == pytest.approx(quantities["G2_weighted"], rel=1e-12)
    if problem["symmetric"]:
        assert columns["paper_slope2"] == pytest.approx(quantities["G2_paper"], rel=1e-12)
        dissipation = attention(problem["D"], "headwise").state(y, 0.0).columns["dissipation"]
        assert dissipation == pytest.approx(quantities["dissipation_headwise"], rel=1e-12)


def test_the_comparison_can_fail() -> None:
    problem = _problems()[1]
    step = jko.JKO(problem["tau"]).step(attention(problem["D"], "w2"), jko.ParticleMeasure(problem["y"]))
    weighted = next(s for s in problem["steps"] if s["metric"] == "weighted" and s["sign"] == 1)
    assert gap(step.measure.points, weighted["x"]) > 1e-3
