"""Theorem 5.5 and Theta^H -> Theta: stability in the weights, and refinement of the heads, with rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jko.driver import Save, solve
from jko.flows import GradientFlow
from jko.heads import AbstractHeads, OrnsteinUhlenbeckHeads, OscillatingHeads
from jko.initial import initial_heads
from jko.manifolds import Sphere
from jko.measure import ParticleMeasure
from jko.metrics import HeadwiseWasserstein, WeightedWasserstein
from jko.random import symmetric_increments
from jko.schemes import ExplicitEuler
from jko.solution import Solution
from jko.transport import squared_wasserstein
from jko.verify.base import Curve, Finding, FindingFigure, Measurement, Relation, Setting, Statement, decide
from jko.verify.orders import fit_order
from jko.verify.problems import SIGNS, attention_flow, bounded_heads, describe, tokens
from jko.verify.stability import sup_rate

__all__ = ["STATEMENTS", "HeadDraws", "head_draws", "spread_phases", "weights_stability"]

_T1 = 0.4
_STEP = 0.02
_NORM = 1.0
_STANDARD_ERRORS = 4.0


def _farthest(one: Solution, other: Solution) -> float:
    """The largest exact W_2 over the saved times after the start."""
    pairs = ((one.measure(k), other.measure(k)) for k in range(1, len(one.times)))
    return max(math.sqrt(squared_wasserstein(mu, nu, Sphere())) for mu, nu in pairs)


def _noisy(setting: Setting, epsilon: float, count: int) -> OrnsteinUhlenbeckHeads:
    """Heads with initial law and noise perturbed by epsilon, along the same replayed noise."""
    steps = round(_T1 / _STEP)
    noise = symmetric_increments(setting.seed, 0, count, 3, steps, _STEP)
    D0 = bounded_heads(count, setting.seed, _NORM) + epsilon * bounded_heads(count, setting.seed + 9, _NORM)
    return OrnsteinUhlenbeckHeads.from_increments(D0, noise, dt=_STEP, sigma2=0.5 * (1 + epsilon) ** 2)


def weights_stability(setting: Setting) -> tuple[Finding, ...]:
    """Theorem 5.5: perturbed weights, same noise; the runs converge, with order 1 in the perturbation."""
    epsilons = setting.choose((0.1, 0.05, 0.025), (0.2, 0.1, 0.05, 0.025, 0.0125))
    measure = tokens(setting.choose(12, 30), setting.seed)
    measured, curves = [], []
    for count, metric in ((1, HeadwiseWasserstein()), (4, HeadwiseWasserstein()), (4, WeightedWasserstein())):
        for sign in SIGNS:

            def run(
                heads: AbstractHeads, metric: HeadwiseWasserstein | WeightedWasserstein = metric, sign: int = sign
            ) -> tuple[GradientFlow, Solution]:
                flow = attention_flow(heads, metric, sign)
                return flow, solve(flow, measure, ExplicitEuler(_STEP), t1=_T1, save=Save(every=5))

            flow, limit = run(_noisy(setting, 0.0, count))
            distances = tuple(_farthest(run(_noisy(setting, epsilon, count))[1], limit) for epsilon in epsilons)
            rate = max(sup_rate(_noisy(setting, 0.0, count).at(t)) for t in (0.0, _T1 / 2, _T1))
            # The flow amplifies what is quadratic in the perturbation at most by its growth over [0, T].
            slack = epsilons[-1] * (1 + rate * _T1)
            name = describe(flow)
            measured += [
                Measurement(f"order in eps, {name}", fit_order(epsilons, distances).last, 1.0, Relation.EQUAL, slack),
                Measurement(f"sup W_2(u^eps, u) / eps at eps = {epsilons[-1]:g}, {name}", distances[-1] / epsilons[-1]),
            ]
            curves.append(Curve(name, epsilons, distances))
    guide = tuple(0.6 * min(curve.y[-1] for curve in curves) * e / epsilons[-1] for e in epsilons)
    curves.append(Curve("slope 1", epsilons, guide, reference=True))
    return (
        Finding(
            key="weights-stability",
            statement="Thm 5.5",
            claim="W_2(u^eps, u) -> 0 as the weights converge",
            tested="Ornstein-Uhlenbeck heads with initial matrices and noise strength off by eps, same noise replayed",
            measurements=tuple(measured),
            verdict=decide(tuple(measured)),
            explanation="The distance is of order eps, path by path, for the transformer and for v_B.",
            figure=FindingFigure(
                "Perturbed weights, same noise",
                "perturbation eps",
                "largest $W_2(u^{eps}_t, u_t)$ (radians)",
                tuple(curves),
                x_log=True,
                y_log=True,
            ),
        ),
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class HeadDraws:
    """Flows along many independent draws of H frozen heads, all at once, from plain formulas.

    Attributes:
        points: initial particles, shape (n, d).
        seed: of the draws.
        draws: number of them.
        dynamics: "head-wise", "weighted" or "W_2".
        t1: final time.
        steps: number of Runge-Kutta steps.
    """

    points: Tensor
    seed: int
    draws: int
    dynamics: str
    t1: float
    steps: int

    def distances(self, count: int) -> NDArray[np.float64]:
        """W_2 between the flows of the draws 2k and 2k + 1 at the final time, shape (draws / 2,)."""
        seeds = range(self.seed, self.seed + self.draws)
        D = torch.stack([initial_heads(count, self.points.shape[-1], 1000 * count + seed) for seed in seeds])
        x, h = self.points.expand(self.draws, -1, -1), self.t1 / self.steps
        for _ in range(self.steps):
            k1 = self._velocity(x, D)
            k2 = self._velocity(x + h / 2 * k1, D)
            k3 = self._velocity(x + h / 2 * k2, D)
            k4 = self._velocity(x + h * k3, D)
            x = Sphere().project_point(x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
        pairs = ((ParticleMeasure(x[k]), ParticleMeasure(x[k + 1])) for k in range(0, self.draws, 2))
        return np.array([math.sqrt(squared_wasserstein(mu, nu, Sphere())) for mu, nu in pairs])

    def _velocity(self, x: Tensor, D: Tensor) -> Tensor:
        x = Sphere().project_point(x)
        image = torch.einsum("phab,pjb->phja", D, x)
        kernel = torch.einsum("pia,phja->phij", x, image).exp() / x.shape[-2]
        gradient, mobility = kernel @ image, kernel.sum(-1)[..., None]
        v = {
            "head-wise": lambda: (gradient / mobility).mean(1),
            "weighted": lambda: gradient.mean(1) * mobility.reciprocal().mean(1),
            "W_2": lambda: gradient.mean(1),
        }[self.dynamics]()
        return -Sphere().project_vector(x, v)


def _rate(counts: tuple[int, ...], samples: list[NDArray[np.float64]]) -> tuple[float, float]:
    """Slope of log RMS over log H, and its standard error; the draws of different H are independent."""
    x = np.log(np.asarray(counts, dtype=np.float64))
    factors = (x - x.mean()) / np.square(x - x.mean()).sum()
    squares = [np.square(sample) for sample in samples]
    means = np.array([square.mean() for square in squares])
    errors = np.array([square.std(ddof=1) / square.mean() / math.sqrt(square.size) for square in squares])
    return float(factors @ np.log(means) / 2), float(np.sqrt(np.square(factors * errors / 2).sum()))


def head_draws(setting: Setting) -> tuple[Finding, ...]:
    """Theta^H -> Theta for independent heads: two draws of H heads come H^(-1/2) close."""
    counts = setting.choose((8, 16, 32, 64), (8, 16, 32, 64, 128, 256))
    draws = setting.choose(40, 96)
    points = tokens(8, setting.seed).points
    others = setting.choose((), (("weighted", 0.05, 100), ("W_2", 0.02, 200)))
    measured, curves = [], []
    for dynamics, t1, steps in (("head-wise", 0.4, 8), *others):
        problem = HeadDraws(points, setting.seed, draws, dynamics, t1, steps)
        samples = [problem.distances(count) for count in counts]
        slope, error = _rate(counts, samples)
        name = f"{dynamics} flow, t = {t1:g}"
        relation = Relation.EQUAL if dynamics == "head-wise" else Relation.AT_LEAST
        # 1/H is the size of the next term.
        slack = _STANDARD_ERRORS * error + 1 / counts[0]
        measured.append(Measurement(f"exponent of H in the RMS of W_2, {name}", slope, -0.5, relation, slack))
        curves.append(Curve(name, counts, tuple(float(np.sqrt(np.square(each).mean())) for each in samples)))
    guide = tuple(curves[0].y[0] * math.sqrt(counts[0] / count) for count in counts)
    curves.append(Curve("$H^{-1/2}$", counts, guide, reference=True))
    return (
        Finding(
            key="head-refinement",
            statement="Thm 5.5, Theta^H -> Theta",
            claim="two independent draws of H heads give flows at a distance O(H^{-1/2}) in the root mean square",
            tested=f"frozen heads Z + Z^T, {draws // 2} pairs of draws, 8 tokens, sign = +1",
            measurements=tuple(measured),
            verdict=decide(tuple(measured)),
            explanation="The head-wise velocity averages bounded quantities. The weighted and W_2 velocities average "
            "e^<x,Dy> with Gaussian D, which is heavy-tailed: they may be slower.",
            figure=FindingFigure(
                "Two draws of $H$ heads $Z + Z^T$, sign = +1",
                "number of heads $H$",
                "RMS of $W_2$ between the two flows (radians)",
                tuple(curves),
                x_log=True,
                y_log=True,
            ),
        ),
    )


def spread_phases(setting: Setting) -> tuple[Finding, ...]:
    """Equally spaced phases are a trapezoidal rule for a smooth periodic law: exponential convergence in H."""
    counts = setting.choose((4, 7, 10, 13, 16), (2, 3, 4, 5, 6, 8, 10, 12, 14, 16))
    measure = tokens(setting.choose(10, 30), setting.seed)
    step = setting.choose(0.1, 0.05)

    def run(count: int, sign: int) -> Solution:
        D0 = torch.eye(3, dtype=torch.float64).expand(count, 3, 3)
        heads = OscillatingHeads(D0, dt=step, t1=3.0, phases="spread")
        flow = attention_flow(heads, HeadwiseWasserstein(), sign)
        return solve(flow, measure, ExplicitEuler(step), t1=3.0, save=Save(every=round(1 / step)))

    measured, curves = [], []
    for sign in setting.choose((1,), SIGNS):
        limit = run(32, sign)
        distances = tuple(_farthest(run(count, sign), limit) for count in counts)
        at = dict(zip(counts, distances, strict=True))
        early, late = (math.log(at[few] / at[many]) / (many - few) for few, many in ((4, 10), (10, 16)))
        power = math.log(16 / 10) / math.log(10 / 4)
        name = f"sign = {sign:+d}"
        measured += [
            Measurement(
                f"decay of log W_2 per head, late over early (exponential 1, any power {power:.2f}), {name}",
                late / early,
                (1 + power) / 2,
                Relation.AT_LEAST,
            ),
            Measurement(f"rate c of exp(-c H), H = 10 to 16, {name}", late),
            Measurement(f"W_2 to 32 heads at H = {counts[-1]}, {name}", distances[-1]),
        ]
        curves.append(Curve(f"measured, {name}", counts, distances))
        guide = tuple(at[16] * math.exp(late * (16 - count)) for count in counts)
        curves.append(Curve(f"exp(-{late:.2f} H)", counts, guide, reference=True))
    return (
        Finding(
            key="phase-refinement",
            statement="Thm 5.5, Theta^H -> Theta",
            claim="for phases 2 pi h / H the flows converge as the number of heads grows",
            tested="oscillating heads from D = I, spread phases, against 32 heads, up to t = 3",
            measurements=tuple(measured),
            verdict=decide(tuple(measured)),
            explanation=f"Exponentially fast: W_2 = {distances[-1]:.1e} already at H = {counts[-1]}.",
            figure=FindingFigure(
                "Spread phases, transformer flow",
                "number of heads $H$",
                "largest $W_2$ to 32 heads (radians)",
                tuple(curves),
                y_log=True,
            ),
        ),
    )


STATEMENTS = (
    Statement("weights-stability", "Thm 5.5: stability in the weights", weights_stability),
    Statement("head-refinement", "Theta^H -> Theta, independent heads", head_draws),
    Statement("phase-refinement", "Theta^H -> Theta, spread phases", spread_phases),
)
