"""The contract of a further check: what more is shown of a finished step, on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.flows import GradientFlow
from jko.metrics import Fields
from jko.schemes.minimizers import Minimization
from jko.schemes.objective import StepProblem, Trial

__all__ = ["AbstractCheck", "CheckResult", "FinishedStep"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class FinishedStep:
    """A step that met its tolerance, with what a check needs to look into it.

    Attributes:
        flow: the gradient flow.
        fields: the fields at the old measure and the end time.
        problem: the step's objective.
        origin: the trial at xi = 0.
        trial: the accepted trial.
        solve: solves the same step with another tau, the measure, end time and mobility unchanged; None where
            that failed.
    """

    flow: GradientFlow
    fields: Fields
    problem: StepProblem
    origin: Trial
    trial: Trial
    solve: Callable[[float], Minimization | None]

    @property
    def shares(self) -> Tensor:
        """Weights of the groups in the objective: the head weights of a lifted metric, else 1; float64, shape (G,)."""
        return self.shares_of_heads if self.problem.lifted else torch.ones(1, dtype=torch.float64)

    @property
    def shares_of_heads(self) -> Tensor:
        """Weights of the heads of the energy, float64 on the CPU, shape (H,).

        Raises:
            ValueError: for an energy without heads, which is a fault of the caller.
        """
        heads = self.fields.evaluation.heads
        if heads is None:
            raise ValueError("this energy has no heads")
        if heads.head_weights is not None:
            return heads.head_weights.to(torch.float64)
        count = heads.mobility.shape[-2]
        return torch.full((count,), 1.0 / count, dtype=torch.float64)

    def squared_distances(self, xi: Tensor) -> Tensor:
        """Return sum_i w_i b_i |xi_i|^2 of each group, float64, shape (G,)."""
        squares = xi.to(torch.float64).square().sum(-1) * self.problem.mobility
        return (squares * self.problem.measure.weights).sum(-1)


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
