"""Conditions that end a run early, with the solution complete up to there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from jko.checks import check_positive
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure

__all__ = ["AbstractStop", "Progressed", "Stationary", "check_conditions"]


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
    """Stop when the metric slope falls to `slope` or below: the square root of the `slope2` column.

    A `VelocityFlow` has no metric: there it is the speed, (sum_i w_i |v_i|^2)^(1/2), the square root of `speed2`.

    Raises:
        InvalidInput: for a slope that is not positive, and after the first step of a flow with neither column.
    """

    slope: float

    def __post_init__(self) -> None:
        check_positive(self.slope, "slope")

    def __call__(self, progressed: Progressed) -> bool:
        """Return whether the slope is small enough."""
        columns = progressed.columns
        square = columns.get("slope2", columns.get("speed2"))
        if square is None:
            raise InvalidInput(
                "Stationary reads the column 'slope2' of a GradientFlow or 'speed2' of a VelocityFlow, which this flow "
                f"does not have; give a function of the columns {', '.join(sorted(columns))} as stop"
            )
        return square <= self.slope**2


def check_conditions(stop: Any) -> tuple[Callable[[Progressed], bool], ...]:
    """Return one condition or several as a tuple.

    Raises:
        InvalidInput: for what is no function of `Progressed`.
    """
    conditions = tuple(stop) if isinstance(stop, Sequence) else (stop,)
    for condition in conditions:
        if not callable(condition) or isinstance(condition, type):
            raise InvalidInput(f"every stop condition must be a function of Progressed, got {condition!r}")
    return conditions
