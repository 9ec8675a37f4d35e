"""Anderson acceleration of the fixed point xi = -(tau/b) (d Exp_y)^* grad sE(Exp_y xi)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from jko.checks import check_integer
from jko.schemes.minimizers.base import (
    AbstractMinimizer,
    Minimization,
    Secants,
    check_rtol,
    default_rtol,
    judge,
    shortened,
)
from jko.schemes.minimizers.newton_blocks import newton_blocks
from jko.schemes.objective import StepProblem, Trial
from jko.status import Status

__all__ = ["Anderson"]

_CAP = 0.9
_SAME_TAU = 1e-6
# Heads that are finished are left out where that saves a quarter of a pass, and so many pairs.
_FINISHED_SHARE = 0.25
_CPU_PAIRS = 250_000
_DEVICE_PAIRS = 100_000_000

# Numbers of groups, and what their images and defects changed by, (g, 1, n, d).
_Pair = tuple[list[int], Tensor, Tensor]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class Anderson(AbstractMinimizer):
    """Anderson acceleration (Anderson 1965; type II of Fang and Saad 2009), safeguarded.

    The defect of the fixed point is preconditioned by one Newton block per particle, from second moments of the pass
    at xi = 0. Least squares weighted by w b, one coefficient set per head, secant columns normalized, secant pairs of
    the previous step reused, |xi| capped below 0.9 pi. It is fast for steps in the range of the flow and diverges for
    large tau: it then leaves after a few bad passes, and the scheme's fallback takes over.

    Heads of a lifted metric that meet the tolerance keep their displacement, and the pass is made for the others
    alone, where this saves more than it costs. Such a pass counts as k / H, k of H heads being left.

    Args:
        rtol: relative residual that counts as solved; None means 1e-8 in float64 and 1e-5 in float32.
        memory: number of secant pairs of this step.
        carry: number of secant pairs taken over from the previous step.
        newton: precondition by Newton blocks.
        max_passes: passes over the pairs, of all heads or some, before it gives up.
        patience: passes without progress before it gives up.
    """

    rtol: float | None
    memory: int
    carry: int
    newton: bool
    max_passes: int
    patience: int

    def __init__(
        self,
        rtol: float | None = None,
        *,
        memory: int = 8,
        carry: int = 5,
        newton: bool = True,
        max_passes: int = 60,
        patience: int = 5,
    ) -> None:
        object.__setattr__(self, "rtol", check_rtol(rtol))
        object.__setattr__(self, "memory", check_integer(memory, "memory", least=1))
        object.__setattr__(self, "carry", check_integer(carry, "carry", least=0))
        object.__setattr__(self, "newton", bool(newton))
        object.__setattr__(self, "max_passes", check_integer(max_passes, "max_passes", least=1))
        object.__setattr__(self, "patience", check_integer(patience, "patience", least=1))

    def tolerance(self, dtype: torch.dtype) -> float:
        return default_rtol(dtype) if self.rtol is None else self.rtol

    @property
    def wants_curvature(self) -> bool:
        return self.newton

    def minimize(
        self, problem: StepProblem, origin: Trial, guess: Tensor | None = None, secants: Secants | None = None
    ) -> Minimization:
        blocks = newton_blocks(problem, origin) if self.newton else None
        history = _History.begin(problem, self.memory, self._carried(problem, origin, secants))
        pairs: list[_Pair] = []
        best, trial, passes, bad = origin, origin, 0, 0
        if guess is not None:
            # The old measure, which may be stationary itself, is not an answer to the question asked.
            best = trial = problem.evaluate(shortened(guess, problem, _CAP))
            passes = 1
        image, defect = _mapped(problem, trial, blocks)
        part, groups, finished = problem, list(range(origin.xi.shape[0])), list[tuple[list[int], Trial]]()
        work = passes * len(groups)
        while trial.finite and trial.residual > problem.rtol and passes < self.max_passes and bad < self.patience:
            rest = _unfinished(part, trial)
            if len(rest) < len(groups):
                done = sorted(set(range(len(groups))).difference(rest))
                finished.append(([groups[k] for k in done], trial.selected(done)))
                groups, part, history = [groups[k] for k in rest], part.heads(rest), history.selected(rest)
                best, trial, image, defect = best.selected(rest), trial.selected(rest), image[rest], defect[rest]
                blocks = None if blocks is None else blocks[rest]
            trial, passes = part.evaluate(shortened(history.mixed(image, defect), part, _CAP)), passes + 1
            work += len(groups)
            bad = bad + 1 if not trial.residual < 0.9 * best.residual else 0
            best = trial if trial.residual < best.residual else best
            if trial.finite:
                new_image, new_defect = _mapped(part, trial, blocks)
                pairs.append((groups, (new_image - image)[:, None], (new_defect - defect)[:, None]))
                history = history.extended(*pairs[-1][1:])
                image, defect = new_image, new_defect
        best = Trial.joined([*finished, (groups, best)]) if finished else best
        status, detail = judge(problem, origin, best)
        if status is Status.NOT_CONVERGED and not trial.finite:
            detail = f"{detail}; left at a point that is not finite"
        kept = _secants(pairs[-self.carry :], origin.xi, problem.tau) if self.carry and status.ok else None
        return Minimization(status, best, work / origin.xi.shape[0], detail, kept)

    def _carried(self, problem: StepProblem, origin: Trial, secants: Secants | None) -> tuple[Tensor, Tensor] | None:
        """Secant pairs of the previous step, moved into the tangent spaces of this one; None where they do not fit."""
        if secants is None or self.carry == 0 or abs(secants.tau - problem.tau) > _SAME_TAU * problem.tau:
            return None
        shape = origin.xi.shape
        if secants.images.shape[:1] + secants.images.shape[2:] != shape or secants.images.dtype != origin.xi.dtype:
            return None
        y, newest = problem.measure.points, slice(-self.carry, None)
        images, defects = secants.images[:, newest], secants.defects[:, newest]
        return problem.manifold.project_vector(y, images), problem.manifold.project_vector(y, defects)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _History:
    """Secant pairs on one ring of memory: the oldest pair makes room for the newest.

    `columns` holds the defect differences weighted by (w b)^(1/2) and normalized, `images` the image differences
    divided by the same norms, `gram` the inner products of the columns. Products take vectors as rows from the left,
    which is several times faster for many heads than columns from the right.
    """

    weight: Tensor
    images: Tensor
    columns: Tensor
    gram: Tensor
    count: int

    @staticmethod
    def begin(problem: StepProblem, memory: int, carried: tuple[Tensor, Tensor] | None) -> _History:
        mobility, d = problem.mobility, problem.measure.d
        groups, n = mobility.shape
        size = memory + (0 if carried is None else carried[0].shape[1])
        weight = (problem.measure.weights * mobility).to(torch.float64).sqrt()
        device, wide = mobility.device, torch.float64
        history = _History(
            weight=weight[..., None].expand(groups, n, d).reshape(groups, 1, n * d),
            images=torch.empty(groups, size, n * d, dtype=mobility.dtype, device=device),
            columns=torch.empty(groups, size, n * d, dtype=wide, device=device),
            gram=torch.empty(groups, size, size, dtype=wide, device=device),
            count=0,
        )
        return history if carried is None else history.extended(*carried)

    def extended(self, images: Tensor, defects: Tensor) -> _History:
        """Take in pairs of differences (G, c, n, d)."""
        size, added = self.images.shape[1], images.shape[1]
        start, extended = self.count % size, replace(self, count=self.count + added)
        columns = defects.flatten(-2) * self.weight
        scales = torch.linalg.vector_norm(columns, dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        new = torch.div(columns, scales, out=self.columns.narrow(1, start, added))
        torch.div(images.flatten(-2), scales, out=self.images.narrow(1, start, added))
        products = torch.bmm(new, extended.live(self.columns).mT)
        # The ridge keeps columns that have become parallel from blowing up the coefficients.
        products.diagonal(start, 1, 2).add_(10 * torch.finfo(self.images.dtype).eps)
        extended.live(self.gram.narrow(1, start, added), 2).copy_(products)
        extended.live(self.gram.narrow(2, start, added)).copy_(products.mT)
        return extended

    def selected(self, groups: list[int]) -> _History:
        """The pairs of these groups."""
        index = torch.tensor(groups, device=self.gram.device)
        return _History(
            weight=self.weight.index_select(0, index),
            images=self.images.index_select(0, index),
            columns=self.columns.index_select(0, index),
            gram=self.gram.index_select(0, index),
            count=self.count,
        )

    def live(self, ring: Tensor, axis: int = 1) -> Tensor:
        """The part of a ring that is in use."""
        return ring.narrow(axis, 0, min(self.count, self.images.shape[1]))

    def mixed(self, image: Tensor, defect: Tensor) -> Tensor:
        """Combine the images so that the combined defect is smallest in L^2(w b), group by group."""
        if self.count == 0:
            return image
        flat = (image.shape[0], 1, -1)
        right = torch.bmm(defect.reshape(flat) * self.weight, self.live(self.columns).mT)
        coefficients = torch.linalg.solve_ex(self.live(self.live(self.gram), 2), right.mT)[0].mT.to(image.dtype)
        mixture = torch.baddbmm(image.reshape(flat), coefficients, self.live(self.images), alpha=-1)
        return mixture.view(image.shape)


def _mapped(problem: StepProblem, trial: Trial, blocks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Image and defect of the preconditioned fixed-point map at a trial."""
    image = problem.fixed_point(trial)
    defect = image - trial.xi
    if blocks is None:
        return image, defect
    step = (blocks @ defect[..., None])[..., 0]
    return trial.xi + step, step


def _unfinished(problem: StepProblem, trial: Trial) -> list[int]:
    """The groups to go on with: those above the tolerance, or all where leaving out the others would not pay."""
    every = range(len(trial.residuals))
    rest = [group for group in every if trial.residuals[group][0] > problem.rtol]
    saved = len(every) - len(rest)
    least = _CPU_PAIRS if trial.xi.device.type == "cpu" else _DEVICE_PAIRS
    pays = saved >= _FINISHED_SHARE * len(every) and saved * problem.measure.n**2 >= least
    return rest if pays else list(every)


def _secants(pairs: list[_Pair], like: Tensor, tau: float) -> Secants | None:
    """The pairs of all groups, shape (G, c, n, d); a group that was finished has zeros, which the next step ignores."""
    if not pairs:
        return None
    images, defects = like.new_zeros(2, like.shape[0], len(pairs), *like.shape[1:])
    for k, (groups, image, defect) in enumerate(pairs):
        rows = groups if len(groups) < like.shape[0] else slice(None)
        images[rows, k], defects[rows, k] = image[:, 0], defect[:, 0]
    return Secants(images, defects, tau)
