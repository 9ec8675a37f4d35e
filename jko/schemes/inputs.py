"""Checks and small helpers that every scheme shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from jko.averages import weighted_heads
from jko.checks import check_finite_number, check_positive
from jko.errors import InvalidInput
from jko.flows import AbstractFlow, FlowState, GradientFlow
from jko.measure import ParticleMeasure, check_measure
from jko.schemes.base import Step, StepState

__all__ = ["check_step", "start_state", "weighted_rows", "with_every_head"]


def check_step(
    flow: AbstractFlow,
    measure: ParticleMeasure,
    t: float,
    tau: float,
    state: StepState | None,
    evaluate: Callable[[AbstractFlow, ParticleMeasure, float], FlowState] | None = None,
) -> StepState:
    """Validate the arguments of a step and return the state at its start (a pass only where none was given)."""
    check_measure(measure)
    if measure.batch_shape:
        raise InvalidInput(
            f"a step takes one measure, got a batch of shape {tuple(measure.batch_shape)}; loop over its members"
        )
    check_positive(tau, "tau")
    check_finite_number(t, "t")
    if state is None:
        return start_state(flow, measure, t, evaluate)
    if state.flow is not flow:
        raise InvalidInput("the state belongs to another flow; pass the state that came with this one, or None")
    given = state.flow_state
    if given.measure is not measure and not _same(given.measure, measure):
        raise InvalidInput("the state belongs to another measure; pass the state that came with this one, or None")
    if given.t != t:
        raise InvalidInput(f"the state belongs to t = {given.t!r}, the step starts at {t!r}")
    return state


def start_state(
    flow: AbstractFlow,
    measure: ParticleMeasure,
    t: float,
    evaluate: Callable[[AbstractFlow, ParticleMeasure, float], FlowState] | None = None,
) -> StepState:
    """Return the state at (measure, t): one pass, by `evaluate` where it is given."""
    check_measure(measure)
    flow.manifold.check(measure.points)
    with torch.no_grad():
        return StepState(flow, flow.state(measure, t) if evaluate is None else evaluate(flow, measure, t))


def weighted_rows(flow: GradientFlow) -> list[int] | None:
    """Return the heads that take a step of their own; None where all do, or where the metric is not lifted."""
    return weighted_heads(flow.energy.attention_parts[0].heads.head_weights) if flow.metric.lifted else None


def with_every_head(flow: GradientFlow, step: Step) -> Step:
    """Give heads of weight 0 the displacement 0: no mean hears of them, and their exponentials may overflow."""
    rows = weighted_rows(flow)
    if rows is None:
        return step
    xi = step.info.displacement
    whole = xi.new_zeros(flow.energy.attention_parts[0].heads.num_heads, *xi.shape[1:])
    whole[rows] = xi
    return replace(step, info=replace(step.info, displacement=whole))


def _same(one: ParticleMeasure, other: ParticleMeasure) -> bool:
    if one.dtype != other.dtype or one.device != other.device:
        return False
    return torch.equal(one.points, other.points) and torch.equal(one.weights, other.weights)
