"""What an energy offers: one pass gives everything that a step needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from torch import Tensor

from jko.energies.moments import PairMoments
from jko.energies.shifted import ShiftedHeads
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure

if TYPE_CHECKING:
    from jko.energies.attention import AttentionEnergy

__all__ = ["AbstractEnergy", "Evaluation", "HeadEvaluation", "PotentialField"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class HeadEvaluation:
    """The parts of an energy that is an average over heads; the sign is applied, but never to the mobility.

    Attributes:
        energy: s E_h, shape (*batch, H), accumulated in float64.
        first_variation: s dE_h/du at the particles, shape (*batch, H, n).
        gradient: ambient gradient of s E_h per unit mass, shape (*batch, H, n, d).
        mobility: m_h, shape (*batch, H, n).
        head_weights: weights of the average, shape (H,) float64; None means 1/H.
        curvature: ambient Hessian of s dE_h/du at the particles, the measure fixed, shape (*batch, H, n, d, d); on
            request only.
        moments: sums over pairs for the discrete balance (147), without the sign; on request only.
    """

    energy: Tensor
    first_variation: Tensor
    gradient: Tensor
    mobility: Tensor
    head_weights: Tensor | None = None
    curvature: Tensor | None = None
    moments: PairMoments | None = None

    def selected(self, rows: Sequence[int]) -> HeadEvaluation:
        """Return the parts of an unbatched evaluation that belong to some heads, with their weights; no moments."""
        index = list(rows)
        return replace(
            self,
            energy=self.energy[index],
            first_variation=self.first_variation[index],
            gradient=self.gradient[index],
            mobility=self.mobility[index],
            head_weights=None if self.head_weights is None else self.head_weights[index],
            curvature=None if self.curvature is None else self.curvature[index],
            moments=None,
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Value and first variation of an energy at a particle measure, the sign applied.

    Attributes:
        value: s E(u, t), shape (*batch,), accumulated in float64.
        first_variation: s dE/du at the particles, shape (*batch, n).
        gradient: AMBIENT gradient per unit mass, shape (*batch, n, d): the derivative in x_i is w_i times it. The
            energy does not know the manifold; the flow projects.
        heads: the parts per head where the energy has exactly one attention part, else None.
        curvature: ambient Hessian of s dE/du at the particles, the measure fixed, shape (*batch, n, d, d): on request,
            and None where the energy does not know it.
    """

    value: Tensor
    first_variation: Tensor
    gradient: Tensor
    heads: HeadEvaluation | None = None
    curvature: Tensor | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class PotentialField:
    """A first variation as a function of position.

    Attributes:
        value: shape (m,), or (H, m).
        gradient: ambient, shape (m, d), or (H, m, d).
    """

    value: Tensor
    gradient: Tensor


class AbstractEnergy(ABC):
    """A time-dependent energy of particle measures. Energies add up, and numbers scale them."""

    __slots__ = ()

    @property
    @abstractmethod
    def moves(self) -> bool:
        """Whether the energy depends on t; False lets a scheme reuse an evaluation at another time."""

    @property
    @abstractmethod
    def attention_parts(self) -> tuple[AttentionEnergy, ...]:
        """The attention energies inside: their heads give the mobilities of the weighted metrics."""

    @property
    @abstractmethod
    def description(self) -> str:
        """One line for run summaries: what it is, its sign, its reduction."""

    @abstractmethod
    def evaluate(self, measure: ParticleMeasure, t: float, *, curvature: bool = False) -> Evaluation:
        """Return value, first variation and gradient at (u, t) in ONE pass over the pairs; on request the curvature.

        Non-finite values are returned as they are; `largest_exponent` tells why.
        """

    @abstractmethod
    def value(self, measure: ParticleMeasure, t: float) -> Tensor:
        """Return s E(u, t) alone, shape (*batch,), float64: a cheaper pass."""

    @abstractmethod
    def hessian_product(self, measure: ParticleMeasure, t: float, direction: Tensor) -> Tensor:
        """Return the derivative of the ambient gradient per unit mass when the particles move along `direction`.

        Args:
            measure: the particles (*batch, n, d).
            t: time.
            direction: ambient directions (*batch, n, d).

        Returns:
            Shape (*batch, n, d).
        """

    @abstractmethod
    def evaluate_heads(self, points: Tensor, weights: Tensor, t: float) -> HeadEvaluation:
        """Evaluate head h on its own cloud points[h] (the head-wise step); one pass.

        Args:
            points: shape (H, n, d).
            weights: shape (n,).
            t: time.

        Raises:
            InvalidInput: when the energy is not an average over heads.
        """

    @abstractmethod
    def hessian_product_heads(self, points: Tensor, weights: Tensor, t: float, direction: Tensor) -> Tensor:
        """Return `hessian_product` for each head on its own cloud, shape (H, n, d)."""

    @abstractmethod
    def heads_alone(self, indices: Sequence[int]) -> AbstractEnergy:
        """Return the energy of some heads alone, the mean of their E_h, together with the parts that all heads share.

        The evaluation of its heads costs only as many pair sums as there are heads left.

        Raises:
            InvalidInput: when the energy is not an average over heads.
        """

    @abstractmethod
    def first_variation_at(self, targets: Tensor, measure: ParticleMeasure, t: float) -> PotentialField | None:
        """Return s dE/du and its ambient gradient at other points (m, d), the unbatched measure fixed.

        None where the energy is only known at its particles.
        """

    @abstractmethod
    def first_variation_heads_at(
        self, targets: Tensor, points: Tensor, weights: Tensor, t: float
    ) -> PotentialField | None:
        """Return the same for each head on its own cloud (H, n, d), at targets (H, m, d)."""

    @abstractmethod
    def largest_exponent(self, measure: ParticleMeasure, t: float) -> float:
        """Return the largest exponent in the energy at (u, t) (what overflows first); -inf where there is none."""

    def shifted_heads(self, measure: ParticleMeasure, t: float) -> ShiftedHeads | None:
        """Return mobilities and gradients of the heads with their exponents apart, right where exp leaves the floats.

        A pass of its own, and a slow one. None where the energy has no heads.
        """
        return None

    def head(self, index: int) -> AbstractEnergy:
        """Return the energy of one head alone, E_h with its weight 1."""
        return self.heads_alone([index])

    def gradient(self, measure: ParticleMeasure, t: float) -> Tensor:
        """Return the ambient gradient per unit mass, shape (*batch, n, d)."""
        return self.evaluate(measure, t).gradient

    def __add__(self, other: AbstractEnergy) -> AbstractEnergy:
        """Return the sum of two energies."""
        from jko.energies.algebra import Sum

        if not isinstance(other, AbstractEnergy):
            raise InvalidInput(f"an energy can be added to another energy only, got {type(other).__name__}")
        return Sum((self, other))

    def __rmul__(self, coefficient: float | Callable[[float], float]) -> AbstractEnergy:
        """Return the energy times a number."""
        from jko.energies.algebra import Scaled

        return Scaled(self, coefficient)
