"""The second-order characterization: which modified velocity a scheme follows up to O(tau^2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.driver import Save, solve
from jko.manifolds import Sphere
from jko.measure import ParticleMeasure
from jko.metrics import AbstractMetric, Wasserstein2
from jko.schemes import ExplicitEuler
from jko.verify.base import Curve, Finding, FindingFigure, Measurement, Relation, Setting, Statement, decide
from jko.verify.orders import fit_order
from jko.verify.problems import METRICS, SIGNS, SmoothHeads, attention_flow, bounded_heads, describe, tokens
from jko.verify.study import make_jko

__all__ = ["STATEMENTS", "ModifiedVelocity", "second_order"]

_STEP = 1e-4
_PROBE = 1e-5


@final
@dataclass(frozen=True, slots=True, eq=False)
class ModifiedVelocity:
    """f0 + tau f1 of a scheme, from the plain formulas by difference quotients: an independent route.

    With f(x, y) = -s grad E(x) / b(y), y the place of the mobility, JKO has f1 = (d_1 f - d_2 f)[f0] / 2, head-wise
    f1 = mean_h d_1 f_h[f_h] - D f_T[f_T] / 2, explicit Euler f1 = -D f0[f0] / 2; moving heads add d_t f / 2 for JKO
    and subtract it for explicit Euler. Derivatives on the sphere are ambient ones, projected.

    Attributes:
        heads: symmetric and smooth in time, all of the same weight.
        metric: decides f.
        sign: of the energy.
        weights: of the particles, shape (n,).
        implicit: JKO (True) or explicit Euler (False).
    """

    heads: SmoothHeads
    metric: AbstractMetric
    sign: int
    weights: Tensor
    implicit: bool

    def parts(self, x: Tensor, y: Tensor, D: Tensor) -> Tensor:
        """f_h(x_h, y) for clouds (k, G, n, d), G = H for a lifted metric and 1 else; y has shape (k, 1, n, d)."""
        w = self.weights
        images = x @ D
        kernel = torch.exp(images @ x.mT)
        ambient = self.sign * (kernel @ (w[:, None] * images))
        gradient = ambient - (ambient * x).sum(-1, keepdim=True) * x
        mass = torch.exp((y @ D) @ y.mT) @ w
        if self.metric.lifted:
            return -gradient / mass[..., None]
        mean = -gradient.mean(-3, keepdim=True)
        if isinstance(self.metric, Wasserstein2):
            return mean
        return mean * (1 / mass).mean(-2)[..., None, :, None]

    def f0(self, x: Tensor, D: Tensor) -> Tensor:
        """The limit velocity at clouds (k, n, d)."""
        y = x[:, None]
        return self.parts(y.expand(-1, self._groups, -1, -1), y, D).mean(-3)

    def at(self, x: Tensor, t: float, taus: Tensor) -> Tensor:
        """f0 + tau f1 at clouds (k, n, d), one tau per cloud."""
        D, y = self.heads.at(t), x[:, None]
        f0 = self.f0(x, D)
        f1 = -_along(lambda z: self.f0(z, D), x, f0) / 2
        if self.implicit:
            clouds = y.expand(-1, self._groups, -1, -1).contiguous()
            parts = self.parts(clouds, y, D)
            f1 = f1 + _along(lambda z: self.parts(z, y, D), clouds, parts).mean(-3)
        rate = (self.f0(x, self.heads.at(t + _STEP)) - self.f0(x, self.heads.at(t - _STEP))) / (2 * _STEP)
        f1 = f1 + (rate if self.implicit else -rate) / 2
        return f0 + taus[:, None, None] * (f1 - (f1 * x).sum(-1, keepdim=True) * x)

    @property
    def _groups(self) -> int:
        return self.heads.num_heads if self.metric.lifted else 1

    def flow(self, x0: Tensor, taus: Tensor, t1: float, steps: int) -> Tensor:
        """Follow f0 + tau f1 by the classical Runge-Kutta method, one cloud per tau, shape (k, n, d)."""
        x, h = x0.repeat(len(taus), 1, 1), t1 / steps
        for k in range(steps):
            t = k * h
            k1 = self.at(x, t, taus)
            k2 = self.at(x + h / 2 * k1, t + h / 2, taus)
            k3 = self.at(x + h / 2 * k2, t + h / 2, taus)
            k4 = self.at(x + h * k3, t + h, taus)
            x = Sphere().project_point(x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
        return x


def _along(field: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Tensor:
    """Derivative of a field along v by a central difference: its error, about 1e-10, is multiplied by tau."""
    return (field(x + _PROBE * v) - field(x - _PROBE * v)) / (2 * _PROBE)


def second_order(setting: Setting) -> tuple[Finding, ...]:
    """JKO and explicit Euler follow f0 + tau f1 up to O(tau^2), and f0 up to O(tau)."""
    t1, counts = setting.choose((0.2, (6, 12)), (0.4, (8, 16, 32, 64)))
    n = 5
    measured, curves = [], []
    for heads, moving, sign, metric in _cases(setting):
        A = bounded_heads(heads, setting.seed, 1.0)
        path = SmoothHeads(A, bounded_heads(heads, setting.seed + 1, 1.0 if moving else 1e-300))
        flow = attention_flow(path, metric, sign)
        measure = tokens(n, setting.seed, weighted=True)
        for implicit in (True, False):
            modified = ModifiedVelocity(path, metric, sign, measure.weights, implicit)
            taus = [t1 / count for count in counts]
            # The last cloud follows f0 alone.
            ends = modified.flow(
                measure.points, torch.tensor([*taus, 0.0], dtype=torch.float64), t1, setting.choose(6, 20)
            )
            errors, plain = [], []
            for k, count in enumerate(counts):
                scheme = make_jko(taus[k]) if implicit else ExplicitEuler(taus[k])
                end = solve(flow, measure, scheme, t1=t1, save=Save(every=count)).measure(-1)
                errors.append(_distance(end, ends[k]))
                plain.append(_distance(end, ends[-1]))
            name = (
                f"{'JKO' if implicit else 'explicit Euler'}, {describe(flow)}, {'smooth' if moving else 'frozen'} heads"
            )
            measured += [
                Measurement(
                    f"order against f0 + tau f1, {name}", fit_order(taus, errors).last, 2.0, Relation.EQUAL, 0.1
                ),
                Measurement(f"order against f0, {name}", fit_order(taus, plain).last, 1.0, Relation.EQUAL, 0.1),
            ]
            if heads == 4 and sign == 1 and moving:
                curves.append(
                    Curve(f"{'JKO' if implicit else 'explicit'}, {flow.metric.title}", tuple(taus), tuple(errors))
                )
    low = 0.5 * min(curve.y[-1] for curve in curves)
    guide = tuple(low * (tau / taus[-1]) ** 2 for tau in taus)
    return (
        Finding(
            key="second-order",
            statement="Modified velocities",
            claim="JKO and explicit Euler follow their modified velocities f0 + tau f1 up to O(tau^2)",
            tested=f"{n} unequal particles on S^2 to t = {t1:g}; f1 by difference quotients of the plain formulas",
            measurements=tuple(measured),
            verdict=decide(tuple(measured)),
            explanation=(
                "Order 2 against the modified velocity and order 1 against the limit velocity alone: the test sees a "
                "wrong mobility, a wrong time and a wrong sign, which De Giorgi's identity does not."
            ),
            figure=FindingFigure(
                "Distance to the flow of $f_0 + \\tau f_1$, sign = +1, H = 4, smooth heads",
                r"step size $\tau$",
                "RMS distance at the final time (radians)",
                (*curves, Curve("slope 2", tuple(taus), guide, reference=True)),
                x_log=True,
                y_log=True,
            ),
        ),
    )


def _cases(setting: Setting) -> list[tuple[int, bool, int, AbstractMetric]]:
    """Number of heads, whether they move, sign, metric."""
    if setting.quick:
        _, weighted, headwise = METRICS
        return [(4, True, 1, metric) for metric in METRICS] + [(4, True, -1, headwise), (1, False, -1, weighted)]
    return [(h, moving, s, metric) for h in (1, 4) for moving in (True, False) for s in SIGNS for metric in METRICS]


def _distance(measure: ParticleMeasure, points: Tensor) -> float:
    return float((measure.weights @ Sphere().squared_distance(measure.points, points)).sqrt())


STATEMENTS = (Statement("second-order", "Modified velocities of JKO and explicit Euler", second_order),)
