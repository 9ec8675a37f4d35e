"""The paper's explicit particle integrator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch

from jko.checks import check_positive
from jko.errors import InvalidInput
from jko.flows import AbstractFlow
from jko.measure import ParticleMeasure
from jko.schemes.base import AbstractScheme, Step, StepInfo, StepState
from jko.schemes.inputs import check_step, start_state
from jko.status import Status

__all__ = ["ExplicitEuler"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class ExplicitEuler(AbstractScheme):
    """x_i <- Pi(x_i + tau v(x_i, t)), Massucco et al. 2026, Section 6: particles and heads advance from the old state.

    Its `squared_distance` is the metric cost tau^2 * slope^2 of the tangent step tau v, before the projection.
    `energy_previous` and `time_part` take a value-only pass when the heads move, and none when they do not.

    Args:
        tau: step size, in units of time.
    """

    tau: float

    def __init__(self, tau: float) -> None:
        object.__setattr__(self, "tau", check_positive(tau, "tau"))

    @property
    def title(self) -> str:
        return "explicit Euler"

    def check(self, flow: AbstractFlow) -> None:
        """Every flow has a velocity."""

    def start(self, flow: AbstractFlow, measure: ParticleMeasure, t: float) -> StepState:
        return start_state(flow, measure, t)

    def step(
        self,
        flow: AbstractFlow,
        measure: ParticleMeasure,
        t: float = 0.0,
        tau: float | None = None,
        state: StepState | None = None,
        guess: ParticleMeasure | None = None,
    ) -> Step:
        tau = self.tau if tau is None else check_positive(tau, "tau")
        if guess is not None:
            raise InvalidInput("an explicit scheme computes its step directly; guess must be None")
        state = check_step(flow, measure, t, tau, state)
        with torch.no_grad():
            return self._step(flow, measure, t, tau, state)

    def _step(self, flow: AbstractFlow, measure: ParticleMeasure, t: float, tau: float, state: StepState) -> Step:
        old = state.flow_state
        shift = tau * old.velocity
        largest = float(shift.square().sum(-1).amax().sqrt())
        if not math.isfinite(largest):
            detail = flow.explain_non_finite(measure, t)
            return Step(measure, StepInfo(Status.NON_FINITE, {}, shift, largest, detail=detail), state)
        moved = measure.moved(flow.manifold.retract(measure.points, shift))
        new = flow.state(moved, t + tau)
        columns, evaluations = {}, 1.0
        if old.evaluation is not None:
            previous = old.columns["energy"]
            if flow.moves:
                value = flow.value(measure, t + tau)
                evaluations += 1.0
                previous = previous if value is None else value
            columns = {
                "energy_previous": previous,
                "squared_distance": tau**2 * old.columns["slope2"],
                "time_part": previous - old.columns["energy"],
            }
        columns = {**columns, "largest_displacement": largest, "evaluations": evaluations}
        info = StepInfo(Status.SUCCESS, columns, shift, largest)
        if not all(math.isfinite(number) for number in new.columns.values()):
            detail = flow.explain_non_finite(moved, t + tau)
            failed = StepInfo(Status.NON_FINITE, info.columns, shift, largest, trial=moved, detail=detail)
            return Step(measure, failed, state)
        return Step(moved, info, StepState(flow, new))
