"""What entropic regularization does to a step, predicted before it is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from torch import Tensor

from jko.flows import GradientFlow
from jko.metrics import Fields
from jko.metrics.norms import mass_average, squared_norm
from jko.numerics import row_sum
from jko.transport import Sinkhorn

__all__ = ["EntropicBias"]

_NOTABLE = 0.1


@final
@dataclass(frozen=True, slots=True, eq=False)
class EntropicBias:
    """Predicted error of the velocity, relative to the flow's own, from the laws for Gaussians.

    With OT_eps = min <P, C> + eps KL(P | a x b), C = b d^2: a step with the plain term shrinks the variance by
    eps / (2 b) per coordinate, whatever tau is, until the cloud collapses. Relative to the flow that is an error of
    order eps / tau. The debiased term moves a cloud of variance s^2 too fast by the factor
    (1 + (eps / (4 b s^2))^2)^(1/2), whatever tau is.

    Attributes:
        relative_error: predicted |error of the velocity| / |velocity|; inf where the flow rests and the term does not.
        debiased: which of the two laws it is.
        shrinking: loss of variance per coordinate and step, squared units of length; 0 for the debiased term.
    """

    relative_error: float
    debiased: bool
    shrinking: float

    @staticmethod
    def of(transport: Sinkhorn, flow: GradientFlow, fields: Fields, mobility: Tensor, tau: float) -> EntropicBias:
        """Predict the bias of a step of length tau from the measure of the fields."""
        measure, manifold = fields.measure, flow.manifold
        speed = math.sqrt(float(mass_average(measure.weights, squared_norm(flow.metric.velocity(fields)))))
        eps = transport.eps
        weights = measure.weights
        center = (weights[:, None] * measure.points).sum(0)
        spread = float((weights * row_sum((measure.points - center).square())).sum())
        variance = spread / max(1, manifold.dimension(measure.d))
        b = float((weights * mobility).sum())
        if variance == 0:
            return EntropicBias(0.0, transport.debias, 0.0)
        if transport.debias:
            return EntropicBias(math.sqrt(1 + (eps / (4 * b * variance)) ** 2) - 1, True, 0.0)
        shrinking = eps / (2 * b)
        deviation = math.sqrt(variance)
        kept = math.sqrt(max(0.0, variance - shrinking))
        drift = (deviation - kept) / tau * math.sqrt(manifold.dimension(measure.d))
        return EntropicBias(drift / speed if speed > 0 else math.inf, False, shrinking)

    @property
    def notable(self) -> bool:
        """Whether the predicted error is above a tenth."""
        return self.relative_error > _NOTABLE

    @property
    def advice(self) -> str:
        """One sentence on what to do about it."""
        if self.debiased:
            return (
                f"debiased entropic transport moves this cloud too fast by about {self.relative_error:.1%}; lower eps "
                "to make it sharper"
            )
        share = "while the flow rests"
        if math.isfinite(self.relative_error):
            share = f"about {self.relative_error:.3g} times the motion of the flow"
        return (
            f"the plain entropic term contracts the cloud: {self.shrinking:.3g} of variance per coordinate and step, "
            f"{share}; use debias=True, or eps far below tau"
        )
