"""Explicit schemes: a member says where the particles go; passes, columns and failures are said here."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from jko.checks import check_positive
from jko.errors import InvalidInput
from jko.flows import AbstractFlow, FlowState
from jko.measure import ParticleMeasure
from jko.numerics import all_finite, row_sum
from jko.schemes.base import AbstractScheme, Step, StepInfo, StepState
from jko.schemes.inputs import check_step, start_state
from jko.status import Status
from jko.typing import default

__all__ = ["AbstractExplicitScheme", "Move", "fits", "tangent_cost"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Where a scheme takes the particles.

    Attributes:
        points: the new particles, on the manifold; None where a velocity on the way was inf or NaN.
        displacement: the move as tangent vectors at the old particles, shape (n, d).
        squared_distance: its cost in the flow's metric; None for a flow without one.
        passes: passes over the pairs that it took beyond the one at the old state.
        columns: further columns of the step.
    """

    points: Tensor | None
    displacement: Tensor
    squared_distance: float | None
    passes: float = 0.0
    columns: Mapping[str, float] = field(default_factory=dict)


class AbstractExplicitScheme(AbstractScheme):
    """A scheme that computes its step directly from velocities; a member is a title and a `move`.

    `energy_previous` and `time_part` take a value-only pass when the heads move, and none when they do not.
    """

    __slots__ = ()

    @abstractmethod
    def move(self, flow: AbstractFlow, old: FlowState, tau: float) -> Move:
        """Return where the particles go from the state at the start of the step in a time tau."""

    @default
    def state(self, flow: AbstractFlow, measure: ParticleMeasure, t: float) -> FlowState:
        """Return what `move` wants to know at the start of a step, from one pass."""
        return flow.state(measure, t)

    @default
    def check(self, flow: AbstractFlow) -> None:
        """Every flow has a velocity."""

    def start(self, flow: AbstractFlow, measure: ParticleMeasure, t: float) -> StepState:
        return start_state(flow, measure, t, self.state)

    def step(
        self,
        flow: AbstractFlow,
        measure: ParticleMeasure,
        t: float = 0.0,
        tau: float | None = None,
        state: StepState | None = None,
        guess: ParticleMeasure | None = None,
    ) -> Step:
        if guess is not None:
            raise InvalidInput("an explicit scheme computes its step directly; guess must be None")
        tau = self.tau if tau is None else check_positive(tau, "tau")
        if state is None:
            self.check_times(flow, (t, t + tau))
        state = check_step(flow, measure, t, tau, state, self.state)
        with torch.no_grad():
            return self._finish(flow, measure, tau, state, self.move(flow, state.flow_state, tau))

    def _finish(self, flow: AbstractFlow, measure: ParticleMeasure, tau: float, state: StepState, move: Move) -> Step:
        """Evaluate the flow at the new particles (one pass) and describe the step."""
        old, end = state.flow_state, state.flow_state.t + tau
        largest = float(row_sum(move.displacement.square()).amax().sqrt())
        if move.points is None or not math.isfinite(largest):
            detail = flow.explain_non_finite(measure, old.t)
            return Step(measure, StepInfo(Status.NON_FINITE, {}, move.displacement, largest, detail=detail), state)
        moved = measure.moved(move.points)
        new = self.state(flow, moved, end)
        columns, evaluations = {}, 1.0 + move.passes
        if old.evaluation is not None:
            previous = old.columns["energy"]
            if flow.moves:
                value = flow.value(measure, end)
                evaluations += 1.0
                previous = previous if value is None else value
            # time_part = sE(u^{k-1}, t_k) - sE(u^{k-1}, t_{k-1})
            columns = {
                "energy_previous": previous,
                "time_part": previous - old.columns["energy"] if flow.moves else 0.0,
            }
        if move.squared_distance is not None:
            columns["squared_distance"] = move.squared_distance
        columns |= {**move.columns, "largest_displacement": largest, "evaluations": evaluations}
        if not new.usable or not all(math.isfinite(number) for number in move.columns.values()):
            detail = flow.explain_non_finite(moved, end)
            failed = StepInfo(Status.NON_FINITE, columns, move.displacement, largest, trial=moved, detail=detail)
            return Step(measure, failed, state)
        return Step(moved, StepInfo(Status.SUCCESS, columns, move.displacement, largest), StepState(flow, new))


def tangent_cost(old: FlowState, tau: float) -> float | None:
    """Return the cost tau^2 slope^2 of the tangent step tau v, where the flow has a metric."""
    slope2 = old.columns.get("slope2")
    return None if slope2 is None else tau**2 * slope2


def fits(points: Tensor) -> Tensor | None:
    """Return the points where all of them are finite, else None."""
    return points if all_finite(points) else None
