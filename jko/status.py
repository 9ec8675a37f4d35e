"""The outcome of a minimization, a step or a run: one flat enumeration, each member with a sentence of advice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import final

__all__ = ["Failure", "Status"]


class Status(Enum):
    """Outcome of a minimization, of a step or of a run.

    The value of a member is its name in lower case (what a saved run stores); `advice` is a sentence for people.
    """

    SUCCESS = "success"
    STOPPED = "stopped"
    NOT_CONVERGED = "not_converged"
    NO_DESCENT = "no_descent"
    BEYOND_CUT_LOCUS = "beyond_cut_locus"
    NON_FINITE = "non_finite"
    MAX_STEPS = "max_steps"
    INTERRUPTED = "interrupted"
    DAMAGED = "damaged"

    @property
    def ok(self) -> bool:
        """Whether the result may be used as it is: the run finished, or a stop condition asked it to end."""
        return self in (Status.SUCCESS, Status.STOPPED)

    @property
    def advice(self) -> str:
        """What happened and what to try next."""
        return _ADVICE[self]


_ADVICE: dict[Status, str] = {
    Status.SUCCESS: "Finished: every step met its tolerance.",
    Status.STOPPED: "A stop condition was met; the solution is complete up to that time.",
    Status.NOT_CONVERGED: (
        "The minimizer stopped above its tolerance. Reduce tau, raise the minimizer's max_passes, or loosen rtol "
        "if the reported residual is small enough for the purpose."
    ),
    Status.NO_DESCENT: (
        "The point found has a larger objective than the previous measure, so it is no minimizer. Reduce tau; "
        "for an energy that is unbounded below in R^d no minimizer need exist."
    ),
    Status.BEYOND_CUT_LOCUS: (
        "A particle moved as far as the injectivity radius, where the tangent cost is no distance. Reduce tau; a path "
        "between two measures needs more segments."
    ),
    Status.NON_FINITE: (
        "A value was inf or NaN; nothing was repaired. Look at the largest exponent in the message: "
        "reduce the heads or the points, use float64, or reduce tau."
    ),
    Status.MAX_STEPS: "The step limit was reached before the final time. Raise max_steps or tau.",
    Status.INTERRUPTED: "Interrupted; the solution is complete up to the last full step.",
    Status.DAMAGED: (
        "Files of the run are missing or damaged, so that it is shown only up to the step before; "
        "`jko resume` (in Python jko.resume) computes the lost steps again."
    ),
}


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """Where and why a run ended early.

    Attributes:
        status: the outcome of the step that ended the run.
        step: number of the failed step, counted from 1 (0: the initial state).
        t: time at which the step started.
        detail: the particulars, for instance the largest exponent.
    """

    status: Status
    step: int
    t: float
    detail: str

    def __str__(self) -> str:
        where = f"step {self.step} from t = {self.t:.6g}" if self.step else f"the initial state at t = {self.t:.6g}"
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.status.name} in {where}{detail}. {self.status.advice}"
