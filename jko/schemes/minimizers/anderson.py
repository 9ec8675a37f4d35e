"""Anderson acceleration of the fixed point xi = -(tau/b) (d Exp_y)^* grad sE(Exp_y xi)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.checks import check_integer
from jko.schemes.minimizers.base import AbstractMinimizer, Minimization, check_rtol, default_rtol, judge
from jko.schemes.objective import StepProblem, Trial
from jko.status import Status

__all__ = ["Anderson"]

_CAP = 0.9


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class Anderson(AbstractMinimizer):
    """Anderson acceleration (Anderson 1965; type II of Fang and Saad 2009), safeguarded.

    Least squares weighted by w b, one coefficient set per head, secant columns normalized, |xi| capped below
    0.9 pi. It is fast for steps in the range of the flow and diverges for large tau: it then leaves after a few bad
    passes, and the scheme's fallback takes over.

    Args:
        rtol: relative residual that counts as solved; None means 1e-8 in float64 and 1e-5 in float32.
        memory: number of secant pairs.
        max_passes: passes over the pairs before it gives up.
        patience: passes without progress before it gives up.
    """

    rtol: float | None
    memory: int
    max_passes: int
    patience: int

    def __init__(self, rtol: float | None = None, *, memory: int = 5, max_passes: int = 60, patience: int = 5) -> None:
        object.__setattr__(self, "rtol", check_rtol(rtol))
        object.__setattr__(self, "memory", check_integer(memory, "memory", least=1))
        object.__setattr__(self, "max_passes", check_integer(max_passes, "max_passes", least=1))
        object.__setattr__(self, "patience", check_integer(patience, "patience", least=1))

    def tolerance(self, dtype: torch.dtype) -> float:
        return default_rtol(dtype) if self.rtol is None else self.rtol

    def minimize(self, problem: StepProblem, origin: Trial, guess: Tensor | None = None) -> Minimization:
        best, trial, passes, bad = origin, origin, 0, 0
        history: list[tuple[Tensor, Tensor]] = []
        xi = guess
        while trial.residual > problem.rtol and passes < self.max_passes and bad < self.patience:
            if not trial.finite:
                break
            image = problem.fixed_point(trial)
            history = [*history[-self.memory :], (image, image - trial.xi)]
            xi = _capped(xi if xi is not None else _mixed(problem, history), problem)
            trial, passes, xi = problem.evaluate(xi), passes + 1, None
            bad = bad + 1 if not trial.residual < 0.9 * best.residual else 0
            best = trial if trial.residual < best.residual else best
        status, detail = judge(problem, origin, best)
        if status is Status.NOT_CONVERGED and not trial.finite:
            detail = f"{detail}; left at a point that is not finite"
        return Minimization(status, best, passes, detail)


def _mixed(problem: StepProblem, history: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Combine the images so that the combined defect is smallest in L^2(w b), group by group."""
    image, defect = history[-1]
    if len(history) == 1:
        return image
    images = torch.stack([image - old for old, _ in history[:-1]], 1)
    defects = torch.stack([defect - old for _, old in history[:-1]], 1)
    weight = (problem.measure.weights * problem.mobility).to(torch.float64).sqrt()[:, None, :, None]
    columns = (defects * weight).flatten(-2)
    scale = columns.square().sum(-1, keepdim=True).sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    columns = columns / scale
    target = (defect.to(torch.float64) * weight[:, 0]).flatten(-2)[..., None]
    gram = columns @ columns.mT
    # The ridge keeps columns that have become parallel from blowing up the coefficients.
    ridge = 10 * torch.finfo(image.dtype).eps * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    coefficients = torch.linalg.solve_ex(gram + ridge, columns @ target)[0] / scale
    return image - (coefficients[..., None].to(image.dtype) * images).sum(1)


def _capped(xi: Tensor, problem: StepProblem) -> Tensor:
    """Shorten displacements that would leave the ball in which the tangent cost is a distance."""
    limit = _CAP * problem.manifold.injectivity_radius
    length = xi.square().sum(-1, keepdim=True).sqrt()
    return torch.where(length > limit, xi * (limit / length), xi)
