"""Small problems that the statements share: measures, heads and flows, and how they are named in a report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.energies import AttentionEnergy, InteractionEnergy, PotentialEnergy
from jko.flows import GradientFlow
from jko.heads import AbstractHeads, ConstantHeads
from jko.initial import initial_heads
from jko.kernels import GaussianKernel
from jko.manifolds import Euclidean, Sphere
from jko.measure import ParticleMeasure
from jko.metrics import AbstractMetric, HeadwiseWasserstein, Wasserstein2, WeightedWasserstein

__all__ = [
    "METRICS",
    "SIGNS",
    "SmoothHeads",
    "attention_flow",
    "bounded_heads",
    "describe",
    "eps",
    "plane_cloud",
    "plane_flows",
    "smooth_heads",
    "tokens",
]

SIGNS = (1, -1)
METRICS: tuple[AbstractMetric, ...] = (Wasserstein2(), WeightedWasserstein(), HeadwiseWasserstein())


@final
@dataclass(frozen=True, slots=True, eq=False)
class SmoothHeads(AbstractHeads):
    """Heads D(t) = A + sin(t) B: smooth in time, so that no grid is special and orders can be measured.

    Args:
        A: shape (H, d, d).
        B: shape (H, d, d).
    """

    A: Tensor
    B: Tensor

    def at(self, t: float) -> Tensor:
        return self.A + math.sin(t) * self.B

    @property
    def head_weights(self) -> Tensor | None:
        return None

    @property
    def t1(self) -> float:
        return math.inf

    @property
    def moves(self) -> bool:
        return True


def tokens(n: int, seed: int, d: int = 3, *, weighted: bool = False) -> ParticleMeasure:
    """Return n points spread over the sphere; on request with weights proportional to 1, 2, ..., n."""
    points = Sphere().random_point((n,), d, seed)
    weights = torch.arange(1, n + 1, dtype=torch.float64)
    return ParticleMeasure(points, weights / weights.sum() if weighted else None)


def bounded_heads(count: int, seed: int, norm: float, d: int = 3) -> Tensor:
    """Return symmetric matrices D_h with spectral norm `norm`, shape (H, d, d)."""
    D = initial_heads(count, d, seed)
    norms: Tensor = torch.linalg.matrix_norm(D, ord=2)
    return D * (norm / norms)[:, None, None]


def smooth_heads(count: int, seed: int, norm: float, d: int = 3) -> SmoothHeads:
    """Return smooth heads whose parts A and B have norm `norm` and half of it."""
    return SmoothHeads(bounded_heads(count, seed, norm, d), bounded_heads(count, seed + 1, norm / 2, d))


def attention_flow(heads: AbstractHeads | Tensor, metric: AbstractMetric, sign: int) -> GradientFlow:
    """Return the attention flow on the sphere; a tensor of shape (H, d, d) means constant heads."""
    path = heads if isinstance(heads, AbstractHeads) else ConstantHeads(heads)
    return GradientFlow(AttentionEnergy(path, sign), metric, Sphere())


def describe(flow: GradientFlow) -> str:
    """Return metric, sign and number of heads, for the name of a measurement."""
    parts = flow.energy.attention_parts
    heads = f", H = {parts[0].heads.num_heads}" if len(parts) == 1 else ""
    sign = f", sign = {parts[0].sign:+d}" if parts else ""
    return f"{flow.metric.title}{sign}{heads}"


def eps(measure: ParticleMeasure) -> float:
    """Return the rounding unit of the measure's precision."""
    return float(torch.finfo(measure.dtype).eps)


def plane_cloud(n: int, seed: int) -> ParticleMeasure:
    """Return n normal points of R^2 with weights proportional to 1, 2, ..., n."""
    weights = torch.arange(1, n + 1, dtype=torch.float64)
    return ParticleMeasure(Euclidean().random_point((n,), 2, seed), weights / weights.sum())


def plane_flows() -> dict[str, GradientFlow]:
    """Return flows in R^2 of a moving potential plus a Gaussian interaction of either sign, in W_2 and in W_{m,2}."""
    potential = PotentialEnergy(_moving_well)
    flows = {}
    for sign, name in ((1, "repulsion"), (-1, "attraction")):
        energy = potential + float(sign) * InteractionEnergy(GaussianKernel(1.0))
        flows[f"W2, potential + {name}"] = GradientFlow(energy, Wasserstein2(), Euclidean())
        flows[f"W_{{m,2}}, potential + {name}"] = GradientFlow(energy, WeightedWasserstein(_bump_mobility), Euclidean())
    return flows


def _moving_well(x: Tensor, t: Tensor | float) -> Tensor:
    center = torch.as_tensor(t).sin()
    return (x[..., 0] - center).square() / 2 + x[..., 1].square() + x[..., 0].cos() / 4


def _bump_mobility(measure: ParticleMeasure, t: float) -> Tensor:
    return 1 + torch.exp(-measure.points.square().sum(-1))
