"""The head-wise splitting whose limit is the transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from jko.averages import head_average, mass_average
from jko.energies import AbstractEnergy, HeadEvaluation, magnified
from jko.errors import InvalidInput
from jko.metrics.base import AbstractMetric, Fields
from jko.metrics.norms import check_one_attention_part, squared_norm

__all__ = ["HeadwiseWasserstein"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class HeadwiseWasserstein(AbstractMetric):
    """Each head takes its own step in its own mobility; the displacements are averaged in the tangent space.

    Head h minimizes s E_h + W_{m_h}^2 / (2 tau) from the common measure y, and all particles of its copy move. The
    limit velocity is v_T = -mean_h(DK_h / m_h), the transformer (81) when every D_h is symmetric. This is a
    splitting scheme rather than one metric: cost and slope are the lifted ones,
    mean_h sum_i w_i m_h |xi_h|^2 and (mean_h sum_i w_i |DK_h|^2 / m_h)^(1/2); descent holds per head, not for E.
    """

    title: ClassVar[str] = "head-wise"
    lifted: ClassVar[bool] = True

    def check(self, energy: AbstractEnergy) -> None:
        check_one_attention_part(energy, "HeadwiseWasserstein() needs the heads of one")

    def mobility(self, fields: Fields) -> Tensor:
        return _heads(fields).mobility

    def velocity(self, fields: Fields) -> Tensor:
        _heads(fields)
        assert fields.normalized is not None
        return -fields.normalized

    def squared_slope(self, fields: Fields) -> Tensor:
        heads, points = _heads(fields), fields.measure.points[..., None, :, :]
        if fields.shifted is not None:
            gradient = fields.shifted.gradient
            costs, q = fields.shifted.squared_slopes(fields.manifold.project_vector(points.to(gradient), gradient))
            return mass_average(fields.measure.weights, magnified(q, costs))
        tangent = fields.manifold.project_vector(points, heads.gradient)
        costs = squared_norm(tangent) / heads.mobility
        return mass_average(fields.measure.weights, head_average(costs, heads.head_weights))


def _heads(fields: Fields) -> HeadEvaluation:
    if fields.evaluation.heads is None:
        raise InvalidInput("HeadwiseWasserstein() needs an energy with exactly one attention part")
    return fields.evaluation.heads
