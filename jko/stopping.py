"""Conditions that end a run early, with the solution complete up to there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from jko.checks import check_positive
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure

__all__ = ["AbstractStop", "Progressed", "Stationary"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Progressed:
    """What a stop condition sees after each step.

    Attributes:
        step: number of the step, from 1.
        t: time at its end.
        measure: the new measure.
        columns: the step's row of the records, by name.
    """

    step: int
    t: float
    measure: ParticleMeasure
    columns: dict[str, float]


class AbstractStop(ABC):
    """Asked after every step whether the run should end. A plain function of `Progressed` serves as well."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, progressed: Progressed) -> bool:
        """Return whether to stop here."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Stationary(AbstractStop):
    """Stop when the metric slope, the square root of the `slope2` column, falls to `slope` or below.

    Raises:
        InvalidInput: for a slope that is not positive, and after the first step of a flow without a metric.
    """

    slope: float

    def __post_init__(self) -> None:
        check_positive(self.slope, "slope")

    def __call__(self, progressed: Progressed) -> bool:
        """Return whether the slope is small enough."""
        if "slope2" not in progressed.columns:
            raise InvalidInput(
                "Stationary reads the column 'slope2', which a flow without a metric does not have; follow a "
                "GradientFlow, or give a function of the columns "
                f"{', '.join(sorted(progressed.columns))} as stop"
            )
        return progressed.columns["slope2"] <= self.slope**2
