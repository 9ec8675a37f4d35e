"""A sufficient condition for the step to have one stationary point near the old measure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.energies import AttentionEnergy
from jko.manifolds import Euclidean, Sphere
from jko.schemes.checks.base import AbstractCheck, CheckResult, FinishedStep

__all__ = ["Uniqueness"]

_LIMIT = -1.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class Uniqueness(AbstractCheck):
    """Is the step strictly convex on the balls that hold its stationary points near y?

    A stationary point with every |xi_i| <= R has |xi_i| <= tau G_i(R) / b_i, where
    G_i(R) = mean_h |D_h| (m_h + m_h^T)(y_i) / 2 times the growth of the kernel over the ball; R is the smallest fixed
    point of that map. On the balls of these radii R_i the energy is bent downwards at most by
    lambda_i = mean_h |D_h| (m_h + m_h^T)(y_i) times the growth (|D| + |D|^2 in place of |D| for sign = -1), and
    d^2/2 is R cot R convex on the sphere, 1 in R^d: tau lambda_i < b_i R_i cot R_i for all i makes the stationary
    point unique there. The column `uniqueness_margin` is the smallest 1 - tau lambda_i / (b_i R_i cot R_i), cut at -1;
    positive means shown. Applies to a single attention energy; costs no pass.
    """

    @property
    def name(self) -> str:
        return "uniqueness"

    @property
    def columns(self) -> tuple[str, ...]:
        return ("uniqueness_margin",)

    def examine(self, step: FinishedStep) -> CheckResult:
        energy, objective, heads = step.flow.energy, step.objective, step.fields.evaluation.heads
        sphere = isinstance(objective.manifold, Sphere)
        if not isinstance(energy, AttentionEnergy) or heads is None or not (sphere or _flat(step)):
            detail = "the uniqueness condition is known for one attention energy on the sphere or in R^d"
            return CheckResult(None, {"uniqueness_margin": math.nan}, 0, detail)
        lifted = step.flow.metric.lifted
        norms = torch.linalg.matrix_norm(energy.heads.at(objective.t), ord=2)
        masses = 2 * energy.sign * heads.first_variation.to("cpu", torch.float64)
        reach = 1.0 if sphere else float(step.fields.measure.points.square().sum(-1).amax().sqrt())
        bounds = _Bounds(norms, masses, heads.shares, energy.sign, reach, sphere)
        mobility = objective.movement.mobility.to("cpu", torch.float64)
        radius = bounds.radius(objective.tau, mobility, lifted=lifted)
        largest = float(step.trial.xi.square().sum(-1).amax().sqrt())
        if math.isinf(radius) or largest > radius * (1 + objective.rtol):
            detail = "the stationary points are not confined to a ball in which the step is convex"
            return CheckResult(False, {"uniqueness_margin": _LIMIT}, 0, detail)
        radii = objective.tau * bounds.gradient(radius, lifted=lifted) / mobility
        convexity = torch.where(radii > 0, radii / torch.tan(radii), torch.ones_like(radii)) if sphere else 1.0
        inside = radii < math.pi / 2 if sphere else torch.ones_like(radii, dtype=torch.bool)
        ratio = objective.tau * bounds.bending(radius, lifted=lifted) / (mobility * convexity)
        margin = float(torch.where(inside, 1 - ratio, torch.full_like(ratio, _LIMIT)).min())
        passed = margin > 0
        detail = "" if passed else f"the step need not have a unique stationary point (margin {margin:.3g})"
        return CheckResult(passed, {"uniqueness_margin": max(margin, _LIMIT)}, 0, detail)


def _flat(step: FinishedStep) -> bool:
    return isinstance(step.objective.manifold, Euclidean)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Bounds:
    """Bounds over balls of radius R around the old particles, per head or averaged over heads."""

    norms: Tensor
    masses: Tensor
    shares: Tensor
    sign: int
    reach: float
    sphere: bool

    def _growth(self, radius: float) -> Tensor:
        """Largest factor by which a kernel of each head grows when both its points move by at most R."""
        change = 2 * radius if self.sphere else 2 * radius * self.reach + radius**2
        return torch.exp(self.norms * change)[:, None] * self.masses

    def _combined(self, values: Tensor, *, lifted: bool) -> Tensor:
        return values if lifted else (self.shares @ values)[None]

    def gradient(self, radius: float, *, lifted: bool) -> Tensor:
        """Bound of |grad E| per unit mass, shape (G, n)."""
        reach = self.reach if self.sphere else self.reach + radius
        return self._combined(self.norms[:, None] * self._growth(radius) / 2 * reach, lifted=lifted)

    def bending(self, radius: float, *, lifted: bool) -> Tensor:
        """Bound of the negative curvature of sE per unit mass, shape (G, n)."""
        reach = self.reach if self.sphere else self.reach + radius
        factor = self.norms + (self.norms * reach).square() if self.sign == -1 else self.norms
        return self._combined(factor[:, None] * self._growth(radius), lifted=lifted)

    def radius(self, tau: float, mobility: Tensor, *, lifted: bool) -> float:
        """Smallest R with R = max_i tau G_i(R) / b_i; inf where there is none short of pi."""
        radius = 0.0
        for _ in range(200):
            new = float((tau * self.gradient(radius, lifted=lifted) / mobility).max())
            if not new < math.pi:
                return math.inf
            if new - radius <= 1e-12 * new:
                return new * (1 + 1e-9)
            radius = new
        return math.inf
