"""Metrics by name, and the velocities of attention flows by their formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from jko.energies import AttentionEnergy
from jko.flows import GradientFlow
from jko.heads import ConstantHeads
from jko.manifolds import AbstractManifold, Sphere
from jko.metrics import AbstractMetric, HeadwiseWasserstein, Wasserstein2, WeightedWasserstein
from tests.oracles.attention import average, head_gradients, sums, tangent

METRICS: dict[str, AbstractMetric] = {
    "w2": Wasserstein2(),
    "weighted": WeightedWasserstein(),
    "headwise": HeadwiseWasserstein(),
}


def flow(
    D: Tensor,
    metric: str,
    sign: int = 1,
    *,
    manifold: AbstractManifold | None = None,
    head_weights: Tensor | None = None,
) -> GradientFlow:
    energy = AttentionEnergy(ConstantHeads(D, head_weights), sign)
    return GradientFlow(energy, METRICS[metric], Sphere() if manifold is None else manifold)


def quantities(
    x: Tensor, w: Tensor, D: Tensor, theta: Tensor | None = None, *, sphere: bool = True
) -> dict[str, Tensor]:
    """Everything at sign = +1 that the metrics are made of."""
    m = sums(x, w, D)["mass"]
    heads = head_gradients(x, w, D)
    heads = tangent(x, heads) if sphere else heads
    b = 1 / average(1 / m, theta)
    gradient, normalized = average(heads, theta), average(heads / m[..., None], theta)
    return {
        "m": m,
        "b": b,
        "heads": heads,
        "gradient": gradient,
        "normalized": normalized,
        "w2": -gradient,
        "weighted": -gradient / b[:, None],
        "headwise": -normalized,
        "slope2_w2": (w * gradient.square().sum(-1)).sum(),
        "slope2_weighted": (w * gradient.square().sum(-1) / b).sum(),
        "slope2_headwise": (w * average(heads.square().sum(-1) / m, theta)).sum(),
        "paper_slope2": (w * b * normalized.square().sum(-1)).sum(),
        "defect": (w * b * (normalized - gradient / b[:, None]).square().sum(-1)).sum().sqrt(),
    }


def mass_product(w: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """sum_i w_i <u_i, v_i>."""
    return torch.einsum("i,id,id->", w, u, v)
