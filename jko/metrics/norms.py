"""Norms in float64 and the checks that several metrics share."""

from __future__ import annotations

import torch
from torch import Tensor

from jko.energies import AbstractEnergy
from jko.errors import InvalidInput
from jko.numerics import row_sum

__all__ = ["check_one_attention_part", "mass_average", "squared_norm"]


def squared_norm(vectors: Tensor) -> Tensor:
    """Return |v|^2 along the last axis in float64."""
    return row_sum(vectors.to(torch.float64).square())


def mass_average(weights: Tensor, values: Tensor) -> Tensor:
    """Return sum_i w_i values_i along the last axis in float64; tracers are left out, whatever their values."""
    return (weights.to(torch.float64) * values).masked_fill(weights == 0, 0.0).sum(-1)


def check_one_attention_part(energy: AbstractEnergy, need: str) -> None:
    """Refuse an energy that does not contain exactly one attention energy."""
    count = len(energy.attention_parts)
    if count != 1:
        raise InvalidInput(
            f"{need} attention energy, but '{energy.description}' has {count}; use Wasserstein2(), or "
            "WeightedWasserstein(mobility) with a mobility function of your own"
        )
