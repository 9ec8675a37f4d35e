"""The norm and the check that several metrics share."""

from __future__ import annotations

import torch
from torch import Tensor

from jko.energies import AbstractEnergy
from jko.errors import InvalidInput
from jko.numerics import row_sum

__all__ = ["check_one_attention_part", "squared_norm"]


def squared_norm(vectors: Tensor) -> Tensor:
    """Return |v|^2 along the last axis in float64."""
    return row_sum(vectors.to(torch.float64).square())


def check_one_attention_part(energy: AbstractEnergy, need: str) -> None:
    """Refuse an energy that does not contain exactly one attention energy."""
    count = len(energy.attention_parts)
    if count != 1:
        raise InvalidInput(
            f"{need} attention energy, but '{energy.description}' has {count}; use Wasserstein2(), or "
            "WeightedWasserstein(mobility) with a mobility function of your own"
        )
