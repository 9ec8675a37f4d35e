"""What entropic regularization does to a step, predicted before it is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.averages import mass_average
from jko.flows import GradientFlow
from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure
from jko.metrics import Fields
from jko.metrics.norms import squared_norm
from jko.numerics import row_sum
from jko.transport import Sinkhorn

__all__ = ["EntropicBias"]

_NOTABLE = 0.1
# sinh overflows beyond; the prediction is then a number nobody needs.
_STEEP = 700.0
_ENTRIES = 1 << 20
_FAR = 1.5


@final
@dataclass(frozen=True, slots=True, eq=False)
class EntropicBias:
    """Predicted error of the velocity, relative to the flow's own.

    With OT_eps = min <P, C> + eps KL(P | a x b), C = b d^2: a step with the plain term shrinks the variance of a
    Gaussian by eps / (2 b) per coordinate, whatever tau is, until the cloud collapses. Relative to the flow that is an
    error of order eps / tau. The debiased term is too soft against motion with structure: on a uniform cloud it moves
    a velocity field of wave number k too fast by the factor sinh(z) / z, z = eps k^2 / (4 b), since its second
    variation is that of W_2^2 divided by this factor. k is measured from the velocities of nearest neighbors.

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
        weights, velocity = measure.weights, flow.metric.velocity(fields)
        speed = math.sqrt(float(mass_average(weights, squared_norm(velocity))))
        eps, b = transport.eps, float((weights * mobility).sum())
        dimension = manifold.dimension(measure.d)
        if transport.debias:
            z = eps * _squared_wave_number(measure, velocity, manifold) / (4 * b)
            return EntropicBias(math.sinh(z) / z - 1 if 0 < z < _STEEP else (math.inf if z > 0 else 0.0), True, 0.0)
        center = (weights[:, None] * measure.points).sum(0)
        variance = float((weights * row_sum((measure.points - center).square())).sum()) / max(1, dimension)
        if variance == 0:
            return EntropicBias(0.0, False, 0.0)
        shrinking = eps / (2 * b)
        deviation = math.sqrt(variance)
        kept = math.sqrt(max(0.0, variance - shrinking))
        drift = (deviation - kept) / tau * math.sqrt(dimension)
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
                f"debiased entropic transport moves these particles too fast by about {self.relative_error:.1%}; lower "
                "eps to make it sharper"
            )
        share = "while the flow rests"
        if math.isfinite(self.relative_error):
            share = f"about {self.relative_error:.3g} times the motion of the flow"
        return (
            f"the plain entropic term contracts the cloud: {self.shrinking:.3g} of variance per coordinate and step, "
            f"{share}; use debias=True, or eps far below tau"
        )


def _squared_wave_number(measure: ParticleMeasure, velocity: Tensor, manifold: AbstractManifold) -> float:
    """k^2 of a velocity field: dimension |v - v'|^2 / (|v|^2 d^2), means over every particle and its neighbor."""
    x, v = measure.points, velocity
    if measure.n < 2:
        return 0.0
    block = max(1, _ENTRIES // measure.n)
    distances, others = [], []
    for start in range(0, measure.n, block):
        part = torch.cdist(x[start : start + block], x, compute_mode="donot_use_mm_for_euclid_dist")
        # Neither a particle itself nor a copy of it is a neighbor.
        nearest = part.masked_fill(part == 0, math.inf).min(-1)
        distances.append(nearest.values)
        others.append(nearest.indices)
    distance, other = torch.cat(distances), torch.cat(others)
    # Velocities at points that far apart on the sphere have nothing to say about a wave.
    apart = distance < (_FAR if manifold.injectivity_radius < math.inf else math.inf)
    other = torch.where(apart, other, torch.arange(measure.n, device=x.device))
    squares = float(mass_average(measure.weights, distance.square().masked_fill(~apart, 0.0)))
    change = squared_norm(v - manifold.transport(x[other], x, v[other]))
    size = float(mass_average(measure.weights, squared_norm(v)))
    if squares == 0 or size == 0:
        return 0.0
    return manifold.dimension(measure.d) * float(mass_average(measure.weights, change)) / (size * squares)
