"""The paper's explicit particle integrator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from jko.checks import check_positive
from jko.errors import InvalidInput
from jko.flows import AbstractFlow
from jko.measure import ParticleMeasure
from jko.schemes.base import AbstractGridScheme, Step, StepState
from jko.schemes.explicit_step import Move, check_explicit, finish, fits
from jko.schemes.inputs import check_step, start_state
from jko.schemes.ledger import Ledger

__all__ = ["ExplicitEuler"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class ExplicitEuler(AbstractGridScheme):
    """x_i <- Pi(x_i + tau v(x_i, t)), Massucco et al. 2026, Section 6: particles and heads advance from the old state.

    Its `squared_distance` is the metric cost tau^2 * slope^2 of the tangent step tau v, before the projection.
    `energy_previous` and `time_part` take a value-only pass when the heads move, and none when they do not.

    With `ledger` every step has four more columns, the terms of the paper's discrete balance (147) at the old state,
    the sign applied as in `energy`, from the pass that the step takes anyway: `ledger_drift` (the explicit time
    derivative, with the drift of the heads), `ledger_ito`, `ledger_dissipation` = tau * `paper_slope2`, and
    `ledger_martingale`. Over a run, `energy` grows by drift + Ito - dissipation + martingale up to O(tau); for H >= 2
    the covariance over heads leaves a gap of its own. The steps must lie on the heads' own grid.

    Args:
        tau: step size, in units of time.
        ledger: whether to keep the ledger.
    """

    tau: float
    ledger: bool

    def __init__(self, tau: float, ledger: bool = False) -> None:
        if not isinstance(ledger, bool):
            raise InvalidInput(f"ledger must be True or False, got {ledger!r}")
        object.__setattr__(self, "tau", check_positive(tau, "tau"))
        object.__setattr__(self, "ledger", ledger)

    @property
    def title(self) -> str:
        return "explicit Euler"

    def check(self, flow: AbstractFlow) -> None:
        """Every flow has a velocity; the ledger is that of one attention energy with heads of known increments."""
        if self.ledger:
            Ledger.of(flow)

    def check_times(self, flow: AbstractFlow, times: Sequence[float]) -> None:
        if self.ledger:
            Ledger.of(flow).check_times(times)

    def start(self, flow: AbstractFlow, measure: ParticleMeasure, t: float) -> StepState:
        return start_state(flow, measure, t, Ledger.of(flow).state if self.ledger else None)

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
        ledger = Ledger.of(flow) if self.ledger else None
        increment = None if ledger is None else ledger.heads.increment(t, tau)
        evaluate = None if ledger is None else ledger.state
        state = check_step(flow, measure, t, tau, state, evaluate)
        with torch.no_grad():
            columns = {}
            if ledger is not None and increment is not None:
                state = ledger.ready(state)
                columns = ledger.columns(state.flow_state, tau, increment)
            old = state.flow_state
            shift = tau * old.velocity
            slope2 = old.columns.get("slope2")
            move = Move(
                # A tangent step never shortens a vector: only values that are not finite have no projection.
                points=fits(flow.manifold.retract(measure.points, shift)),
                displacement=shift,
                passes=0,
                squared_distance=None if slope2 is None else tau**2 * slope2,
            )
            return finish(flow, measure, tau, state, move, evaluate=evaluate, extra=columns)
