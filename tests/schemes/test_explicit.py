"""The explicit scheme: one projected step along the velocity, from the old state."""

from __future__ import annotations

import math

import pytest
import torch

import jko
from jko.status import Status
from tests.schemes.problems import METRICS, SIGNS, attention, gap, succeeded, tokens


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sign", SIGNS)
def test_a_step_is_the_projected_velocity(metric: str, sign: int, dtype: torch.dtype, device: torch.device) -> None:
    flow = attention(jko.initial_heads(2, 3, 1) * 0.5, metric, sign)
    y = jko.ParticleMeasure(tokens(6)).to(dtype, device)
    step = succeeded(jko.ExplicitEuler(0.1).step(flow, y))
    velocity = flow.velocity(y, 0.0)
    z = y.points + 0.1 * velocity
    tolerance = 8 * torch.finfo(dtype).eps
    assert gap(step.measure.points, (z / z.norm(dim=-1, keepdim=True)).double().cpu()) < tolerance
    assert step.measure.dtype == dtype
    assert step.info.squared_distance == pytest.approx(0.01 * float(flow.slope(y, 0.0)) ** 2, rel=1e-6)
    assert step.info.largest_displacement == pytest.approx(float(0.1 * velocity.norm(dim=-1).max()), rel=1e-6)
    assert set(step.info.columns) >= {"energy_previous", "squared_distance", "time_part", "evaluations"}
    assert not {"residual", "certified", "head_energy"} & set(step.info.columns)


def test_particles_and_heads_advance_from_the_old_state() -> None:
    D0 = jko.initial_heads(2, 3, 1) * 0.5
    heads = jko.TabulatedHeads([0.0, 0.1, 1.0], torch.stack([D0, -D0, D0]))
    flow = jko.GradientFlow(jko.AttentionEnergy(heads))
    y = jko.ParticleMeasure(tokens(6))
    step = succeeded(jko.ExplicitEuler(0.1).step(flow, y))
    frozen = succeeded(jko.ExplicitEuler(0.1).step(attention(D0), y))
    assert torch.equal(step.measure.points, frozen.measure.points)
    assert step.info.energy_previous == pytest.approx(float(flow.energy.value(y, 0.1)), rel=1e-14)
    assert step.info.time_part == pytest.approx(float(flow.energy.value(y, 0.1) - flow.energy.value(y, 0.0)), rel=1e-12)
    assert step.info.evaluations == frozen.info.evaluations + 1
    assert frozen.info.time_part == 0
    # A minimizing movement takes the heads of the END: another step altogether.
    scheme = jko.JKO(0.1, minimizer=jko.Anderson(1e-12), fallback=jko.TrustNewton(1e-12))
    implicit, end = succeeded(scheme.step(flow, y)), succeeded(scheme.step(attention(-D0), y))
    assert gap(implicit.measure.points, end.measure.points) < 1e-11


def test_a_flow_that_overflows_keeps_the_old_measure() -> None:
    flow = attention(torch.eye(2)[None].double(), "w2", -1, jko.Euclidean())
    y = jko.ParticleMeasure([[3.0, 0.0]])
    step = jko.ExplicitEuler(0.01).step(flow, y)
    assert step.info.status is Status.NON_FINITE
    assert step.measure is y
    assert step.info.trial is not None
    assert "largest exponent" in step.info.detail
    assert math.isfinite(step.info.largest_displacement)


@pytest.mark.parametrize("scheme", [jko.ExplicitEuler(0.1), jko.ExponentialEuler(0.1), jko.RK4(0.1), jko.JKO(0.1)])
def test_schemes_hold_nothing_but_their_fields(scheme: object) -> None:
    assert not hasattr(scheme, "__dict__")
