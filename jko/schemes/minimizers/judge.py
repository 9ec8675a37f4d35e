"""When a trial is the result of a step: one residual, one rounding floor, one test of descent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from jko.numerics import inner, row_sum
from jko.schemes.objective import RESIDUAL_FLOOR, StepObjective, Trial
from jko.status import Status

__all__ = ["judge", "reported_residual", "shorten"]

_CUT_FRACTION = 1.0 - 1e-6
"""Share of the injectivity radius from which on a displacement counts as beyond the cut locus."""
_RISE = 32.0
"""Rounding in the difference of two objectives, in units of eps: a sum over pairs loses a few of them."""


def judge(objective: StepObjective, trial: Trial, reference: Sequence[float] | None) -> tuple[Status, str]:
    """Decide whether a trial is the result of the step: residual, finiteness, |xi| < pi, and J(x) <= J(y) per group.

    A tiny residual alone is not enough: beyond the cut locus the tangent cost is no distance, and a point of larger
    objective than the old measure is no minimizer. Where forces cancel, as in an equilibrium in R^d, rounding may
    leave a residual above the tolerance: an error of the displacement within the rounding of positions is no error.

    Args:
        objective: the step.
        trial: the candidate.
        reference: the objective of each group at the old measure; None where that is no candidate.
    """
    if not trial.finite:
        return Status.NON_FINITE, "the objective or its gradient is not finite"
    if reported_residual(objective, trial) > objective.rtol:
        return Status.NOT_CONVERGED, f"relative residual {trial.residual:.3g} above rtol = {objective.rtol:.3g}"
    largest = float(row_sum(trial.xi.square()).amax().sqrt())
    if largest >= _CUT_FRACTION * objective.manifold.injectivity_radius:
        return Status.BEYOND_CUT_LOCUS, f"largest displacement {largest:.6g}"
    eps = float(torch.finfo(trial.xi.dtype).eps)
    if reference is None:
        return Status.SUCCESS, ""
    # Displacements within the rounding of the positions cost this much, even where the objective is 0.
    least = _reach(objective, trial) ** 2 * float(objective.movement.mobility.amax()) / objective.tau
    for old, new in zip(reference, trial.objective, strict=True):
        rise = new - old
        if rise > _RISE * eps * (abs(old) + abs(new)) + least:
            return Status.NO_DESCENT, f"objective rises by {rise:.3g} from {old:.6g}"
    return Status.SUCCESS, ""


def reported_residual(objective: StepObjective, trial: Trial) -> float:
    """Return the residual of the trial, relative to the rounding of the positions where only that is left of it."""
    if trial.residual <= objective.rtol or not trial.finite:
        return trial.residual
    error = float((objective.fixed_point(trial) - trial.xi).abs().amax())
    reach = _reach(objective, trial)
    share = error / reach if reach > 0 else math.inf
    return share * objective.rtol if share <= 1 else trial.residual


def shorten(xi: Tensor, objective: StepObjective, fraction: float) -> Tensor:
    """Shorten displacements that would leave the ball of this fraction of the radius where the cost is a distance."""
    limit = fraction * objective.manifold.injectivity_radius
    if math.isinf(limit):
        return xi
    squares = inner(xi, xi)
    if squares.device.type == "cpu" and float(squares.amax()) <= limit**2:
        return xi
    length = squares.sqrt()
    return torch.where(length > limit, xi * (limit / length), xi)


def _reach(objective: StepObjective, trial: Trial) -> float:
    """How far rounding of the positions, or noise in the forces, may carry a particle."""
    eps = max(float(torch.finfo(trial.points.dtype).eps), objective.movement.noise)
    return RESIDUAL_FLOOR * eps * float(torch.maximum(trial.points.abs().amax(), objective.movement.base.abs().amax()))
