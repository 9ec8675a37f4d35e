"""What a vector field without an energy offers to a flow."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from jko.measure import ParticleMeasure

__all__ = ["AbstractField"]


class AbstractField(ABC):
    """A vector field on the ambient space that depends on the measure and on time; the flow projects it.

    Attributes:
        jumps: times at which the field jumps: no step of a run crosses them.
    """

    __slots__ = ()

    jumps: tuple[float, ...] = ()

    @property
    @abstractmethod
    def moves(self) -> bool:
        """Whether the field depends on t at a fixed measure."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Name and sign, for figures and tables."""

    @abstractmethod
    def check_times(self, t0: float, t1: float) -> None:
        """Raise InvalidInput when the field is not defined on [t0, t1]."""

    @abstractmethod
    def evaluate(self, measure: ParticleMeasure, t: float) -> Tensor:
        """Return the AMBIENT field at the particles, the sign applied, shape (*batch, n, d), from ONE pass."""

    @abstractmethod
    def largest_exponent(self, measure: ParticleMeasure, t: float) -> float:
        """Return the largest exponent that the field evaluates at (u, t): what overflows first."""
