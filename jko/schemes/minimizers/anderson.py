"""Anderson acceleration of the fixed point xi = -(tau/b) (d Exp_y)^* grad sE(Exp_y xi)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from jko.checks import check_integer
from jko.schemes.minimizers.base import AbstractMinimizer, Search, check_rtol, default_rtol
from jko.schemes.minimizers.judge import shorten
from jko.schemes.minimizers.newton_blocks import newton_blocks
from jko.schemes.objective import StepObjective, Trial
from jko.storable import storable

__all__ = ["Anderson", "Secants"]

_CAP = 0.9
"""Share of the injectivity radius that |xi| may not exceed."""
_SAME_TAU = 1e-6
"""Relative difference of step sizes up to which secant pairs serve again."""
_FINISHED_SHARE = 0.25
"""Groups that are finished are left out where they are this share of all, and so many pairs: measured on 2 cores."""
_CPU_PAIRS = 250_000
_DEVICE_PAIRS = 100_000_000

# Numbers of groups, and what their images and defects changed by, (g, 1, n, d).
_Pair = tuple[list[int], Tensor, Tensor]


@storable
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

    rtol: float | None = None
    memory: int = field(default=8, kw_only=True)
    carry: int = field(default=5, kw_only=True)
    newton: bool = field(default=True, kw_only=True)
    max_passes: int = field(default=60, kw_only=True)
    patience: int = field(default=5, kw_only=True)

    def __post_init__(self) -> None:
        check_rtol(self.rtol)
        for name, least in (("memory", 1), ("carry", 0), ("max_passes", 1), ("patience", 1)):
            check_integer(getattr(self, name), name, least=least)

    def tolerance(self, dtype: torch.dtype) -> float:
        return default_rtol(self.rtol, dtype)

    @property
    def wants_curvature(self) -> bool:
        return self.newton

    def init(self, search: Search, guess: Tensor | None, memory: Any) -> _Iterate:
        objective, origin = search.objective, search.origin
        blocks = newton_blocks(objective, origin) if self.newton else None
        history = _History.begin(objective, self.memory, self._carried(objective, origin, memory))
        trial = origin if guess is None else search.evaluate(shorten(guess, objective, _CAP))
        image, defect = _map(objective, trial, blocks)
        return _Iterate(trial, image, defect, blocks, history)

    def step(self, search: Search, state: _Iterate) -> bool:
        rtol = search.objective.rtol
        if not state.trial.finite or state.trial.residual <= rtol or state.bad >= self.patience:
            return False
        if len(search.groups) > 1:
            rest = _unfinished(search.objective, state.trial)
            if len(rest) < len(search.groups):
                search.set_aside(rest, state.trial)
                state.select(rest)
        objective, best = search.objective, search.best
        trial = search.evaluate(shorten(state.history.mix(state.image, state.defect), objective, _CAP))
        state.bad = state.bad + 1 if not trial.residual < 0.9 * best.residual else 0
        state.trial = trial
        if trial.finite:
            image, defect = _map(objective, trial, state.blocks)
            pair = (list(search.groups), (image - state.image)[:, None], (defect - state.defect)[:, None])
            state.pairs.append(pair)
            state.history.extend(*pair[1:])
            state.image, state.defect = image, defect
        return True

    def result(self, search: Search, state: _Iterate) -> tuple[Secants | None, str]:
        remark = "" if state.trial.finite else "left at a point that is not finite"
        pairs = state.pairs[-self.carry :] if self.carry else []
        return _secants(pairs, search.origin.xi, search.objective.tau), remark

    def _carried(self, objective: StepObjective, origin: Trial, secants: Any) -> tuple[Tensor, Tensor] | None:
        """Secant pairs of the previous step, moved into the tangent spaces of this one; None where they do not fit."""
        tau = objective.tau
        if not isinstance(secants, Secants) or self.carry == 0 or abs(secants.tau - tau) > _SAME_TAU * tau:
            return None
        shape = origin.xi.shape
        if secants.images.shape[:1] + secants.images.shape[2:] != shape or secants.images.dtype != origin.xi.dtype:
            return None
        z, newest = objective.movement.base, slice(-self.carry, None)
        z = z if z.ndim == 2 else z[:, None]
        images, defects = secants.images[:, newest], secants.defects[:, newest]
        return objective.manifold.project_vector(z, images), objective.manifold.project_vector(z, defects)


@final
@dataclass(slots=True, eq=False)
class _Iterate:
    """Where an acceleration stands: the newest trial with its image and defect, and how it came there."""

    trial: Trial
    image: Tensor
    defect: Tensor
    blocks: Tensor | None
    history: _History
    pairs: list[_Pair] = field(default_factory=list)
    bad: int = 0

    def select(self, rest: list[int]) -> None:
        """Go on with these groups."""
        self.trial, self.history = self.trial.members(rest), self.history.members(rest)
        self.image, self.defect = self.image[rest], self.defect[rest]
        self.blocks = None if self.blocks is None else self.blocks[rest]


@final
@dataclass(slots=True, eq=False)
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
    count: int = 0

    @staticmethod
    def begin(objective: StepObjective, memory: int, carried: tuple[Tensor, Tensor] | None) -> _History:
        mobility, d = objective.movement.mobility, objective.movement.base.shape[-1]
        groups, n = mobility.shape
        size = memory + (0 if carried is None else carried[0].shape[1])
        weight = (objective.movement.weights * mobility).to(torch.float64).sqrt()
        device, wide = mobility.device, torch.float64
        history = _History(
            weight=weight[..., None].expand(groups, n, d).reshape(groups, 1, n * d),
            images=torch.empty(groups, size, n * d, dtype=mobility.dtype, device=device),
            columns=torch.empty(groups, size, n * d, dtype=wide, device=device),
            gram=torch.empty(groups, size, size, dtype=wide, device=device),
        )
        if carried is not None:
            history.extend(*carried)
        return history

    def extend(self, images: Tensor, defects: Tensor) -> None:
        """Take in pairs of differences (G, c, n, d)."""
        size, added = self.images.shape[1], images.shape[1]
        start = self.count % size
        self.count += added
        live = min(self.count, size)
        columns = defects.flatten(-2) * self.weight
        scales = torch.linalg.vector_norm(columns, dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        new = torch.div(columns, scales, out=self.columns[:, start : start + added])
        torch.div(images.flatten(-2), scales, out=self.images[:, start : start + added])
        products = torch.bmm(new, self.columns[:, :live].mT)
        # The ridge keeps columns that have become parallel from blowing up the coefficients.
        products.diagonal(start, 1, 2).add_(10 * torch.finfo(self.images.dtype).eps)
        self.gram[:, start : start + added, :live] = products
        self.gram[:, :live, start : start + added] = products.mT

    def members(self, groups: list[int]) -> _History:
        """The pairs of these groups."""
        index = torch.tensor(groups, device=self.gram.device)
        return _History(
            weight=self.weight.index_select(0, index),
            images=self.images.index_select(0, index),
            columns=self.columns.index_select(0, index),
            gram=self.gram.index_select(0, index),
            count=self.count,
        )

    def mix(self, image: Tensor, defect: Tensor) -> Tensor:
        """Combine the images so that the combined defect is smallest in L^2(w b), group by group."""
        if self.count == 0:
            return image
        live, flat = min(self.count, self.images.shape[1]), (image.shape[0], 1, -1)
        right = torch.bmm(defect.reshape(flat) * self.weight, self.columns[:, :live].mT)
        coefficients = torch.linalg.solve_ex(self.gram[:, :live, :live], right.mT)[0].mT.to(image.dtype)
        mixture = torch.baddbmm(image.reshape(flat), coefficients, self.images[:, :live], alpha=-1)
        return mixture.view(image.shape)


def _map(objective: StepObjective, trial: Trial, blocks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Image and defect of the preconditioned fixed-point map at a trial."""
    image = objective.fixed_point(trial)
    defect = image - trial.xi
    if blocks is None:
        return image, defect
    step = (blocks @ defect[..., None])[..., 0]
    return trial.xi + step, step


def _unfinished(objective: StepObjective, trial: Trial) -> list[int]:
    """The groups to go on with: those above the tolerance, or all where leaving out the others would not pay."""
    every = range(len(trial.residuals))
    rest = [group for group in every if trial.residuals[group][0] > objective.rtol]
    saved = len(every) - len(rest)
    least = _CPU_PAIRS if trial.xi.device.type == "cpu" else _DEVICE_PAIRS
    pays = saved >= _FINISHED_SHARE * len(every) and saved * trial.xi.shape[1] ** 2 >= least
    return rest if pays else list(every)


def _secants(pairs: list[_Pair], like: Tensor, tau: float) -> Secants | None:
    """The pairs of all groups, shape (G, c, n, d); a group that was finished has zeros, which the next step ignores."""
    if not pairs:
        return None
    images, defects = like.new_zeros(2, like.shape[0], len(pairs), *like.shape[1:]).unbind()
    for k, (groups, image, defect) in enumerate(pairs):
        rows = groups if len(groups) < like.shape[0] else slice(None)
        images[rows, k], defects[rows, k] = image[:, 0], defect[:, 0]
    return Secants(images, defects, tau)
