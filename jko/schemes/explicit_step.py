"""What every explicit scheme does around its own move: passes counted, columns filled, non-finite values reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from jko.checks import check_positive
from jko.errors import InvalidInput
from jko.flows import AbstractFlow, FlowState
from jko.measure import ParticleMeasure
from jko.numerics import all_finite, row_sum
from jko.schemes.base import Step, StepInfo, StepState
from jko.status import Status

__all__ = ["Move", "check_explicit", "finish", "fits"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Where a scheme takes the particles.

    Attributes:
        points: the new particles, on the manifold; None where a velocity on the way was inf or NaN.
        displacement: the move as tangent vectors at the old particles, shape (n, d).
        passes: passes over the pairs that it took beyond the one at the old state.
        squared_distance: its cost in the flow's metric; None for a flow without one.
    """

    points: Tensor | None
    displacement: Tensor
    passes: int
    squared_distance: float | None


def check_explicit(own: float, tau: float | None, guess: ParticleMeasure | None) -> float:
    """Return the step size of a step; an explicit scheme takes no guess."""
    if guess is not None:
        raise InvalidInput("an explicit scheme computes its step directly; guess must be None")
    return own if tau is None else check_positive(tau, "tau")


def fits(points: Tensor) -> Tensor | None:
    """Return the points where all of them are finite, else None."""
    return points if all_finite(points) else None


def finish(
    flow: AbstractFlow,
    measure: ParticleMeasure,
    tau: float,
    state: StepState,
    move: Move,
    *,
    evaluate: Callable[[ParticleMeasure, float], FlowState] | None = None,
    extra: Mapping[str, float] | None = None,
) -> Step:
    """Take a move: evaluate the flow at the new state (one pass) and describe the step.

    `energy_previous` and `time_part` take a value-only pass when the heads move, and none when they do not.

    Args:
        flow: what the step follows.
        measure: the old measure, returned where the step fails.
        tau: step size.
        state: the state at the old measure and time.
        move: where the particles go.
        evaluate: evaluates the flow where the next step needs more than `flow.state` gives.
        extra: further columns of the step.
    """
    old, end = state.flow_state, state.flow_state.t + tau
    largest = float(row_sum(move.displacement.square()).amax().sqrt())
    if move.points is None or not math.isfinite(largest):
        detail = flow.explain_non_finite(measure, old.t)
        failed = StepInfo(Status.NON_FINITE, {}, move.displacement, largest, detail=detail)
        return Step(measure, failed, state)
    moved = measure.moved(move.points)
    new = (evaluate or flow.state)(moved, end)
    columns, evaluations = {}, 1.0 + move.passes
    if old.evaluation is not None:
        previous = old.columns["energy"]
        if flow.moves:
            value = flow.value(measure, end)
            evaluations += 1.0
            previous = previous if value is None else value
        columns = {"energy_previous": previous, "time_part": previous - old.columns["energy"] if flow.moves else 0.0}
    if move.squared_distance is not None:
        columns["squared_distance"] = move.squared_distance
    columns |= {**(extra or {}), "largest_displacement": largest, "evaluations": evaluations}
    info = StepInfo(Status.SUCCESS, columns, move.displacement, largest)
    if not new.usable or not all(math.isfinite(number) for number in (extra or {}).values()):
        detail = flow.explain_non_finite(moved, end)
        failed = StepInfo(Status.NON_FINITE, columns, move.displacement, largest, trial=moved, detail=detail)
        return Step(measure, failed, state)
    return Step(moved, info, StepState(flow, new))
