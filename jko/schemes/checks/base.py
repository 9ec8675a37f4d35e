"""The contract of a further check: what more is shown of a finished step, on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from jko.flows import GradientFlow
from jko.metrics import Fields
from jko.schemes.minimizers import Minimization
from jko.schemes.objective import StepObjective, Trial

__all__ = ["AbstractCheck", "CheckResult", "FinishedStep"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class FinishedStep:
    """A step that met its tolerance, with what a check needs to look into it.

    Attributes:
        flow: the gradient flow.
        fields: the fields at the old measure and the end time.
        objective: the step's objective.
        origin: the trial at xi = 0.
        trial: the accepted trial.
        shares: weights of the groups in averages, float64 on the CPU, shape (G,): those of the heads if lifted.
        solve: solves the same step with another tau, the measure, end time and mobility unchanged; None where
            that failed.
    """

    flow: GradientFlow
    fields: Fields
    objective: StepObjective
    origin: Trial
    trial: Trial
    shares: Tensor
    solve: Callable[[float], Minimization | None]


@final
@dataclass(frozen=True, slots=True, eq=False)
class CheckResult:
    """What a check found.

    Attributes:
        passed: whether the statement was shown; None where the check does not apply to this flow, or could not decide.
        columns: numbers for the records.
        passes: passes over the pairs that the check took.
        detail: one sentence where the statement was not shown.
    """

    passed: bool | None
    columns: Mapping[str, float]
    passes: float
    detail: str = ""


class AbstractCheck(ABC):
    """A statement about a finished step that costs further passes, so it is made on request: `JKO(checks=...)`."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the statement."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the record columns; every result has exactly these."""

    @abstractmethod
    def examine(self, step: FinishedStep) -> CheckResult:
        """Examine a finished step. A statement that cannot be decided is no failure of the step."""
