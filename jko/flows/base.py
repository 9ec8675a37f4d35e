"""What a flow offers to a scheme: its velocity, and the columns that describe a state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from jko.energies import Evaluation
from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure, check_measure
from jko.numerics import all_finite
from jko.storable import storable

__all__ = ["AbstractFlow", "FlowState", "check_measure"]


@storable
@final
@dataclass(frozen=True, slots=True, eq=False)
class FlowState:
    """A flow at one measure and time, all from one evaluation.

    Attributes:
        measure: u.
        t: time.
        velocity: the flow's velocity at the particles, tangent, shape (*batch, n, d).
        columns: the state columns of the records: numbers by name.
        evaluation: the pass behind them; None for a flow without an energy.
    """

    measure: ParticleMeasure
    t: float
    velocity: Tensor
    columns: Mapping[str, float]
    evaluation: Evaluation | None

    @property
    def usable(self) -> bool:
        """Whether a step can start here: an energy beyond the range of floats is inf, and its velocity may be right."""
        if all(math.isfinite(value) for value in self.columns.values()):
            return True
        return not any(math.isnan(value) for value in self.columns.values()) and all_finite(self.velocity)


class AbstractFlow(ABC):
    """An immutable bundle of what moves the particles and where they live.

    Attributes:
        jumps: times at which the velocity jumps: no step of a run crosses them.
    """

    __slots__ = ()

    jumps: tuple[float, ...] = ()

    @property
    @abstractmethod
    def manifold(self) -> AbstractManifold:
        """The manifold of the particles."""

    @property
    @abstractmethod
    def moves(self) -> bool:
        """Whether the velocity depends on t at a fixed measure."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Metric and sign, for figures and tables."""

    @abstractmethod
    def check_times(self, t0: float, t1: float) -> None:
        """Raise InvalidInput when the flow is not defined on [t0, t1]."""

    @abstractmethod
    def velocity(self, measure: ParticleMeasure, t: float) -> Tensor:
        """Return the velocity at the particles, tangent, shape (*batch, n, d).

        Raises:
            InvalidInput: when the measure does not lie on the manifold.
        """

    @abstractmethod
    def state(self, measure: ParticleMeasure, t: float) -> FlowState:
        """Return velocity and state columns of one unbatched measure, from ONE pass over the pairs."""

    @abstractmethod
    def value(self, measure: ParticleMeasure, t: float) -> float | None:
        """Return the energy sE(u, t) by a value-only pass; None for a flow without an energy."""

    @abstractmethod
    def explain_non_finite(self, measure: ParticleMeasure, t: float) -> str:
        """Say why values at (u, t) are inf or NaN, with the largest exponent where there is one."""


def check_on_manifold(measure: ParticleMeasure, manifold: AbstractManifold) -> None:
    """Refuse what is no measure, and measures off the manifold."""
    check_measure(measure)
    manifold.check(measure.points)
