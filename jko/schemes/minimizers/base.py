"""The contract of a minimizer: from the trial at xi = 0 to a trial that meets the tolerance, or a status."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.checks import check_positive
from jko.errors import InvalidInput
from jko.numerics import row_sum
from jko.schemes.objective import StepProblem, Trial
from jko.status import Status

__all__ = [
    "AbstractMinimizer",
    "Minimization",
    "Secants",
    "check_rtol",
    "default_rtol",
    "judge",
    "reported_residual",
    "shortened",
]

_CUT_FRACTION = 1.0 - 1e-6
_ROUNDING = 30.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class Secants:
    """Differences of successive iterates of one step, which the next step starts from.

    Attributes:
        images: differences of the images of the fixed-point map, tangent vectors (G, c, n, d).
        defects: differences of the defects image - xi, (G, c, n, d).
        tau: step size that they belong to.
    """

    images: Tensor
    defects: Tensor
    tau: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class Minimization:
    """Outcome of a minimization.

    Attributes:
        status: SUCCESS only for a trial that meets the tolerance, descends, and stays short of the cut locus.
        trial: the best trial found.
        passes: passes over the pairs that it took, the one at xi = 0 not counted; a pass over k of H heads is k / H.
        detail: particulars of a failure.
        secants: what the next step's minimization may reuse; None where there is nothing.
    """

    status: Status
    trial: Trial
    passes: float
    detail: str = ""
    secants: Secants | None = None


class AbstractMinimizer(ABC):
    """Minimizes the objective of one step. Every minimizer is judged by the same residual, see `judge`."""

    @abstractmethod
    def tolerance(self, dtype: torch.dtype) -> float:
        """Return the relative residual that counts as solved in this precision."""

    @property
    @abstractmethod
    def wants_curvature(self) -> bool:
        """Whether the trial at xi = 0 should carry the curvature of the first variation."""

    @abstractmethod
    def minimize(
        self, problem: StepProblem, origin: Trial, guess: Tensor | None = None, secants: Secants | None = None
    ) -> Minimization:
        """Minimize, starting from `guess` (G, n, d) or, without one, from a start of the minimizer's own.

        Args:
            problem: the step.
            origin: the trial at xi = 0, whose pass the caller has paid for.
            guess: tangent displacements to start from.
            secants: from the step before; a hint that never changes what counts as solved.
        """


def default_rtol(dtype: torch.dtype) -> float:
    """Return the default relative residual: 1e-8 in float64, 1e-5 in float32."""
    return 1e-5 if dtype == torch.float32 else 1e-8


def check_rtol(rtol: float | None) -> float | None:
    """Return a relative tolerance in (0, 1), or None for the default of the precision."""
    if rtol is None:
        return None
    if check_positive(rtol, "rtol") >= 1:
        raise InvalidInput(f"rtol is relative and must be below 1, got {rtol!r}")
    return float(rtol)


def judge(problem: StepProblem, origin: Trial, trial: Trial) -> tuple[Status, str]:
    """Decide whether a trial is the result of the step: residual, finiteness, |xi| < pi, and J(x) <= J(y) per group.

    A tiny residual alone is not enough: beyond the cut locus the tangent cost is no distance, and a point of larger
    objective than the old measure is no minimizer. Where forces cancel, as in an equilibrium in R^d, rounding may
    leave a residual above the tolerance: an error of the displacement within the rounding of positions is no error.
    """
    if not trial.finite:
        return Status.NON_FINITE, "the objective or its gradient is not finite"
    if reported_residual(problem, trial) > problem.rtol:
        return Status.NOT_CONVERGED, f"relative residual {trial.residual:.3g} above rtol = {problem.rtol:.3g}"
    largest = float(row_sum(trial.xi.square()).amax().sqrt())
    if largest >= _CUT_FRACTION * problem.manifold.injectivity_radius:
        return Status.BEYOND_CUT_LOCUS, f"largest displacement {largest:.6g}"
    eps = float(torch.finfo(problem.measure.dtype).eps)
    # Displacements within the rounding of the positions cost this much, even where the objective is 0.
    least = _reach(problem, trial) ** 2 * float(problem.mobility.amax()) / problem.tau
    for old, new in zip(origin.objective, trial.objective, strict=True):
        rise = new - old
        if rise > 32 * eps * (abs(old) + abs(new)) + least:
            return Status.NO_DESCENT, f"objective rises by {rise:.3g} from {old:.6g}"
    return Status.SUCCESS, ""


def reported_residual(problem: StepProblem, trial: Trial) -> float:
    """Return the residual of the trial, relative to the rounding of the positions where only that is left of it."""
    if trial.residual <= problem.rtol or not trial.finite:
        return trial.residual
    share = _rounding_share(problem, trial)
    return share * problem.rtol if share <= 1 else trial.residual


def _rounding_share(problem: StepProblem, trial: Trial) -> float:
    """The largest error of a displacement over what rounding of the positions, or noise, explains."""
    error = float((problem.fixed_point(trial) - trial.xi).abs().amax())
    reach = _reach(problem, trial)
    return error / reach if reach > 0 else math.inf


def _reach(problem: StepProblem, trial: Trial) -> float:
    """How far rounding of the positions, or noise in the forces, may carry a particle."""
    eps = max(float(torch.finfo(trial.points.dtype).eps), problem.noise)
    return _ROUNDING * eps * float(torch.maximum(trial.points.abs().amax(), problem.measure.points.abs().amax()))


def shortened(xi: Tensor, problem: StepProblem, fraction: float) -> Tensor:
    """Shorten displacements that would leave the ball of this fraction of the radius where the cost is a distance."""
    limit = fraction * problem.manifold.injectivity_radius
    length = row_sum(xi.square(), keepdim=True).sqrt()
    return torch.where(length > limit, xi * (limit / length), xi)
