"""The paper's weighted Wasserstein metric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from jko.averages import mass_average
from jko.energies import AbstractEnergy
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure
from jko.metrics.base import AbstractMetric, Fields
from jko.metrics.norms import check_one_attention_part, squared_norm

__all__ = ["WeightedWasserstein"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class WeightedWasserstein(AbstractMetric):
    """The paper's W_{m,2}, Massucco et al. 2026, Definition (29) and Lemma 3.8, mobility frozen over a step.

    The cost is sum_i w_i b(y_i) |xi_i|^2 and the limit velocity v_B = -(1/b) mean_h DK_h. For H >= 2 heads with
    different mobilities this is NOT the transformer's velocity: see `HeadwiseWasserstein` and `covariance_defect`.

    Args:
        mobility: None reads b from the heads of the one attention energy; or any function (measure, t) -> positive
            tensor of shape (*batch, n).
    """

    title: ClassVar[str] = "W_{m,2}"
    lifted: ClassVar[bool] = False

    mobility_function: Callable[[ParticleMeasure, float], Tensor] | None

    def __init__(self, mobility: Callable[[ParticleMeasure, float], Tensor] | None = None) -> None:
        if mobility is not None and not callable(mobility):
            raise InvalidInput(
                f"mobility must be a function (measure, t) -> tensor (*batch, n), got {type(mobility).__name__}"
            )
        object.__setattr__(self, "mobility_function", mobility)

    def check(self, energy: AbstractEnergy) -> None:
        if self.mobility_function is None:
            check_one_attention_part(energy, "WeightedWasserstein() reads its mobility from the heads of one")

    def mobility(self, fields: Fields) -> Tensor:
        if self.mobility_function is None:
            if fields.effective_mobility is None:
                raise InvalidInput("WeightedWasserstein() needs an energy with heads; pass mobility=")
            return fields.effective_mobility
        values = self.mobility_function(fields.measure, fields.t)
        if not isinstance(values, Tensor):
            raise InvalidInput(f"the mobility function must return a tensor, got {type(values).__name__}")
        expected = fields.gradient.shape[:-1]
        if tuple(values.shape) != tuple(expected) or not bool((torch.isfinite(values) & (values > 0)).all()):
            raise InvalidInput(
                f"the mobility function must return finite positive values of shape {tuple(expected)}, got shape "
                f"{tuple(values.shape)} with smallest value {float(values.min()):.6g}"
            )
        return values.to(fields.gradient)

    def velocity(self, fields: Fields) -> Tensor:
        if self.mobility_function is None and fields.shifted is not None:
            return -fields.relative_gradient()
        return -fields.gradient / self.mobility(fields)[..., None]

    def squared_slope(self, fields: Fields) -> Tensor:
        if self.mobility_function is None and fields.shifted is not None:
            return mass_average(fields.measure.weights, fields.square(fields.relative_gradient()))
        return mass_average(fields.measure.weights, squared_norm(fields.gradient) / self.mobility(fields))
