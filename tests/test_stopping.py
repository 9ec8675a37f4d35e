"""Conditions that end a run."""

from __future__ import annotations

import math

import pytest
import torch

import jko
from jko.errors import InvalidInput
from jko.stopping import AbstractStop, Progressed, Stationary


def seen(slope2: float) -> Progressed:
    return Progressed(1, 0.1, jko.ParticleMeasure(torch.eye(2)), {"slope2": slope2})


def test_stationary_compares_the_slope_and_not_its_square() -> None:
    stop = Stationary(0.1)
    assert isinstance(stop, AbstractStop)
    assert stop(seen(0.0099))
    assert stop(seen(0.1**2))
    assert not stop(seen(0.0101))
    assert not stop(seen(0.09))
    assert not stop(seen(math.nan))


@pytest.mark.parametrize("kind", [jko.ExplicitEuler, jko.ExponentialEuler, jko.RK4])
@pytest.mark.parametrize("sign", [1, -1])
def test_without_a_metric_it_stops_at_the_first_state_whose_speed_is_small(kind: type, sign: int) -> None:
    field = jko.AttentionField(jko.ConstantHeads(torch.diag(torch.tensor([2.0, 1.0, 0.5]))[None]), sign=sign)
    flow = jko.VelocityFlow(field)
    points, weights = jko.initial_tokens(4, 3, seed=0), [0.1, 0.2, 0.3, 0.4]
    run = jko.solve(flow, jko.ParticleMeasure(points, weights), kind(0.1), t1=60.0, stop=Stationary(0.05))
    assert run.status is jko.Status.STOPPED
    velocities = [flow.velocity(run.measure(k), 0.0) for k in range(run.steps + 1)]
    # (sum_i w_i |v_i|^2)^(1/2)
    speeds = [math.sqrt(float((torch.tensor(weights) * v.square().sum(-1)).sum())) for v in velocities]
    assert run.states.speed2.sqrt().tolist() == pytest.approx(speeds, rel=1e-6)
    assert run.steps > 5
    assert speeds[-1] <= 0.05 < min(speeds[1:-1])


def test_columns_without_slope_or_speed_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'slope2' of a GradientFlow or 'speed2' of a VelocityFlow.*columns energy"):
        Stationary(0.1)(Progressed(1, 0.1, jko.ParticleMeasure(torch.eye(2)), {"energy": 1.0}))


@pytest.mark.parametrize("slope", [0, -1, math.nan, math.inf, "small"])
def test_bad_slopes(slope: object) -> None:
    with pytest.raises(InvalidInput, match="slope"):
        Stationary(slope)
