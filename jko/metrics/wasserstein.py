"""The plain Wasserstein metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from jko.averages import mass_average
from jko.energies import AbstractEnergy
from jko.metrics.base import AbstractMetric, Fields
from jko.metrics.norms import squared_norm

__all__ = ["Wasserstein2"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Wasserstein2(AbstractMetric):
    """W_2: cost sum_i w_i |xi_i|^2; limit velocity -mean_h DK_h, unnormalized attention, eq. (79)."""

    title: ClassVar[str] = "W2"
    lifted: ClassVar[bool] = False

    def check(self, energy: AbstractEnergy) -> None:
        """Every energy will do."""

    def mobility(self, fields: Fields) -> Tensor:
        return torch.ones_like(fields.gradient[..., 0])

    def velocity(self, fields: Fields) -> Tensor:
        return -fields.gradient

    def squared_slope(self, fields: Fields) -> Tensor:
        return mass_average(fields.measure.weights, squared_norm(fields.gradient))
