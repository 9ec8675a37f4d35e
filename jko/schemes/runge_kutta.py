"""The classical Runge-Kutta method on a manifold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.checks import check_positive
from jko.errors import InvalidInput
from jko.flows import AbstractFlow, FlowState
from jko.measure import ParticleMeasure
from jko.schemes.base import AbstractScheme, Step, StepState
from jko.schemes.explicit_step import Move, check_explicit, finish, fits
from jko.schemes.inputs import check_step, start_state

__all__ = ["RK4"]

_WEIGHTS = (1 / 6, 1 / 3, 1 / 3, 1 / 6)


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class RK4(AbstractScheme):
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

    def __init__(self, tau: float) -> None:
        object.__setattr__(self, "tau", check_positive(tau, "tau"))

    @property
    def title(self) -> str:
        return "Runge-Kutta 4"

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
            return finish(flow, measure, tau, state, _move(flow, measure, t, tau, state.flow_state))


def _move(flow: AbstractFlow, measure: ParticleMeasure, t: float, tau: float, old: FlowState) -> Move:
    stages = [old]
    for fraction in (0.5, 0.5, 1.0):
        shift = fraction * tau * stages[-1].velocity
        points = fits(flow.manifold.retract(measure.points, shift))
        if points is None:
            return Move(None, shift, len(stages) - 1, None)
        stages.append(flow.state(measure.moved(points), t + fraction * tau))
    mean = sum(weight * stage.velocity for weight, stage in zip(_WEIGHTS, stages, strict=True))
    assert isinstance(mean, Tensor)
    points = fits(flow.manifold.retract(measure.points, tau * mean))
    if points is None:
        return Move(None, tau * mean, 3, None)
    cost = None
    if "slope2" in old.columns:
        cost = tau**2 * sum(w * stage.columns["slope2"] for w, stage in zip(_WEIGHTS, stages, strict=True))
    return Move(points, _displacement(flow, measure, points, tau * mean), 3, cost)


def _displacement(flow: AbstractFlow, measure: ParticleMeasure, points: Tensor, shift: Tensor) -> Tensor:
    """The shortest way to the new points; to an antipode every way is, and the shift says which."""
    try:
        return flow.manifold.log(measure.points, points)
    except InvalidInput:
        return shift
