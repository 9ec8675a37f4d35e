"""Every public method that takes a measure refuses anything else, and every error names an expected class alike."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import jko
from jko.diagnostics import compare
from jko.energies import AbstractEnergy
from jko.flows import AbstractField, AbstractFlow
from jko.metrics import Fields, MobilityField
from jko.schemes import AbstractScheme
from jko.trajectory import Trajectory
from jko.transport import TransportProblem, squared_wasserstein

POINTS = torch.eye(3, dtype=torch.float64)
MEASURE = jko.ParticleMeasure(POINTS)
HEADS = jko.ConstantHeads(torch.eye(3, dtype=torch.float64)[None])
ATTENTION = jko.AttentionEnergy(HEADS)
ENERGIES = {
    "attention": ATTENTION,
    "heads apart": ATTENTION.by_head(),
    "interaction": jko.InteractionEnergy(jko.GaussianKernel(1.0)),
    "potential": jko.PotentialEnergy(lambda x: x.square().sum(-1)),
    "function": jko.FunctionEnergy(lambda x, w, t: x.square().sum()),
    "sum": ATTENTION + ATTENTION,
    "scaled": jko.Scaled(ATTENTION, 2.0),
}
FLOWS = {
    "gradient": jko.GradientFlow(ATTENTION),
    "gradient of a potential": jko.GradientFlow(ENERGIES["potential"], jko.Wasserstein2()),
    "velocity": jko.VelocityFlow(jko.AttentionField(HEADS)),
}
SCHEMES = (jko.JKO(0.1), jko.ExplicitEuler(0.1), jko.ExponentialEuler(0.1), jko.RK4(0.1))
FLOW = FLOWS["gradient"]
EVALUATION = ATTENTION.evaluate(MEASURE, 0.0)
OTHERS = {"t": 0.0, "direction": POINTS, "targets": POINTS, "evaluation": EVALUATION, "flow": FLOW}
REFUSED = "must be an instance of ParticleMeasure, got Tensor; wrap it in ParticleMeasure$"


def methods_of_a_measure() -> list[Any]:
    """Calls with the points in place of the measure, found from the signatures."""
    calls = []
    owners = [*ENERGIES.items(), *FLOWS.items(), ("attention field", jko.AttentionField(HEADS))]
    for label, owner in [*owners, *((type(scheme).__name__, scheme) for scheme in SCHEMES)]:
        for name, method in inspect.getmembers(owner, inspect.ismethod):
            parameters = inspect.signature(method).parameters.values()
            if name.startswith("_") or not any(parameter.name == "measure" for parameter in parameters):
                continue
            asked = [p.name for p in parameters if p.default is inspect.Parameter.empty]
            arguments = {key: OTHERS.get(key, POINTS) for key in asked}
            calls.append(pytest.param(lambda m=method, a=arguments: m(**a), id=f"{label}.{name}"))
    return calls


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "solve": lambda: jko.solve(FLOW, POINTS, jko.JKO(0.1), t1=1.0),
    "compare": lambda: compare(POINTS, HEADS, t1=1.0, taus=[0.1]),
    "squared_wasserstein": lambda: squared_wasserstein(MEASURE, POINTS, jko.Sphere()),
    "TransportProblem": lambda: TransportProblem(POINTS, MEASURE, jko.Sphere()),
    "MobilityField": lambda: MobilityField(ATTENTION, POINTS, 0.0),
    "Fields.of": lambda: Fields.of(EVALUATION, POINTS, jko.Sphere(), 0.0),
    "Trajectory.of": lambda: Trajectory.of([POINTS]),
    "the guess of a step": lambda: jko.JKO(0.1).step(FLOW, MEASURE, guess=POINTS),
}


@pytest.mark.parametrize("call", [*methods_of_a_measure(), *(pytest.param(f, id=k) for k, f in FUNCTIONS.items())])
def test_points_are_refused_where_a_measure_is_expected(call: Callable[[], Any]) -> None:
    with pytest.raises(jko.InvalidInput, match=REFUSED):
        call()


def test_every_method_of_the_families_is_among_the_calls() -> None:
    called = {call.id.split(".")[1] for call in methods_of_a_measure()}
    for family in (AbstractEnergy, AbstractFlow, AbstractField, AbstractScheme):
        for name, function in inspect.getmembers(family, inspect.isfunction):
            if "measure" in inspect.signature(function).parameters:
                assert name in called
    assert {"log_value", "slope", "fields"} <= called


def of_the_wrong_class() -> dict[str, Callable[[], Any]]:
    calls: dict[str, Callable[[], Any]] = {
        "heads of AttentionEnergy": lambda: jko.AttentionEnergy(POINTS[None]),
        "heads of AttentionField": lambda: jko.AttentionField(POINTS[None]),
        "values of AttentionField": lambda: jko.AttentionField(HEADS, POINTS[None]),
        "kernel": lambda: jko.InteractionEnergy(lambda x, y: x @ y),
        "reduction": lambda: jko.AttentionEnergy(HEADS, reduction="auto"),
        "energy of Scaled": lambda: jko.Scaled(3.0, 2.0),
        "term of Sum": lambda: jko.Sum([ATTENTION, 3.0]),
        "added": lambda: ATTENTION + 3.0,
        "energy of GradientFlow": lambda: jko.GradientFlow(3.0),
        "field of VelocityFlow": lambda: jko.VelocityFlow(3.0),
        "transport": lambda: jko.JKO(0.1, transport="exact"),
        "folder": lambda: jko.Checkpoint(3),
        "resumed folder": lambda: jko.resume(3, FLOW, jko.JKO(0.1)),
    }
    right = {"flow": FLOW, "measure": MEASURE, "scheme": jko.JKO(0.1), "t1": 1.0}
    for name in ("flow", "measure", "scheme", "save", "progress", "checkpoint", "config"):
        calls[f"{name} of solve"] = lambda name=name: jko.solve(**{**right, name: "wrong"})
    return calls


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in of_the_wrong_class().items()])
def test_an_argument_of_the_wrong_class_is_named_with_the_class_that_is_expected(call: Callable[[], Any]) -> None:
    with pytest.raises(jko.InvalidInput, match=r"must be an instance of [A-Za-z]\w*( or \w+)*( such as .+)?, got "):
        call()


def test_the_sentence_about_an_expected_class_is_written_in_one_place() -> None:
    package = Path(jko.__file__).parent
    sentence = re.compile(r"must be an instance|must be an? [A-Z]\w+, got|must be [A-Z]\w+\(")
    writers = {path.name for path in package.rglob("*.py") if sentence.search(path.read_text(encoding="utf-8"))}
    assert writers <= {"checks.py", "pairwise.py"}  # pairwise.py asks for some members of a family
    assert "checks.py" in writers
