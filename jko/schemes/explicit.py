"""The paper's explicit particle integrator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from jko.checks import check_positive
from jko.errors import InvalidInput
from jko.flows import AbstractFlow, FlowState
from jko.measure import ParticleMeasure
from jko.schemes.explicit_base import AbstractExplicitScheme, Move, fits, tangent_cost
from jko.schemes.ledger import Ledger
from jko.typing import settle

__all__ = ["ExplicitEuler"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ExplicitEuler(AbstractExplicitScheme):
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
    ledger: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.ledger, bool):
            raise InvalidInput(f"ledger must be True or False, got {self.ledger!r}")
        settle(self, tau=check_positive(self.tau, "tau"))

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

    def state(self, flow: AbstractFlow, measure: ParticleMeasure, t: float) -> FlowState:
        return Ledger.of(flow).state(measure, t) if self.ledger else flow.state(measure, t)

    def move(self, flow: AbstractFlow, old: FlowState, tau: float) -> Move:
        columns, passes = Ledger.of(flow).columns(old, tau) if self.ledger else ({}, 0.0)
        shift = tau * old.velocity
        # A tangent step never shortens a vector: only values that are not finite have no projection.
        points = fits(flow.manifold.retract(old.measure.points, shift))
        return Move(points, shift, tangent_cost(old, tau), passes, columns)
