"""The reference values of single states, to round-off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from jko import weighted
from jko.measure import ParticleMeasure
from tests.oracles.attention import assert_close, softmax_outputs, tangent
from tests.oracles.flows import METRICS, flow, mass_product

PROBLEMS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "reference" / "one_step.json").read_text())
every_problem = pytest.mark.parametrize("k", range(len(PROBLEMS)))
F64 = torch.float64
ROUND_OFF = 1e-12


def load(k: int) -> tuple[ParticleMeasure, Tensor, dict[str, Tensor], bool]:
    entry = PROBLEMS[k]
    quantities = {name: torch.tensor(value, dtype=F64) for name, value in entry["quantities"].items()}
    return ParticleMeasure(entry["y"]), torch.tensor(entry["D"], dtype=F64), quantities, entry["symmetric"]


def test_there_are_problems_of_both_kinds() -> None:
    assert [entry["symmetric"] for entry in PROBLEMS] == [True, True, True, False]
    assert [entry["H"] for entry in PROBLEMS] == [1, 2, 3, 2]


@every_problem
@pytest.mark.parametrize("sign", [1, -1])
def test_mobilities_energy_gradient(k: int, sign: int) -> None:
    measure, D, expected, _ = load(k)
    f = flow(D, "weighted", sign)
    fields = f.fields(measure, 0.0)
    assert fields.evaluation.heads is not None
    assert_close(fields.evaluation.heads.mobility, expected["m"], ROUND_OFF)
    assert_close(fields.effective_mobility, expected["b"], ROUND_OFF)  # type: ignore[arg-type]
    assert_close(fields.evaluation.value, sign * expected["E"], ROUND_OFF)
    assert_close(fields.gradient, sign * expected["grad"], ROUND_OFF)
    assert_close(weighted.head_mobility(measure.points, D), expected["m"], ROUND_OFF)
    assert_close(weighted.effective_mobility(expected["m"]), expected["b"], ROUND_OFF)


@every_problem
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", METRICS)
def test_velocities(k: int, sign: int, name: str) -> None:
    measure, D, expected, symmetric = load(k)
    velocity = flow(D, name, sign).velocity(measure, 0.0)
    if name != "headwise" or symmetric:
        assert_close(velocity, sign * expected[f"v_{name}"], ROUND_OFF)
    else:
        # The reference has the softmax output there, which is the head-wise velocity of symmetric heads only.
        assert float((velocity - sign * expected["v_headwise"]).abs().max()) > 0.1


@every_problem
def test_slopes(k: int) -> None:
    measure, D, expected, _ = load(k)
    # The field of the reference holds the square.
    assert_close(flow(D, "w2").state(measure, 0.0).columns["slope2"], expected["slope_w2"], ROUND_OFF)
    assert_close(flow(D, "w2").slope(measure, 0.0) ** 2, expected["slope_w2"], ROUND_OFF)
    assert_close(flow(D, "weighted").state(measure, 0.0).columns["slope2"], expected["G2_weighted"], ROUND_OFF)


@every_problem
def test_paper_slope_and_dissipation(k: int) -> None:
    measure, D, expected, symmetric = load(k)
    columns = flow(D, "headwise").state(measure, 0.0).columns
    if symmetric:
        assert_close(columns["paper_slope2"], expected["G2_paper"], ROUND_OFF)
        assert_close(columns["dissipation"], expected["dissipation_headwise"], ROUND_OFF)
    else:
        assert abs(columns["paper_slope2"] - float(expected["G2_paper"])) > 1e-3


@every_problem
def test_softmax_outputs(k: int) -> None:
    # The reference quantities of heads that are not symmetric, by formulas that share nothing with the package.
    measure, D, expected, _ = load(k)
    x, w = measure.points, measure.weights
    velocity = -tangent(x, softmax_outputs(x, w, D).mean(0))
    assert_close(velocity, expected["v_headwise"], ROUND_OFF)
    assert_close((w * expected["b"] * velocity.square().sum(-1)).sum(), expected["G2_paper"], ROUND_OFF)
    assert_close(-mass_product(w, expected["grad"], velocity), expected["dissipation_headwise"], ROUND_OFF)
    assert_close(weighted.metric_speed(velocity, expected["m"]) ** 2, expected["G2_paper"], ROUND_OFF)
