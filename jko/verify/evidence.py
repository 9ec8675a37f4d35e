"""What several statements need to judge their numbers: refutations with a predicted margin, extrapolation to step 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from torch import Tensor

from jko.driver import Save, solve
from jko.flows import AbstractFlow
from jko.measure import ParticleMeasure
from jko.schemes import RK4, AbstractScheme
from jko.verify.base import Measurement, Relation, Verdict, decide
from jko.verify.orders import fit_order

__all__ = [
    "Ladder",
    "at_zero",
    "climb",
    "distance",
    "first_order",
    "judge",
    "reference_points",
    "run_points",
    "value_at_zero",
]

# The last extrapolant is off by a third of its last change where errors are c1 tau + c2 tau^2; doubled for the rest.
_SAFETY = 2 / 3


def judge(claims: tuple[Measurement, ...], predictions: tuple[Measurement, ...]) -> Verdict:
    """Return FAILS only where the claims fail by the margin that was predicted.

    HOLDS where the claims pass; NOT_TESTABLE where they do not, but the predictions do not pass either: then neither
    the statement nor the theory of its failure explains the numbers.
    """
    if decide(claims) is Verdict.HOLDS:
        return Verdict.HOLDS
    return Verdict.FAILS if decide(predictions) is Verdict.HOLDS else Verdict.NOT_TESTABLE


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ladder:
    """Runs with halved step sizes against one target.

    Attributes:
        taus: step sizes, decreasing.
        errors: distances of the runs to the target.
        limit: distance of the run extrapolated to step size 0.
        slack: what the extrapolation may be off by.
        order: observed order between the two smallest steps.
        order_slack: tau times the rate at which the flow changes, the relative size of the next term of the error.
    """

    taus: tuple[float, ...]
    errors: tuple[float, ...]
    limit: float
    slack: float
    order: float
    order_slack: float


def climb(taus: Sequence[float], runs: Sequence[Tensor], target: Tensor, rate: float, rounding: float) -> Ladder:
    """Compare runs (S, n, d) with halved step sizes, at least three, with a target.

    Args:
        taus: step sizes, each half of the one before.
        runs: clouds at the same times.
        target: what they are compared with.
        rate: Lipschitz constant of the velocity, per unit time.
        rounding: accuracy of the runs.
    """
    errors = tuple(distance(run, target) for run in runs)
    coarse, fine = 2 * runs[-2] - runs[-3], 2 * runs[-1] - runs[-2]
    slack = _SAFETY * distance(coarse, fine) + rounding
    return Ladder(tuple(taus), errors, distance(fine, target), slack, fit_order(taus, errors).last, rate * taus[-1])


def distance(one: Tensor, other: Tensor) -> float:
    """Largest over the saved times of the root mean square distance of the particles, at least W_2 (chords)."""
    return float((one - other).square().sum(-1).mean(-1).sqrt().max())


def run_points(flow: AbstractFlow, measure: ParticleMeasure, scheme: AbstractScheme, t1: float, saved: int) -> Tensor:
    """Return the clouds at `saved` + 1 evenly spaced times, shape (saved + 1, n, d)."""
    every = round(t1 / scheme.tau) // saved
    return solve(flow, measure, scheme, t1=t1, save=Save(every=every)).points


def reference_points(flow: AbstractFlow, measure: ParticleMeasure, t1: float, saved: int, steps: int) -> Tensor:
    """Return the clouds of the flow itself: Runge-Kutta steps of order 4, next to exact beside first-order schemes."""
    return run_points(flow, measure, RK4(t1 / steps), t1, saved)


def at_zero(ladder: Ladder, name: str) -> Measurement:
    """The claim that a ladder leads to its target."""
    return Measurement(f"distance as tau -> 0, {name}", ladder.limit, 0.0, Relation.AT_MOST, ladder.slack)


def first_order(ladder: Ladder, name: str) -> Measurement:
    """The claim that the errors of a ladder are of order 1."""
    return Measurement(f"order in tau, {name}", ladder.order, 1.0, Relation.EQUAL, ladder.order_slack)


def value_at_zero(taus: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Extrapolate numbers c0 + c1 tau + c2 tau^2 + ... of halved steps to tau = 0; return the limit and its slack.

    Neville's scheme over all steps; the slack is the change by the last of them.
    """
    table = [float(value) for value in values]
    before = table[-1]
    for level in range(1, len(table)):
        before = table[-1]
        factor = 2**level
        table = [(factor * fine - coarse) / (factor - 1) for coarse, fine in pairwise(table)]
    return table[-1], abs(table[-1] - before)
