"""The explicit step along geodesics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from jko.checks import check_positive
from jko.flows import AbstractFlow
from jko.measure import ParticleMeasure
from jko.schemes.base import AbstractScheme, Step, StepState
from jko.schemes.explicit_step import Move, check_explicit, finish, fits
from jko.schemes.inputs import check_step, start_state

__all__ = ["ExponentialEuler"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class ExponentialEuler(AbstractScheme):
    """x_i <- Exp_{x_i}(tau v(x_i, t)): order 1 like `ExplicitEuler`, with the move of a minimizing movement.

    Its `squared_distance` is tau^2 * slope^2, for the metrics with one mobility the cost of the move itself. Columns
    and passes are those of `ExplicitEuler`.

    Args:
        tau: step size, in units of time.
    """

    tau: float

    def __init__(self, tau: float) -> None:
        object.__setattr__(self, "tau", check_positive(tau, "tau"))

    @property
    def title(self) -> str:
        return "exponential Euler"

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
        tau = check_explicit(self.tau, tau, guess)
        state = check_step(flow, measure, t, tau, state)
        with torch.no_grad():
            old = state.flow_state
            shift = tau * old.velocity
            slope2 = old.columns.get("slope2")
            move = Move(
                points=fits(flow.manifold.exp(measure.points, shift)),
                displacement=shift,
                passes=0,
                squared_distance=None if slope2 is None else tau**2 * slope2,
            )
            return finish(flow, measure, tau, state, move)
