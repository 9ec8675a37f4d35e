"""The transformer without an energy: softmax outputs by formulas, and what explicit schemes make of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import jko
from jko.flows import AbstractFlow
from tests.oracles.attention import assert_close, average, exponents, problem, tangent
from tests.oracles.flows import flow as gradient_flow
from tests.oracles.reductions import Counted

PROBLEMS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "reference" / "one_step.json").read_text())
THETA = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
F64 = torch.float64


def field(D: Tensor, V: Tensor | None = None, sign: int = 1, theta: Tensor | None = None) -> jko.AttentionField:
    values = None if V is None else jko.ConstantHeads(V)
    return jko.AttentionField(jko.ConstantHeads(D, theta), values, sign)


def by_formula(x: Tensor, w: Tensor, D: Tensor, V: Tensor, theta: Tensor | None) -> Tensor:
    """Ambient mean_h sum_j A_ij V_h x_j with the weights inside the softmax."""
    attention = (exponents(x, D) + w.log()).softmax(-1)
    return average(torch.einsum("hij,hde,je->hid", attention, V, x), theta)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("weights", ["equal", "unequal", "tracers"])
@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("sphere", [True, False])
def test_velocity_by_its_formula(d: int, weights: str, sign: int, sphere: bool) -> None:
    p = problem(9, d, 3, symmetric=False, weights=weights, sphere=sphere, seed=2)
    V = torch.from_numpy(np.random.default_rng(7).standard_normal((3, d, d)))
    measure = jko.ParticleMeasure(p.points, p.weights)
    space = jko.Sphere() if sphere else jko.Euclidean()
    for values in (None, V):
        flow = jko.VelocityFlow(field(p.D, values, sign, THETA), space)
        expected = -sign * by_formula(p.points, p.weights, p.D, p.D if values is None else values, THETA)
        assert_close(flow.velocity(measure, 0.0), tangent(p.points, expected) if sphere else expected, 1e-13)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("theta", [None, THETA])
def test_symmetric_heads_give_the_head_wise_velocity(sign: int, theta: Tensor | None) -> None:
    p = problem(20, 3, 3, sphere=True)
    measure = jko.ParticleMeasure(p.points, p.weights)
    flow = jko.VelocityFlow(field(p.D, None, sign, theta))
    headwise = gradient_flow(p.D, "headwise", sign, head_weights=theta)
    assert_close(flow.velocity(measure, 0.0), headwise.velocity(measure, 0.0), 1e-14)
    # Not so where the heads are not symmetric: the first variation has two halves.
    skew = problem(20, 3, 3, symmetric=False, sphere=True).D
    flow, headwise = jko.VelocityFlow(field(skew)), gradient_flow(skew, "headwise")
    assert float((flow.velocity(measure, 0.0) - headwise.velocity(measure, 0.0)).abs().max()) > 0.1


@pytest.mark.parametrize("k", range(len(PROBLEMS)))
@pytest.mark.parametrize("sign", [1, -1])
def test_reference_velocities(k: int, sign: int) -> None:
    entry = PROBLEMS[k]
    flow = jko.VelocityFlow(field(torch.tensor(entry["D"], dtype=F64), None, sign))
    expected = sign * torch.tensor(entry["quantities"]["v_headwise"], dtype=F64)
    assert_close(flow.velocity(jko.ParticleMeasure(entry["y"]), 0.0), expected, 1e-12)


def test_signs_of_one_particle() -> None:
    # sign = +1 moves along -V: away from D x.
    D = torch.diag(torch.tensor([2.0, 1.0], dtype=F64))[None]
    x = torch.tensor([[0.6, 0.8]], dtype=F64)
    v = jko.VelocityFlow(field(D)).velocity(jko.ParticleMeasure(x), 0.0)
    assert_close(v, -tangent(x, x @ D[0]), 1e-15)
    assert float(v[0, 0]) < 0


def test_values_move_on_their_own() -> None:
    p = problem(5, 3, 2, sphere=True)
    measure = jko.ParticleMeasure(p.points, p.weights)
    values = jko.TabulatedHeads([0.0, 1.0], torch.stack([p.D, -2 * p.D]))
    moving = jko.VelocityFlow(jko.AttentionField(jko.ConstantHeads(p.D), values))
    assert moving.moves
    assert not jko.VelocityFlow(field(p.D)).moves
    assert jko.VelocityFlow(jko.AttentionField(values)).moves
    v = [moving.velocity(measure, t) for t in (0.0, 1 / 3, 1.0)]
    assert float(v[1].abs().max()) < 1e-14
    assert_close(v[2], -2 * v[0], 1e-13)
    with pytest.raises(jko.InvalidInput, match="outside"):
        jko.solve(moving, measure, jko.ExplicitEuler(0.5), t1=2.0)


def test_batches() -> None:
    generator = np.random.default_rng(0)
    points = jko.Sphere().random_point((4, 6), 3, 1)
    D = torch.from_numpy(generator.standard_normal((4, 2, 3, 3)))
    V = torch.from_numpy(generator.standard_normal((2, 3, 3)))
    together = jko.VelocityFlow(field(D, V)).velocity(jko.ParticleMeasure(points), 0.0)
    assert together.shape == (4, 6, 3)
    for j in range(4):
        alone = jko.VelocityFlow(field(D[j], V)).velocity(jko.ParticleMeasure(points[j]), 0.0)
        assert_close(together[j], alone, 1e-15)
    exponent = field(D, V).largest_exponent(jko.ParticleMeasure(points), 0.0)
    assert exponent == pytest.approx(
        float(torch.stack([exponents(points[j], D[j]) for j in range(4)]).max()), rel=1e-14
    )


def test_one_pass_and_precision(dtype: torch.dtype, device: torch.device) -> None:
    calls: list[None] = []
    p = problem(9, 3, 3, symmetric=False, sphere=True)
    attention = jko.AttentionField(jko.ConstantHeads(p.D), reduction=Counted(jko.Auto(), calls))
    measure = jko.ParticleMeasure(p.points, p.weights)
    v = jko.VelocityFlow(attention).velocity(measure.to(dtype, device), 0.0)
    assert len(calls) == 1
    assert v.dtype == dtype
    expected = -tangent(p.points, by_formula(p.points, p.weights, p.D, p.D, None))
    assert_close(v, expected, 64 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("kind", [jko.ExplicitEuler, jko.ExponentialEuler, jko.RK4])
def test_explicit_schemes_follow_it(kind: type) -> None:
    p = problem(7, 3, 2, symmetric=False, sphere=True)
    flow = jko.VelocityFlow(field(p.D, torch.flip(p.D, [0]), -1))
    run = jko.solve(flow, jko.ParticleMeasure(p.points, p.weights), kind(0.01), t1=0.05)
    assert set(run.states) == {"t", "speed2"}
    assert float(run.states.speed2[0]) == pytest.approx(
        float((p.weights * flow.velocity(run.measure(0), 0.0).square().sum(-1)).sum()), rel=1e-14
    )
    assert set(run.records) == {"t", "speed2", "largest_displacement", "evaluations", "status"}
    assert float(run.records.evaluations.max()) == (4 if kind is jko.RK4 else 1)
    exact = jko.solve(flow, jko.ParticleMeasure(p.points, p.weights), jko.RK4(0.005), t1=0.05)
    error = float((run.points[-1] - exact.points[-1]).abs().max())
    assert error < (1e-8 if kind is jko.RK4 else 1e-3)
    assert (error < 1e-6) == (kind is jko.RK4)
    assert "softmax attention, sign = -1" in run.title


def test_a_minimizing_movement_refuses_it() -> None:
    p = problem(5, 3, 2, sphere=True)
    flow = jko.VelocityFlow(field(p.D))
    assert isinstance(flow, AbstractFlow)
    assert flow.value(jko.ParticleMeasure(p.points), 0.0) is None
    with pytest.raises(
        jko.InvalidInput, match=r"needs an energy and a metric, which VelocityFlow does not have.*explicit"
    ):
        jko.solve(flow, jko.ParticleMeasure(p.points), jko.JKO(0.1), t1=0.1)


def test_overflow_is_explained() -> None:
    # Exponents of 800 are no matter; here the output itself is no float any more.
    D = 1e308 * torch.ones(1, 2, 2, dtype=F64)
    y = jko.ParticleMeasure([[1.0, 0.0], [0.0, 1.0]])
    run = jko.solve(jko.VelocityFlow(field(D), jko.Euclidean()), y, jko.RK4(10.0), t1=20.0, throw=False)
    assert run.status is jko.Status.NON_FINITE
    assert run.failure is not None
    assert "largest exponent 1e+308" in run.failure.detail
    assert math.isfinite(float(run.points.sum()))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda h: jko.AttentionField(torch.ones(2, 3, 3)), "wrap a tensor"),
        (lambda h: jko.AttentionField(h, torch.ones(2, 3, 3)), "values must be an instance of AbstractHeads"),
        (lambda h: jko.AttentionField(h, jko.ConstantHeads(torch.ones(1, 3, 3))), r"\(1, 3\).*\(2, 3\)"),
        (lambda h: jko.AttentionField(h, jko.ConstantHeads(torch.ones(2, 2, 2))), r"\(2, 2\).*\(2, 3\)"),
        (lambda h: jko.AttentionField(h, jko.ConstantHeads(torch.ones(2, 3, 3), [0.5, 0.5])), "head weights"),
        (lambda h: jko.AttentionField(h, sign=0), "sign"),
        (lambda h: jko.AttentionField(h, reduction=jko.Auto), "reduction"),
        (jko.VelocityFlow, "field must be an instance of AbstractField"),
        (lambda h: jko.VelocityFlow(jko.AttentionField(h), jko.Sphere), r"write Sphere\(\)"),
    ],
)
def test_bad_input_is_named(build: Any, message: str) -> None:
    with pytest.raises(jko.InvalidInput, match=message):
        build(jko.ConstantHeads(torch.ones(2, 3, 3)))


def test_dimensions_and_places_are_checked() -> None:
    flow = jko.VelocityFlow(field(torch.ones(2, 3, 3, dtype=F64)))
    with pytest.raises(jko.InvalidInput, match="do not fit"):
        flow.velocity(jko.ParticleMeasure([[1.0, 0.0]]), 0.0)
    with pytest.raises(jko.InvalidInput, match="norm"):
        flow.velocity(jko.ParticleMeasure([[2.0, 0.0, 0.0]]), 0.0)
    same = jko.AttentionField(
        jko.ConstantHeads(torch.ones(2, 3, 3), [0.5, 0.5]), jko.ConstantHeads(torch.ones(2, 3, 3), [0.5, 0.5])
    )
    assert same.values is not None
