"""Gradient flows: an energy, a metric, a manifold."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from jko.averages import mass_average, weighted_heads
from jko.checks import check_kind
from jko.energies import AbstractEnergy, AttentionEnergy, Evaluation
from jko.errors import InvalidInput
from jko.flows.base import AbstractFlow, FlowState, check_on_manifold
from jko.flows.overflow import explain_overflow
from jko.manifolds import AbstractManifold, Sphere
from jko.measure import ParticleMeasure, check_measure
from jko.metrics import AbstractMetric, Fields, WeightedWasserstein
from jko.reductions import within_range

__all__ = ["GradientFlow"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class GradientFlow(AbstractFlow):
    """The gradient flow of an energy in a metric: the ground cost of its steps is b(y_j) d^2(x, y_j).

    Args:
        energy: the energy; its sign decides which way the particles move.
        metric: the geometry, by default the paper's W_{m,2}.
        manifold: where the particles live, by default the unit sphere.

    Raises:
        InvalidInput: when the energy does not define the metric's mobility.
    """

    energy: AbstractEnergy
    metric: AbstractMetric
    manifold: AbstractManifold
    jumps: tuple[float, ...] = field(repr=False)

    def __init__(
        self,
        energy: AbstractEnergy,
        metric: AbstractMetric | None = None,
        manifold: AbstractManifold | None = None,
    ) -> None:
        metric = WeightedWasserstein() if metric is None else metric
        manifold = Sphere() if manifold is None else manifold
        for value, kind, name in (
            (energy, AbstractEnergy, "energy"),
            (metric, AbstractMetric, "metric"),
            (manifold, AbstractManifold, "manifold"),
        ):
            check_kind(value, kind, name)
        metric.check(energy)
        object.__setattr__(self, "energy", energy)
        object.__setattr__(self, "metric", metric)
        object.__setattr__(self, "manifold", manifold)
        object.__setattr__(self, "jumps", energy.jumps)

    @property
    def moves(self) -> bool:
        return self.energy.moves

    @property
    def title(self) -> str:
        signs = sorted({part.sign for part in self.energy.attention_parts})
        sign = f", sign = {signs[0]:+d}" if len(signs) == 1 else ""
        return f"{self.metric.title}{sign}"

    def check_times(self, t0: float, t1: float) -> None:
        for part in self.energy.attention_parts:
            for t in (t0, t1):
                part.heads.at(t)

    def fields(self, measure: ParticleMeasure, t: float, evaluation: Evaluation | None = None) -> Fields:
        """Return the vector fields at (u, t), from the evaluation at (u, t) where it is already at hand."""
        check_measure(measure)
        if evaluation is None:
            evaluation = self.energy.evaluate(measure, t)
        heads, shifted = evaluation.heads, None
        if heads is not None:
            rows = weighted_heads(heads.head_weights)
            if not within_range(heads.mobility if rows is None else heads.mobility[..., rows, :]):
                shifted = self.energy.shifted_heads(measure, t)
        return Fields.of(evaluation, measure, self.manifold, t, shifted)

    def velocity(self, measure: ParticleMeasure, t: float) -> Tensor:
        check_on_manifold(measure, self.manifold)
        with torch.no_grad():
            return self.metric.velocity(self.fields(measure, t))

    def slope(self, measure: ParticleMeasure, t: float) -> Tensor:
        """Return the metric slope of sE at (u, t), shape (*batch,), float64."""
        check_on_manifold(measure, self.manifold)
        with torch.no_grad():
            return self.metric.squared_slope(self.fields(measure, t)).sqrt()

    def state(self, measure: ParticleMeasure, t: float, *, moments: bool = False) -> FlowState:
        """Return velocity and state columns from ONE pass; on request with the heads' moments for the balance (147)."""
        if not moments:
            return self.state_of(self.fields(measure, t))
        if not isinstance(self.energy, AttentionEnergy):
            raise InvalidInput(
                f"moments over pairs are those of one attention energy, not of '{self.energy.description}'"
            )
        return self.state_of(self.fields(measure, t, self.energy.evaluate(measure, t, moments=True)))

    def state_of(self, fields: Fields) -> FlowState:
        """Return the state that belongs to fields already formed; no further pass."""
        velocity = self.metric.velocity(fields)
        names, densities = ["dissipation"], [-fields.rate(velocity)]
        if fields.normalized is not None and fields.effective_mobility is not None:
            names += ["paper_slope2", "covariance_defect"]
            densities += [fields.square(fields.normalized), fields.square(fields.covariance())]
        averages = mass_average(fields.measure.weights, torch.stack(densities))
        head = torch.stack([fields.evaluation.value.to(torch.float64), self.metric.squared_slope(fields)])
        columns = dict(zip(["energy", "slope2", *names], torch.cat([head, averages]).tolist(), strict=True))
        if "covariance_defect" in columns:
            columns["covariance_defect"] = math.sqrt(columns["covariance_defect"])
        return FlowState(fields.measure, fields.t, velocity, columns, fields.evaluation)

    def value(self, measure: ParticleMeasure, t: float) -> float | None:
        check_measure(measure)
        return float(self.energy.value(measure, t))

    def explain_non_finite(self, measure: ParticleMeasure, t: float) -> str:
        exponent = self.energy.largest_exponent(measure, t)
        if math.isinf(exponent) and exponent < 0:
            return f"not finite: {self.energy.description}, of which no exponent is known"
        quotient = self._largest_quotient(measure, t)
        detail = "" if quotient is None else f"; its quotients by the mobility reach exp({quotient:.6g})"
        return explain_overflow(exponent, measure.dtype) + detail

    def _largest_quotient(self, measure: ParticleMeasure, t: float) -> float | None:
        """The largest exponent of the velocity where that overflows by itself: DK_h / m_h, or mean_h DK_h / b."""
        weighted = isinstance(self.metric, WeightedWasserstein) and self.metric.mobility_function is None
        shifted = self.energy.shifted_heads(measure, t) if weighted or self.metric.lifted else None
        if shifted is None:
            return None
        exponent = shifted.normalized_gradient()[1]
        if weighted:
            exponent = shifted.mean_gradient()[1] - shifted.effective_mobility()[1]
        largest = float(exponent.max())
        return largest if largest > math.log(torch.finfo(measure.dtype).max) else None
