"""Would a particle, or part of it, rather be elsewhere? The potential test over the whole manifold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.checks import check_integer
from jko.energies import PotentialField
from jko.manifolds import Sphere
from jko.measure import ParticleMeasure
from jko.schemes.checks.base import AbstractCheck, CheckResult, FinishedStep

__all__ = ["Splitting"]

_NUDGE = 1e-2


@final
@dataclass(frozen=True, slots=True, eq=False)
class Splitting(AbstractCheck):
    """Minimize psi_i(z) = phi(z) + b_i d^2(z, y_i) / (2 tau) over all z, phi the first variation at the new measure.

    The gains psi_i(x_i) - min psi_i tell whether mass would leave its particle. `splitting_gain` is the largest,
    `frank_wolfe_gap` their mean with the particle weights. Where the energy is convex in the measure (sign = +1 and
    positive semidefinite D), the gap bounds J - inf J over ALL measures: a Frank-Wolfe bound. For coincident tokens,
    D = beta I and sign = +1 a gain appears exactly when tau beta e^beta > b.

    The minima are sought from a lattice on the sphere, the particles themselves and points nudged off them, each
    followed by descent; a global search by sampling, not a proof in more than three dimensions.

    Args:
        samples: lattice points on the sphere.
        iterations: descent steps from the best starts.
    """

    samples: int = 1000
    iterations: int = 60

    def __post_init__(self) -> None:
        check_integer(self.samples, "samples", least=1)
        check_integer(self.iterations, "iterations", least=1)

    @property
    def name(self) -> str:
        return "splitting"

    @property
    def columns(self) -> tuple[str, ...]:
        return ("splitting_gain", "frank_wolfe_gap")

    def examine(self, step: FinishedStep) -> CheckResult:
        search = _Search.of(step)
        found = search.starts(self.samples)
        if found is None:
            unknown = dict.fromkeys(self.columns, math.nan)
            return CheckResult(None, unknown, 0, "this energy is known at its particles only")
        gains = search.own - torch.stack([search.descend(z, self.iterations) for z in found]).amin(0)
        gains = gains.clamp_min(0.0)
        weights = step.objective.movement.weights.to(torch.float64)
        gain = float(gains[:, weights > 0].max())
        gap = float(((gains * weights).sum(-1).cpu() * step.shares).sum())
        slack = _slack(step, search)
        passed = gain <= slack
        detail = "" if passed else f"mass would gain {gain:.3g} per unit by leaving its particle"
        # The search among common places has as many targets as places, each descent as many as particles.
        common = 1 + self.samples / step.trial.xi.shape[1]
        passes = common + len(found) * (1 + self.iterations)
        return CheckResult(passed, {"splitting_gain": gain, "frank_wolfe_gap": gap}, passes, detail)


def _slack(step: FinishedStep, search: _Search) -> float:
    """Gain that rounding and the accuracy of the step explain."""
    eps = float(torch.finfo(step.trial.xi.dtype).eps)
    potential = float(step.trial.potential.abs().max())
    cost = float((search.own - step.trial.potential).abs().max())
    return 64 * eps * potential + 8 * step.objective.rtol * cost


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The functions psi of one step: G groups, one function per particle."""

    step: FinishedStep
    factor: Tensor
    own: Tensor

    @staticmethod
    def of(step: FinishedStep) -> _Search:
        objective, trial = step.objective, step.trial
        factor = (objective.movement.mobility / (2 * objective.tau)).to(torch.float64)
        distance = objective.manifold.squared_distance(trial.points, objective.movement.base)
        return _Search(step, factor, trial.potential.to(torch.float64) + factor * distance)

    def field(self, targets: Tensor) -> PotentialField | None:
        """First variation at targets (G, m, d)."""
        objective = self.step.objective
        moved = ParticleMeasure.of_checked(self.step.trial.points, objective.movement.weights)
        return objective.energy.first_variation_at(targets, moved, objective.t)

    def starts(self, samples: int) -> list[Tensor] | None:
        """Starting points (G, n, d): the best place for every particle among common ones, and two nudges off it."""
        x, manifold = self.step.trial.points, self.step.objective.manifold
        common = torch.cat([x, _lattice(self.step, samples).expand(x.shape[0], -1, -1)], 1)
        field = self.field(common)
        if field is None:
            return None
        best = torch.stack([self._best(g, common[g], field.value[g]) for g in range(x.shape[0])])
        basis = manifold.tangent_basis(x)
        if basis.shape[-1] == 0:
            return [best]
        # To both sides of one line on the circle, whose basis has one vector.
        first = manifold.exp(x, _NUDGE * basis[..., 0])
        last = manifold.exp(x, -_NUDGE * basis[..., -1])
        return [best, first, last]

    def _best(self, g: int, common: Tensor, value: Tensor) -> Tensor:
        """For every particle the common point with the smallest psi, a few thousand particles at a time."""
        y, rows = self.step.fields.measure.points, []
        for start in range(0, y.shape[0], 1024):
            i = slice(start, start + 1024)
            distance = self.step.objective.manifold.squared_distance(common[None], y[i, None])
            rows.append(common[(value + self.factor[g, i, None] * distance).argmin(-1)])
        return torch.cat(rows)

    def descend(self, z: Tensor, iterations: int) -> Tensor:
        """Riemannian descent with a step length per particle; the value never rises. Returns psi, shape (G, n)."""
        manifold = self.step.objective.manifold
        length = 0.5 / self.factor
        z = z.to(self.step.trial.xi.dtype)
        value, gradient = self._psi(z)
        for _ in range(iterations):
            move = -length[..., None] * gradient
            size = move.square().sum(-1, keepdim=True).sqrt()
            candidate = manifold.exp(z, (move * (0.5 / size.clamp_min(0.5))).to(z.dtype))
            new_value, new_gradient = self._psi(candidate)
            better = new_value <= value
            z = torch.where(better[..., None], candidate, z)
            gradient = torch.where(better[..., None], new_gradient, gradient)
            value = torch.where(better, new_value, value)
            length = torch.where(better, 1.6 * length, 0.35 * length)
        return value

    def _psi(self, z: Tensor) -> tuple[Tensor, Tensor]:
        manifold, y = self.step.objective.manifold, self.step.fields.measure.points
        field = self.field(z)
        assert field is not None
        value = field.value.to(torch.float64) + self.factor * manifold.squared_distance(z, y)
        # At a cut point the distance has no gradient; such a place is never a minimum, so any direction will do.
        cut = manifold.squared_distance(z, y) >= (math.pi - 1e-6) ** 2 if isinstance(manifold, Sphere) else None
        near = z if cut is None else torch.where(cut[..., None], y.expand_as(z), z)
        pull = -2 * self.factor[..., None] * manifold.log(near, y.expand_as(z))
        return value, manifold.project_vector(z, field.gradient) + pull


def _lattice(step: FinishedStep, samples: int) -> Tensor:
    """Points spread over the sphere (evenly for d = 2 and 3), or over the old particles' surroundings in R^d."""
    y = step.fields.measure.points
    d, index = y.shape[-1], torch.arange(samples, dtype=torch.float64, device=y.device)
    if not isinstance(step.objective.manifold, Sphere):
        spread = (y - y.mean(0)).square().sum(-1).mean().sqrt() + 1.0
        return (y.mean(0) + 2 * spread * step.objective.manifold.random_point((samples,), d, seed=0).to(y)).to(y.dtype)
    if d == 2:
        angle = 2 * math.pi * index / samples
        return torch.stack([angle.cos(), angle.sin()], -1).to(y.dtype)
    if d == 3:
        height = 1 - (2 * index + 1) / samples
        angle = math.pi * (1 + math.sqrt(5)) * index
        ring = (1 - height.square()).sqrt()
        return torch.stack([ring * angle.cos(), ring * angle.sin(), height], -1).to(y.dtype)
    return step.objective.manifold.random_point((samples,), d, seed=0).to(y)
