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


def test_a_flow_without_a_metric_has_no_slope_to_stop_at() -> None:
    flow = jko.VelocityFlow(jko.AttentionField(jko.ConstantHeads(0.3 * jko.initial_heads(2, 3, seed=0))))
    tokens = jko.ParticleMeasure(jko.initial_tokens(4, 3, seed=0))
    with pytest.raises(InvalidInput, match=r"Stationary reads the column 'slope2'.*GradientFlow"):
        jko.solve(flow, tokens, jko.ExplicitEuler(0.1), t1=0.2, stop=Stationary(0.1))


@pytest.mark.parametrize("slope", [0, -1, math.nan, math.inf, "small"])
def test_bad_slopes(slope: object) -> None:
    with pytest.raises(InvalidInput, match="slope"):
        Stationary(slope)
