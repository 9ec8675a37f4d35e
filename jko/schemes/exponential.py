"""The explicit step along geodesics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jko.checks import check_positive
from jko.flows import AbstractFlow, FlowState
from jko.schemes.explicit_base import AbstractExplicitScheme, Move, fits, tangent_cost
from jko.typing import settle

__all__ = ["ExponentialEuler"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ExponentialEuler(AbstractExplicitScheme):
    """x_i <- Exp_{x_i}(tau v(x_i, t)): order 1 like `ExplicitEuler`, with the move of a minimizing movement.

    Its `squared_distance` is tau^2 * slope^2, for the metrics with one mobility the cost of the move itself. Columns
    and passes are those of `ExplicitEuler`.

    Args:
        tau: step size, in units of time.
    """

    tau: float

    def __post_init__(self) -> None:
        settle(self, tau=check_positive(self.tau, "tau"))

    @property
    def title(self) -> str:
        return "exponential Euler"

    def move(self, flow: AbstractFlow, old: FlowState, tau: float) -> Move:
        shift = tau * old.velocity
        return Move(fits(flow.manifold.exp(old.measure.points, shift)), shift, tangent_cost(old, tau))
