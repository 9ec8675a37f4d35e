"""What an energy offers: one pass gives everything that a step needs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from jko.averages import head_average
from jko.energies.moments import PairMoments
from jko.energies.shifted import ShiftedHeads
from jko.errors import InvalidInput
from jko.heads import AbstractHeads
from jko.measure import ParticleMeasure, check_measure
from jko.memory import check_fits
from jko.reductions import AbstractReduction
from jko.storable import storable
from jko.typing import default

__all__ = [
    "PLAIN_STEP",
    "AbstractEnergy",
    "AbstractHeadAverage",
    "Evaluation",
    "HeadEvaluation",
    "PotentialField",
]

PLAIN_STEP = "in a JKO step leave the Newton blocks out: minimizer=Anderson(newton=False)"


@storable
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

    @property
    def shares(self) -> Tensor:
        """Weights of the heads in averages, 1/H where none are given; float64 on the CPU, shape (H,)."""
        if self.head_weights is not None:
            return self.head_weights.to("cpu", torch.float64)
        count = self.mobility.shape[-2]
        return torch.full((count,), 1.0 / count, dtype=torch.float64)

    def average(self) -> Evaluation:
        """Return the evaluation of the average over the heads."""
        if self.energy.shape[-1] == 1:
            curvature = None if self.curvature is None else self.curvature.squeeze(-4)
            variation, gradient = self.first_variation.squeeze(-2), self.gradient.squeeze(-3)
            return Evaluation(self.energy.squeeze(-1), variation, gradient, self, curvature)
        weights = self.head_weights
        return Evaluation(
            value=head_average(self.energy, weights, axis=-1),
            first_variation=head_average(self.first_variation, weights),
            gradient=head_average(self.gradient, weights, axis=-3),
            heads=self,
            curvature=None if self.curvature is None else head_average(self.curvature, weights, axis=-4),
        )

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


@storable
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

    def by_head(self) -> Evaluation:
        """Return the parts per head as the members of a batch (H,): what `AbstractEnergy.by_head` evaluates to.

        Raises:
            InvalidInput: for an energy that is not an average over heads.
        """
        heads = self.heads
        if heads is None:
            raise InvalidInput("this energy has no heads, or those of several attention energies")
        return Evaluation(heads.energy, heads.first_variation, heads.gradient, curvature=heads.curvature)

    def member(self, k: int) -> Evaluation:
        """Return the evaluation of the k-th member of a batch (B,), heads included."""
        heads = self.heads
        if heads is not None:
            heads = HeadEvaluation(
                heads.energy[k],
                heads.first_variation[k],
                heads.gradient[k],
                heads.mobility[k],
                heads.head_weights,
                None if heads.curvature is None else heads.curvature[k],
            )
        curvature = None if self.curvature is None else self.curvature[k]
        return Evaluation(self.value[k], self.first_variation[k], self.gradient[k], heads, curvature)

    def as_batch(self) -> Evaluation:
        """Return the evaluation of one measure as that of a batch (1,) without its heads."""
        curvature = None if self.curvature is None else self.curvature[None]
        return Evaluation(self.value[None], self.first_variation[None], self.gradient[None], curvature=curvature)


@final
@dataclass(frozen=True, slots=True, eq=False)
class PotentialField:
    """A first variation as a function of position.

    Attributes:
        value: shape (*batch, m).
        gradient: ambient, shape (*batch, m, d).
    """

    value: Tensor
    gradient: Tensor


class AbstractEnergy(ABC):
    """A time-dependent energy of particle measures. Energies add up, and numbers scale them.

    A member of the family says what it is (`moves`, `description`) and gives `evaluate`, `hessian_product` and
    `first_variation_at`, each for batches too; the rest has defaults.

    Attributes:
        jumps: times at which the energy jumps, none unless it says so: no step of a run crosses them. At a jump the
            energy is its limit from the right, and at the float just below it that from the left.
    """

    __slots__ = ()

    jumps: tuple[float, ...] = ()

    @property
    @abstractmethod
    def moves(self) -> bool:
        """Whether the energy depends on t; False lets a scheme reuse an evaluation at another time."""

    @property
    @abstractmethod
    def description(self) -> str:
        """One line for run summaries: what it is, its sign, its reduction."""

    @abstractmethod
    def evaluate(self, measure: ParticleMeasure, t: float, *, curvature: bool = False) -> Evaluation:
        """Return value, first variation and gradient at (u, t) in `passes` passes; on request the curvature.

        Non-finite values are returned as they are; `largest_exponent` tells why.
        """

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
    def first_variation_at(self, targets: Tensor, measure: ParticleMeasure, t: float) -> PotentialField | None:
        """Return s dE/du and its ambient gradient at other points (*batch, m, d), the measure fixed.

        None where the energy is only known at its particles.
        """

    @property
    @default
    def passes(self) -> float:
        """Passes over the pairs that one evaluation, or one Hessian product, takes."""
        return 1.0

    @property
    @default
    def attention_parts(self) -> tuple[AbstractHeadAverage, ...]:
        """The averages over heads inside: their heads give the mobilities of the weighted metrics."""
        return ()

    @default
    def value(self, measure: ParticleMeasure, t: float) -> Tensor:
        """Return s E(u, t) alone, shape (*batch,), float64: often a cheaper pass."""
        return self.evaluate(measure, t).value

    @default
    def by_head(self) -> AbstractEnergy:
        """Return the energies of the heads side by side: member h of a batch (H, n, d) is evaluated by head h alone.

        Raises:
            InvalidInput: when the energy is not an average over heads.
        """
        raise InvalidInput(
            f"{self.description} is no average over heads; add an attention energy, or use Wasserstein2()"
        )

    @default
    def at(self, t: float, like: Tensor) -> AbstractEnergy:
        """Return the energy at a fixed time, for particles such as `like`: what depends on t alone is formed once."""
        return self

    @default
    def members(self, indices: Sequence[int]) -> AbstractEnergy:
        """Return the energy of some members of a batch alone: itself, where all members have the same energy."""
        return self

    @default
    def largest_exponent(self, measure: ParticleMeasure, t: float) -> float:
        """Return the largest exponent in the energy at (u, t) (what overflows first); -inf where there is none."""
        check_measure(measure)
        return -math.inf

    @default
    def shifted_heads(self, measure: ParticleMeasure, t: float) -> ShiftedHeads | None:
        """Return mobilities and gradients of the heads with their exponents apart, right where exp leaves the floats.

        A pass of its own, and a slow one. None where the energy has no heads.
        """
        check_measure(measure)
        return None

    @default
    def check_curvature(self, measure: ParticleMeasure) -> None:
        """Raise InvalidInput where `evaluate(..., curvature=True)` would ask for more memory than there is."""
        check_measure(measure)
        shape = (*measure.points.shape, measure.d)
        # The rows, and all of them in one array.
        check_fits("the Hessians at the particles", shape, measure.dtype, measure.device, PLAIN_STEP, copies=2)

    def gradient(self, measure: ParticleMeasure, t: float) -> Tensor:
        """Return the ambient gradient per unit mass, shape (*batch, n, d)."""
        return self.evaluate(measure, t).gradient

    def __add__(self, other: AbstractEnergy) -> AbstractEnergy:
        """Return the sum of two energies."""
        from jko.energies.algebra import Sum

        return Sum((self, other))

    def __rmul__(self, coefficient: float | Callable[[float], float]) -> AbstractEnergy:
        """Return the energy times a number."""
        from jko.energies.algebra import Scaled

        return Scaled(self, coefficient)


class AbstractHeadAverage(AbstractEnergy):
    """An energy that is an average over heads, whose kernel sums are the mobilities of the weighted metrics."""

    __slots__ = ()

    @property
    @abstractmethod
    def heads(self) -> AbstractHeads:
        """The path t -> D(t) of head matrices."""

    @property
    @abstractmethod
    def sign(self) -> int:
        """+1 or -1: whether E or -E is minimized."""

    @property
    @abstractmethod
    def reduction(self) -> AbstractReduction:
        """How the pair sums are formed."""
