"""The discrete balance (147) along noisy heads: what its Ito form leaves over, and what exact time parts leave over."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jko.driver import solve
from jko.heads import OrnsteinUhlenbeckHeads
from jko.manifolds import Sphere
from jko.measure import ParticleMeasure
from jko.metrics import HeadwiseWasserstein
from jko.random import symmetric_increments
from jko.schemes import ExplicitEuler
from jko.verify.base import Curve, Finding, FindingFigure, Measurement, Relation, Setting, Statement, decide
from jko.verify.problems import SIGNS, attention_flow, bounded_heads, tokens

__all__ = ["STATEMENTS", "NoisyPaths", "Residuals", "discrete_balance"]

_T1 = 0.5
_NORM = 1.0
_RATE = 2 * (_NORM + _NORM**2)
_SIGMA2 = 0.25
_TOKENS = 6
_STANDARD_ERRORS = 4.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """What the two balances leave over at time T, one number a path, energy units.

    Attributes:
        ito: E(T) - E(0) - sum of drift, Ito, dissipation and martingale terms of (147), shape (P,).
        exact: E(T) - E(0) - sum of exact time parts + sum of tau G^2, shape (P,).
    """

    ito: NDArray[np.float64]
    exact: NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class NoisyPaths:
    """Explicit steps along many Ornstein-Uhlenbeck paths of one head, from plain formulas, all paths at once.

    Attributes:
        points: initial particles of equal weight, shape (n, d).
        D0: initial head, shape (1, d, d).
        noise: increments dW_sym on the finest grid, shape (P, K, d, d).
        sign: of the energy.
    """

    points: Tensor
    D0: Tensor
    noise: Tensor
    sign: int

    @staticmethod
    def draw(setting: Setting, paths: int, steps: int, sign: int) -> NoisyPaths:
        """Draw `paths` paths with `steps` steps up to T."""
        noise = [symmetric_increments(setting.seed, path, 1, 3, steps, _T1 / steps)[:, 0] for path in range(paths)]
        points = tokens(_TOKENS, setting.seed).points
        return NoisyPaths(points, bounded_heads(1, setting.seed, _NORM), torch.stack(noise), sign)

    def residuals(self, stride: int) -> Residuals:
        """Step with `stride` steps of the finest grid at a time."""
        paths, steps = self.noise.shape[:2]
        fine, tau, half = _T1 / steps, _T1 * stride / steps, self.sign / 2
        identity, D = torch.eye(3, dtype=torch.float64), self.D0.expand(paths, -1, -1)
        x = self.points.expand(paths, -1, -1)
        start = half * self._kernel(x, D).mean((-2, -1))
        ito = exact = -start
        for k in range(0, steps, stride):
            kernel = self._kernel(x, D)
            v = -self.sign * Sphere().project_vector(x, (kernel @ x @ D.mT) / kernel.sum(-1, keepdim=True))
            dissipation = tau * (kernel.mean(-1) * v.square().sum(-1)).mean(-1)
            first = torch.einsum("pij,pia,pjb->pab", kernel, x, x) / kernel[0].numel()
            spread = (kernel * (1 + (x @ x.mT).square())).mean((-2, -1))
            drift, noise, later = identity - D, torch.zeros_like(D), D
            for step in range(k, k + stride):
                increment = math.sqrt(2 * _SIGMA2) * self.noise[:, step]
                later, noise = later + fine * (identity - later) + increment, noise + increment
            growth = half * (first * (tau * drift + noise)).sum((-2, -1)) + half * tau * _SIGMA2 / 2 * spread
            time_part = half * (self._kernel(x, later) - kernel).mean((-2, -1))
            ito, exact = ito - growth + dissipation, exact - time_part + dissipation
            x, D = Sphere().project_point(x + tau * v), later
        end = half * self._kernel(x, D).mean((-2, -1))
        return Residuals((ito + end).numpy(), (exact + end).numpy())

    @staticmethod
    def _kernel(x: Tensor, D: Tensor) -> Tensor:
        return (x @ D @ x.mT).exp()


def _order(steps: tuple[float, ...], residuals: list[NDArray[np.float64]]) -> tuple[float, float]:
    """Order of the root mean square in the step, and its standard error over the paths."""
    x = np.log(np.asarray(steps))
    factors = (x - x.mean()) / np.square(x - x.mean()).sum()
    squares = np.square(np.stack(residuals))
    means = squares.mean(1)
    influence = factors @ (squares / means[:, None] - 1) / 2
    return float(factors @ np.log(means) / 2), float(influence.std(ddof=1) / math.sqrt(influence.size))


def discrete_balance(setting: Setting) -> tuple[Finding, ...]:
    """(147) per path: its Ito terms close to sqrt(dt), exact time parts to dt."""
    paths, finest = setting.choose((200, 64), (800, 256))
    strides = (8, 4, 2, 1)
    steps = tuple(_T1 * stride / finest for stride in strides)
    measured, curves = [], []
    for sign in SIGNS:
        drawn = NoisyPaths.draw(setting, paths, finest, sign)
        found = [drawn.residuals(stride) for stride in strides]
        ito, exact = ([getattr(each, name) for each in found] for name in ("ito", "exact"))
        # Both carry an error of order dt, relative to which the next is rate dt; the Ito form adds one of sqrt(dt).
        share = float(np.square(exact[0]).mean() / np.square(ito[0]).mean()) / 2
        next_term = _RATE * math.sqrt(steps[0] * steps[-1])
        for name, theory, residuals, bias in (
            ("Ito terms of (147)", 0.5, ito, share),
            ("exact time parts", 1.0, exact, next_term),
        ):
            order, error = _order(steps, residuals)
            slack = _STANDARD_ERRORS * error + bias
            measured.append(Measurement(f"order in dt, {name}, sign = {sign:+d}", order, theory, Relation.EQUAL, slack))
            rms = tuple(float(np.sqrt(np.square(each).mean())) for each in residuals)
            at = f"root mean square residual at dt = {steps[-1]:g}, {name}, sign = {sign:+d}"
            measured.append(Measurement(at, rms[-1]))
            curves.append(Curve(f"{name}, sign = {sign:+d}", steps, rms))
        measured.append(_same_as_records(drawn, found[-1], sign))
        mean = found[-1].ito.mean()
        slack = _STANDARD_ERRORS * float(found[-1].ito.std(ddof=1)) / math.sqrt(paths) + curves[-1].y[-1]
        measured.append(
            Measurement(f"mean over {paths} paths of (147), sign = {sign:+d}", float(mean), 0.0, Relation.EQUAL, slack)
        )
    for order, below in ((0.5, curves[0].y), (1.0, curves[1].y)):
        guide = tuple(0.6 * below[-1] * (step / steps[-1]) ** order for step in steps)
        curves.append(Curve(f"slope {order:g}", steps, guide, reference=True))
    return (
        Finding(
            key="ledger",
            statement="Balance (147)",
            claim="E(T) - E(0) = drift + Ito - int G^2 + martingale along noisy heads, for one head",
            tested=f"{paths} Ornstein-Uhlenbeck paths, H = 1, explicit steps, one path on every grid",
            measurements=tuple(measured),
            verdict=decide(tuple(measured)),
            explanation=(
                "The Ito form closes in the mean, but only to sqrt(dt) on a single path: it replaces (dW)^2 by dt. "
                "With exact time parts E(u, t_k) - E(u, t_{k-1}) the same run closes to dt, path by path: that tells a "
                "time-step error from an error of the theory."
            ),
            figure=FindingFigure(
                "Energy balance along Ornstein-Uhlenbeck heads, H = 1",
                "step size dt (time)",
                f"RMS over {paths} paths of the residual at T = {_T1:g} (energy)",
                tuple(curves),
                x_log=True,
                y_log=True,
            ),
        ),
    )


def _same_as_records(drawn: NoisyPaths, found: Residuals, sign: int) -> Measurement:
    """The ledger that `ExplicitEuler` records along the first path against the plain formulas."""
    steps = drawn.noise.shape[1]
    heads = OrnsteinUhlenbeckHeads.from_increments(drawn.D0, drawn.noise[0][:, None], dt=_T1 / steps, sigma2=_SIGMA2)
    flow = attention_flow(heads, HeadwiseWasserstein(), sign)
    run = solve(flow, ParticleMeasure(drawn.points), ExplicitEuler(_T1 / steps, ledger=True), t1=_T1)
    rows = run.records
    growth = rows.ledger_drift + rows.ledger_ito - rows.ledger_dissipation + rows.ledger_martingale
    left = float(run.states.energy[-1] - run.states.energy[0] - growth.sum())
    name = f"residual of a run's recorded ledger against plain formulas, first path, sign = {sign:+d}"
    return Measurement(name, left, float(found.ito[0]), Relation.EQUAL, 1e-15 * steps * 100)


STATEMENTS = (Statement("ledger", "Balance (147) along noisy heads", discrete_balance),)
