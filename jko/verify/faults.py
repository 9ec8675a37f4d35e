"""Faults planted into finished minimizing-movement steps, built from public pieces."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from jko import weighted
from jko.errors import JKOError
from jko.flows import GradientFlow
from jko.heads import AbstractHeads, ConstantHeads
from jko.manifolds import Sphere
from jko.measure import ParticleMeasure
from jko.metrics import WeightedWasserstein
from jko.numerics import row_sum
from jko.schemes import JKO, Anderson
from jko.verify.base import Setting
from jko.verify.problems import attention_flow, smooth_heads, tokens

__all__ = ["LOOSE", "Fault", "Maker", "Problem", "Taken", "faults", "honest"]

LOOSE = 1e-2
_BETA = 1.0
_ANGLE = 0.3


@final
@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """A step as it was left behind: from y to Exp_y(xi), and the flow that it says it followed.

    Attributes:
        flow: the step's own energy and metric, faulty ones included: checks of a faulty program run on these.
        measure: y.
        points: where it ended, shape (n, d).
        xi: displacements, shape (n, d).
        tau: step size.
        t: END time.
    """

    flow: GradientFlow
    measure: ParticleMeasure
    points: Tensor
    xi: Tensor
    tau: float
    t: float

    @property
    def mobility(self) -> Tensor:
        """The step's own mobility at y and the end time, shape (n,)."""
        return self.flow.metric.mobility(self.flow.fields(self.measure, self.t))

    @property
    def squared_distance(self) -> float:
        """Its own transport cost sum w b |xi|^2."""
        return float((self.measure.weights * self.mobility * row_sum(self.xi.square())).sum())

    @property
    def objective(self) -> float:
        """Its own sE(x, t) + W^2 / (2 tau)."""
        moved = self.measure.moved(self.points)
        return float(self.flow.energy.value(moved, self.t)) + self.squared_distance / (2 * self.tau)


Maker = Callable[[ParticleMeasure, float, float], Taken]
"""Makes a step from y to the END time t with step size tau."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What the steps are for: W_{m,2}, sign = +1.

    Attributes:
        heads: the head path.
        measure: the starting measure, equal weights.
        t: end time of the step that is examined.
        tau: its step size.
    """

    heads: AbstractHeads
    measure: ParticleMeasure
    t: float
    tau: float

    @property
    def flow(self) -> GradientFlow:
        """The right flow."""
        return attention_flow(self.heads, WeightedWasserstein(), 1)

    def gradient(self, x: Tensor, t: float) -> Tensor:
        """Ambient grad E = mean_h sum_j w_j e^{<x, D_h x_j>} D_h x_j from the plain formula, symmetric heads."""
        D = self.heads.at(t)
        return torch.einsum("hij,hab,jb->hia", self._kernel(x, t), D, x).mean(0) / x.shape[0]

    def mobility(self, x: Tensor, t: float) -> Tensor:
        """The harmonic mean b over heads from the plain formula."""
        return 1 / (1 / self._kernel(x, t).mean(-1)).mean(0)

    def velocity(self, x: Tensor, t: float) -> Tensor:
        """v_B = -(1/b) grad E from the plain formulas."""
        return -Sphere().project_vector(x, self.gradient(x, t)) / self.mobility(x, t)[:, None]

    def _kernel(self, x: Tensor, t: float) -> Tensor:
        return torch.einsum("ia,hab,jb->hij", x, self.heads.at(t), x).exp()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """A fault by name, with the problem on which it is planted.

    Attributes:
        name: what is wrong.
        problem: what the steps are for.
        make: makes the steps.
        frozen: whether the flow of a step holds heads of that step only, which a smaller step must not look up anew.
    """

    name: str
    problem: Problem
    make: Maker
    frozen: bool = False

    def smaller(self, taken: Taken, tau: float) -> Taken:
        """The same step with another tau: measure, heads and mobility stay those of the finished step."""
        make = honest(taken.flow) if self.frozen else self.make
        return make(taken.measure, taken.t, tau)


def honest(flow: GradientFlow, rtol: float | None = None, guess: ParticleMeasure | None = None) -> Maker:
    """Return the library's own step along a flow."""
    scheme = JKO(1.0, minimizer=Anderson(rtol))

    def make(y: ParticleMeasure, t: float, tau: float) -> Taken:
        step = scheme.step(flow, y, t - tau, tau, guess=guess)
        if not step.info.status.ok:
            raise JKOError(f"the step to plant a fault in failed: {step.info.status.value}, {step.info.detail}")
        return Taken(flow, y, step.measure.points, step.info.displacement, tau, t)

    return make


def faults(setting: Setting) -> tuple[Fault, ...]:
    """Return every fault; the first two are none: the right step on both problems."""
    tokens_problem = Problem(smooth_heads(3, setting.seed, 1.5), tokens(8, setting.seed), t=0.5, tau=0.1)
    circle = Problem(ConstantHeads(_circle_head()), _token(_ANGLE), t=100.0, tau=100.0)
    right = honest(tokens_problem.flow)
    return (
        Fault("no fault, 8 tokens", tokens_problem, right),
        Fault("no fault, one token and a huge step", circle, honest(circle.flow)),
        Fault("wrong sign", tokens_problem, honest(attention_flow(tokens_problem.heads, WeightedWasserstein(), -1))),
        Fault("wrong mobility (arithmetic mean over heads)", tokens_problem, honest(_wrong_mobility(tokens_problem))),
        Fault("energy at t_{k-1}", tokens_problem, _early(tokens_problem), frozen=True),
        Fault("coupling broken (two particles swapped)", tokens_problem, _swapped(right)),
        Fault(f"inner tolerance loosened to {LOOSE:g}", tokens_problem, honest(tokens_problem.flow, LOOSE)),
        Fault("wrong branch (|xi| beyond the cut locus)", circle, _branch(circle, beyond=True)),
        Fault("wrong branch (a minimum with a larger objective)", circle, _branch(circle, beyond=False)),
    )


def _wrong_mobility(problem: Problem) -> GradientFlow:
    def arithmetic(measure: ParticleMeasure, t: float) -> Tensor:
        return weighted.head_mobility(measure.points, problem.heads.at(t), measure.weights).mean(0)

    return attention_flow(problem.heads, WeightedWasserstein(arithmetic), 1)


def _early(problem: Problem) -> Maker:
    def make(y: ParticleMeasure, t: float, tau: float) -> Taken:
        frozen = ConstantHeads(problem.heads.at(t - tau))
        return honest(attention_flow(frozen, WeightedWasserstein(), 1))(y, t, tau)

    return make


def _swapped(right: Maker) -> Maker:
    def make(y: ParticleMeasure, t: float, tau: float) -> Taken:
        taken = right(y, t, tau)
        order = torch.arange(y.n)
        # The two closest particles: the least that can be exchanged.
        gaps = Sphere().squared_distance(y.points[:, None], y.points[None]) + 100 * torch.eye(y.n)
        i, j = divmod(int(gaps.argmin()), y.n)
        order[i], order[j] = j, i
        points = taken.points[order]
        return Taken(taken.flow, y, points, Sphere().log(y.points, points), tau, t)

    return make


def _circle_head() -> Tensor:
    return _BETA * torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))[None]


def _token(angle: float) -> ParticleMeasure:
    return ParticleMeasure(torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64))


def _branch(problem: Problem, *, beyond: bool) -> Maker:
    """A step of one token on the circle to another minimum of its objective, where there is one; else the right one.

    E = e^{beta cos(2 angle)} / 2 has its minima opposite each other. Going the other way is a minimum with a larger
    objective; going farther than pi leads to a point where the tangent cost is no distance.
    """
    from scipy.optimize import brentq

    right = honest(problem.flow)

    def make(y: ParticleMeasure, t: float, tau: float) -> Taken:
        taken = right(y, t, tau)
        x = y.points[0]
        start = math.atan2(float(x[1]), float(x[0]))
        b = math.exp(_BETA * math.cos(2 * start))

        def slope(move: float) -> float:
            angle = start + move
            return b * move / tau - _BETA * math.sin(2 * angle) * math.exp(_BETA * math.cos(2 * angle))

        low, high = (-2 * math.pi, -math.pi) if beyond else (-math.pi, -0.1)
        grid = torch.linspace(low, high, 400, dtype=torch.float64).tolist()
        rising = [(a, c) for a, c in pairwise(grid) if slope(a) < 0 <= slope(c)]
        if not rising:
            return taken
        move = brentq(slope, *rising[-1], xtol=1e-15)
        tangent = torch.tensor([[-math.sin(start), math.cos(start)]], dtype=torch.float64)
        xi = move * tangent
        return Taken(taken.flow, y, Sphere().exp(y.points, xi), xi, tau, t)

    return make
