"""The classical Runge-Kutta method on a manifold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from jko.checks import check_positive
from jko.errors import InvalidInput
from jko.flows import AbstractFlow, FlowState
from jko.schemes.explicit_base import AbstractExplicitScheme, Move, fits
from jko.typing import settle

__all__ = ["RK4"]

# Kutta 1901: k_1 at t, k_2 and k_3 at t + tau / 2, k_4 at t + tau; y + tau (k_1 + 2 k_2 + 2 k_3 + k_4) / 6.
_FRACTIONS = (0.5, 0.5, 1.0)
_WEIGHTS = (1 / 6, 1 / 3, 1 / 3, 1 / 6)


@final
@dataclass(frozen=True, slots=True, eq=False)
class RK4(AbstractExplicitScheme):
    """The classical method of order 4, its stages projected to the manifold.

    With v extended to the ambient space by z -> v(Pi(z)), a smooth field whose solutions from the manifold stay on it,
    this is the classical method in R^d, and the projection of its end keeps the order, since it leaves the solution
    alone. The stages take the heads at t, t + tau/2 and t + tau; the order needs heads that are smooth in between, so
    that kinks of a head path must lie on the grid. Along noisy heads no order above 1 is to be had.

    Its `displacement` is the logarithm of the new particles at the old ones, and `squared_distance` is tau int slope^2
    dt by the method's own weights, the squared length of the path at constant speed.

    Args:
        tau: step size, in units of time.
    """

    tau: float

    def __post_init__(self) -> None:
        settle(self, tau=check_positive(self.tau, "tau"))

    @property
    def title(self) -> str:
        return "Runge-Kutta 4"

    def move(self, flow: AbstractFlow, old: FlowState, tau: float) -> Move:
        measure, stages = old.measure, [old]
        for fraction in _FRACTIONS:
            shift = fraction * tau * stages[-1].velocity
            points = fits(flow.manifold.retract(measure.points, shift))
            if points is None:
                return Move(None, shift, None, len(stages) - 1)
            stages.append(flow.state(measure.moved(points), old.t + fraction * tau))
        mean = sum(weight * stage.velocity for weight, stage in zip(_WEIGHTS, stages, strict=True))
        assert isinstance(mean, Tensor)
        points = fits(flow.manifold.retract(measure.points, tau * mean))
        if points is None:
            return Move(None, tau * mean, None, 3)
        cost = None
        if "slope2" in old.columns:
            # tau int slope^2 dt, by the weights of the method
            cost = tau**2 * sum(w * stage.columns["slope2"] for w, stage in zip(_WEIGHTS, stages, strict=True))
        return Move(points, _displacement(flow, measure.points, points, tau * mean), cost, 3)


def _displacement(flow: AbstractFlow, old: Tensor, new: Tensor, shift: Tensor) -> Tensor:
    """The shortest way to the new points; to an antipode every way is, and the shift says which."""
    try:
        return flow.manifold.log(old, new)
    except InvalidInput:
        return shift
