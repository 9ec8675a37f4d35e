"""The contract of a minimizer, and the one loop that runs all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from jko.checks import check_positive
from jko.errors import InvalidInput
from jko.schemes.minimizers.judge import judge
from jko.schemes.objective import StepObjective, Trial
from jko.status import Status
from jko.typing import default

__all__ = ["AbstractMinimizer", "Minimization", "OutOfPassesError", "Search", "check_rtol", "default_rtol", "minimize"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Minimization:
    """Outcome of a minimization.

    Attributes:
        status: SUCCESS only for a trial that meets the tolerance, descends, and stays short of the cut locus.
        trial: the best trial found.
        passes: passes over the pairs that it took, the one at xi = 0 not counted; a pass over k of G groups is k / G.
        detail: particulars of a failure.
        memory: what the next step's minimization may reuse, known to the minimizer alone; None where there is nothing.
    """

    status: Status
    trial: Trial
    passes: float
    detail: str = ""
    memory: Any = None


class OutOfPassesError(Exception):
    """The budget of passes is spent; the loop takes the best trial so far."""


@final
@dataclass(slots=True, eq=False)
class Search:
    """A minimization in progress: counts the passes, keeps the best trial, sets aside groups that are finished.

    Attributes:
        objective: the step, of the groups that are left.
        origin: the trial at xi = 0 of all groups.
        max_passes: passes over the pairs before it gives up, of all groups or some.
        best: the trial with the smallest residual so far, of the groups that are left.
        price: passes of one evaluation times the number of groups that are left.
        calls: evaluations and products so far.
        work: their passes, each times the number of groups that it was made for.
        groups: the groups that are left.
        finished: those that are not, with their trials.
        guided: whether it starts from a guess: the old measure, which may be stationary itself, is no answer then.
    """

    objective: StepObjective
    origin: Trial
    max_passes: int
    best: Trial
    guided: bool
    price: float
    calls: int = 0
    work: float = 0.0
    groups: list[int] = field(default_factory=list)
    finished: list[tuple[list[int], Trial]] = field(default_factory=list)

    @staticmethod
    def of(objective: StepObjective, origin: Trial, max_passes: int, guess: Tensor | None) -> Search:
        """Begin a search."""
        groups = list(range(objective.groups))
        price = objective.energy.passes * len(groups)
        return Search(objective, origin, max_passes, origin, guess is not None, price, groups=groups)

    def evaluate(self, xi: Tensor) -> Trial:
        """Return the trial at xi of the groups that are left, and keep it where it is the best."""
        self.pay()
        trial = self.objective.evaluate(xi)
        # Where energy and transport have no force, every residual is 1, and the last trial is the one that rests.
        if trial.residual <= self.best.residual or (self.guided and self.best is self.origin):
            self.best = trial
        return trial

    def hessian_product(self, trial: Trial, eta: Tensor) -> Tensor:
        """Return the Hessian of the objective at the trial times eta."""
        self.pay()
        return self.objective.hessian_product(trial, eta)

    def pay(self, passes: float | None = None) -> None:
        """Count one evaluation of the groups that are left, or passes of one group that were made elsewhere.

        Raises:
            OutOfPassesError: when no pass is left.
        """
        if passes is None:
            if self.calls >= self.max_passes:
                raise OutOfPassesError
            self.calls += 1
            passes = self.price
        self.work += passes

    @property
    def passes(self) -> float:
        """Passes over the pairs of all groups together."""
        return self.work / self.origin.xi.shape[0]

    def set_aside(self, rest: list[int], trial: Trial) -> None:
        """Go on with the groups `rest`, numbered as they are now; the others are finished and keep this trial."""
        done = sorted(set(range(len(self.groups))).difference(rest))
        self.finished.append(([self.groups[k] for k in done], trial.members(done)))
        self.groups = [self.groups[k] for k in rest]
        self.objective, self.best = self.objective.members(rest), self.best.members(rest)
        self.price = self.objective.energy.passes * len(rest)

    def result(self) -> Trial:
        """Return the best trial of all groups."""
        return Trial.joined([*self.finished, (self.groups, self.best)]) if self.finished else self.best


class AbstractMinimizer(ABC):
    """Minimizes the objective of one step: `init` makes a working state, `step` moves it on, `result` is what lasts.

    `minimize` runs every minimizer: it counts the passes, keeps the best trial and judges it.
    """

    __slots__ = ()

    @abstractmethod
    def tolerance(self, dtype: torch.dtype) -> float:
        """Return the relative residual that counts as solved in this precision."""

    @property
    @abstractmethod
    def max_passes(self) -> int:
        """Passes over the pairs before it gives up."""

    @property
    @default
    def wants_curvature(self) -> bool:
        """Whether the evaluation at xi = 0 should carry the curvature of the first variation."""
        return False

    @abstractmethod
    def init(self, search: Search, guess: Tensor | None, memory: Any) -> Any:
        """Return the working state at the start of a search.

        Args:
            search: the step, with its trial at xi = 0, whose pass the caller has paid for.
            guess: tangent displacements (G, n, d) to start from; None lets the minimizer choose.
            memory: `Minimization.memory` of the step before, if any; a hint that never changes what counts as solved.
        """

    @abstractmethod
    def step(self, search: Search, state: Any) -> bool:
        """Move the state on, by passes that `search` counts; return whether it is worth going on."""

    @default
    def result(self, search: Search, state: Any) -> tuple[Any, str]:
        """Return what the next step may reuse, and a remark on a search that did not converge."""
        return None, ""


def minimize(
    minimizer: AbstractMinimizer,
    objective: StepObjective,
    origin: Trial,
    reference: Sequence[float] | None,
    guess: Tensor | None = None,
    memory: Any = None,
) -> Minimization:
    """Run a minimizer on a step.

    Args:
        minimizer: the method.
        objective: the step.
        origin: the trial at xi = 0, whose pass the caller has paid for.
        reference: see `judge`.
        guess: tangent displacements (G, n, d) to start from.
        memory: what this minimizer left from the step before.
    """
    search = Search.of(objective, origin, minimizer.max_passes, guess)
    state = None
    try:
        state = minimizer.init(search, guess, memory)
        while minimizer.step(search, state):
            pass
    except OutOfPassesError:
        pass
    best = search.result()
    status, detail = judge(objective, best, reference)
    kept, remark = (None, "") if state is None else minimizer.result(search, state)
    if status is Status.NOT_CONVERGED and remark:
        detail = f"{detail}; {remark}"
    return Minimization(status, best, search.passes, detail, kept if status.ok else None)


def default_rtol(rtol: float | None, dtype: torch.dtype) -> float:
    """Return the relative residual that counts as solved: 1e-8 in float64 and 1e-5 in float32 unless given."""
    if rtol is not None:
        return rtol
    return 1e-5 if dtype == torch.float32 else 1e-8


def check_rtol(rtol: float | None) -> float | None:
    """Return a relative tolerance in (0, 1), or None for the default of the precision."""
    if rtol is None:
        return None
    if check_positive(rtol, "rtol") >= 1:
        raise InvalidInput(f"rtol is relative and must be below 1, got {rtol!r}")
    return float(rtol)
