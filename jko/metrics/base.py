"""What a metric offers: the mobility in its ground cost and the velocity its minimizing movements follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from jko.averages import harmonic_mean, normalized_average
from jko.energies import AbstractEnergy, Evaluation, ShiftedHeads, magnified
from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure, check_measure
from jko.metrics.norms import squared_norm
from jko.numerics import row_sum

__all__ = ["AbstractMetric", "Fields"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """The vector fields of one evaluation that the metrics share, formed once, sums over heads done.

    Attributes:
        measure: the particles.
        manifold: where they live.
        t: time.
        evaluation: the pass that everything was read from.
        gradient: grad sE(x_i) = mean_h DK_h(x_i), tangent, shape (*batch, n, d).
        normalized: mean_h(DK_h / m_h), tangent, shape (*batch, n, d); None for an energy without heads.
        effective_mobility: b = 1 / mean_h(1 / m_h), eq. (36), shape (*batch, n); None without heads.
        shifted: the heads with their exponents apart, where mobilities are near the ends of the range of floats.
    """

    measure: ParticleMeasure
    manifold: AbstractManifold
    t: float
    evaluation: Evaluation
    gradient: Tensor
    normalized: Tensor | None
    effective_mobility: Tensor | None
    shifted: ShiftedHeads | None = None

    @staticmethod
    def of(
        evaluation: Evaluation,
        measure: ParticleMeasure,
        manifold: AbstractManifold,
        t: float,
        shifted: ShiftedHeads | None = None,
    ) -> Fields:
        """Form the fields from one evaluation; the projection comes after the average over heads."""
        check_measure(measure)
        gradient = manifold.project_vector(measure.points, evaluation.gradient)
        heads = evaluation.heads
        normalized: Tensor | None = None
        effective: Tensor | None = None
        if shifted is not None:
            normalized = _joined(*shifted.normalized_gradient(), measure, manifold)
            b, q = shifted.effective_mobility()
            effective = magnified(q, b).to(gradient)
        elif heads is not None:
            effective = harmonic_mean(heads.mobility, heads.head_weights)
            mean = normalized_average(heads.gradient, heads.mobility, heads.head_weights)
            normalized = manifold.project_vector(measure.points, mean)
        return Fields(measure, manifold, t, evaluation, gradient, normalized, effective, shifted)

    def covariance(self) -> Tensor:
        """Return C = Cov_h(1/m_h, DK_h), shape (*batch, n, d): zero for an energy without heads."""
        if self.normalized is None or self.effective_mobility is None:
            return torch.zeros_like(self.gradient)
        return self.normalized - self.relative_gradient()

    def relative_gradient(self) -> Tensor:
        """Return (1/b) mean_h DK_h, tangent, shape (*batch, n, d), for an energy with heads."""
        if self.shifted is None:
            assert self.effective_mobility is not None
            return self.gradient / self.effective_mobility[..., None]
        (v, q), (b, p) = self.shifted.mean_gradient(), self.shifted.effective_mobility()
        return _joined(v / b[..., None], q - p, self.measure, self.manifold)

    def rate(self, velocity: Tensor) -> Tensor:
        """Return <grad sE, v> of each particle, shape (*batch, n), float64."""
        if self.shifted is None:
            return row_sum((self.gradient * velocity).to(torch.float64))
        v, q = self.shifted.mean_gradient()
        return magnified(q, row_sum(self.manifold.project_vector(self.measure.points.to(v), v) * velocity))

    def square(self, vectors: Tensor) -> Tensor:
        """Return b |v|^2 of each particle, shape (*batch, n), float64, for an energy with heads."""
        if self.shifted is None:
            assert self.effective_mobility is not None
            return self.effective_mobility * squared_norm(vectors)
        b, q = self.shifted.effective_mobility()
        return magnified(q, b * squared_norm(vectors))


def _joined(vectors: Tensor, exponent: Tensor, measure: ParticleMeasure, manifold: AbstractManifold) -> Tensor:
    """The tangent part of e^exponent times vectors, in the precision of the measure."""
    tangent = manifold.project_vector(measure.points.to(vectors), vectors)
    return magnified(exponent[..., None], tangent).to(measure.points)


class AbstractMetric(ABC):
    """A geometry on particle measures, given by the squared cost of moving the particles along tangent vectors.

    Attributes:
        title: name for figures and tables.
        lifted: whether each head takes a step of its own, so that displacements have shape (H, n, d).
    """

    __slots__ = ()

    title: ClassVar[str]
    lifted: ClassVar[bool]

    @abstractmethod
    def check(self, energy: AbstractEnergy) -> None:
        """Raise InvalidInput when the energy does not define this metric's mobility."""

    @abstractmethod
    def mobility(self, fields: Fields) -> Tensor:
        """Return the factor of |xi_i|^2 in the cost: shape (*batch, n), or (*batch, H, n) for a lifted metric."""

    @abstractmethod
    def velocity(self, fields: Fields) -> Tensor:
        """Return the limit velocity of the minimizing movement, tangent, shape (*batch, n, d)."""

    @abstractmethod
    def squared_slope(self, fields: Fields) -> Tensor:
        """Return the squared metric slope of sE (for a lifted metric the lifted one), shape (*batch,), float64."""

    def energy_of_groups(self, energy: AbstractEnergy) -> AbstractEnergy:
        """Return the energy that each group of a step minimizes, on a batch (G, n, d): G = H if lifted, else 1."""
        return energy.by_head() if self.lifted else energy

    def evaluation_of_groups(self, evaluation: Evaluation) -> Evaluation:
        """Return an evaluation at one common measure as that of `energy_of_groups`, a batch (G,)."""
        return evaluation.by_head() if self.lifted else evaluation.as_batch()

    def mobility_of_groups(self, fields: Fields) -> Tensor:
        """Return the mobility of each group, shape (G, n)."""
        mobility = self.mobility(fields)
        return mobility if self.lifted else mobility[None]

    def shares_of_groups(self, evaluation: Evaluation) -> Tensor:
        """Return the weights of the groups in the step: those of the heads if lifted; float64 on the CPU, (G,)."""
        heads = evaluation.heads
        if not self.lifted or heads is None:
            return torch.ones(1, dtype=torch.float64)
        return heads.shares
