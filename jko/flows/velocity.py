"""Flows along a given vector field: no energy, no metric."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.averages import mass_average
from jko.checks import check_kind
from jko.flows.base import AbstractFlow, FlowState, check_on_manifold
from jko.flows.fields import AbstractField
from jko.flows.overflow import explain_overflow
from jko.manifolds import AbstractManifold, Sphere
from jko.measure import ParticleMeasure, check_measure
from jko.numerics import row_sum

__all__ = ["VelocityFlow"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class VelocityFlow(AbstractFlow):
    """The flow along the tangent part of a vector field, for explicit schemes only.

    A minimizing movement needs an energy, which a field does not have: `JKO` refuses this flow. For the same reason the
    records have no column that speaks of an energy or a metric; they have `speed2`, sum_i w_i |v_i|^2.

    Args:
        field: the field, for instance `AttentionField`.
        manifold: where the particles live, by default the unit sphere.
    """

    field: AbstractField
    manifold: AbstractManifold
    jumps: tuple[float, ...] = dataclasses.field(repr=False)

    def __init__(self, field: AbstractField, manifold: AbstractManifold | None = None) -> None:
        manifold = Sphere() if manifold is None else manifold
        for value, kind, name in ((field, AbstractField, "field"), (manifold, AbstractManifold, "manifold")):
            check_kind(value, kind, name)
        object.__setattr__(self, "field", field)
        object.__setattr__(self, "manifold", manifold)
        object.__setattr__(self, "jumps", field.jumps)

    @property
    def moves(self) -> bool:
        return self.field.moves

    @property
    def title(self) -> str:
        return self.field.title

    def check_times(self, t0: float, t1: float) -> None:
        self.field.check_times(t0, t1)

    def velocity(self, measure: ParticleMeasure, t: float) -> Tensor:
        check_on_manifold(measure, self.manifold)
        with torch.no_grad():
            return self.manifold.project_vector(measure.points, self.field.evaluate(measure, t))

    def state(self, measure: ParticleMeasure, t: float) -> FlowState:
        velocity = self.velocity(measure, t)
        # The mean square of the speed, sum_i w_i |v_i|^2.
        speed2 = mass_average(measure.weights, row_sum(velocity.to(torch.float64).square()))
        return FlowState(measure, t, velocity, {"speed2": float(speed2)}, None)

    def value(self, measure: ParticleMeasure, t: float) -> float | None:
        check_measure(measure)
        return None

    def explain_non_finite(self, measure: ParticleMeasure, t: float) -> str:
        return explain_overflow(self.field.largest_exponent(measure, t), measure.dtype)
