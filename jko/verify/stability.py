"""Theorem 5.1, stability in the initial datum: measured growth against Groenwall exponents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko import weighted
from jko.driver import solve
from jko.heads import AbstractHeads
from jko.manifolds import Sphere
from jko.measure import ParticleMeasure
from jko.metrics import HeadwiseWasserstein
from jko.schemes import RK4
from jko.verify.base import Curve, Finding, FindingFigure, Measurement, Relation, Setting, Statement, Verdict, decide
from jko.verify.evidence import judge
from jko.verify.problems import SIGNS, attention_flow, smooth_heads, tokens

__all__ = ["STATEMENTS", "Growth", "groenwall", "second_moment", "sup_rate", "transport_rate"]

_NORM = 1.0
_STEP = 0.05
# Runge-Kutta steps of 0.05 at rates of a few units: what they miss is far below this share of a distance.
_ACCURACY = 1e-4
_EPSILONS = (1.0, 0.5, 0.25, 0.125, 0.0625)


def sup_rate(D: Tensor) -> float:
    """Return 2 mean_h (|D_h| + |D_h|^2), the rate of the W_inf estimate for symmetric heads."""
    norms: Tensor = torch.linalg.matrix_norm(D, ord=2)
    return float(2 * (norms + norms.square()).mean())


def transport_rate(D: Tensor) -> float:
    """Return mean_h (|D_h| + |D_h|^2)(1 + e^{|D_h|}), the rate of the W_2 estimate for symmetric heads."""
    norms: Tensor = torch.linalg.matrix_norm(D, ord=2)
    return float(((norms + norms.square()) * (1 + norms.exp())).mean())


@final
@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """Distances between two runs from nearby measures, particle with particle.

    The estimates hold along any coupling that moves with the particles, so the pairing of the particles will do.

    Attributes:
        t: times, shape (K + 1,).
        largest: max_i d(x_i, y_i), shape (K + 1,).
        root_mean_square: (sum_i w_i d^2(x_i, y_i))^(1/2), shape (K + 1,).
        sup_bound: exp of the integral of `sup_rate`, shape (K + 1,).
        transport_bound: exp of the integral of `transport_rate`, shape (K + 1,).
    """

    t: Tensor
    largest: Tensor
    root_mean_square: Tensor
    sup_bound: Tensor
    transport_bound: Tensor

    @staticmethod
    def along(heads: AbstractHeads, sign: int, start: ParticleMeasure, moved: Tensor, t1: float) -> Growth:
        """Follow the transformer from a measure and from the same particles elsewhere."""
        flow = attention_flow(heads, HeadwiseWasserstein(), sign)
        one, other = (solve(flow, cloud, RK4(_STEP), t1=t1) for cloud in (start, start.moved(moved)))
        d2 = Sphere().squared_distance(one.points, other.points)
        D = [heads.at(float(t)) for t in one.times]
        bounds = []
        for rate in (sup_rate, transport_rate):
            values = torch.tensor([rate(each) for each in D], dtype=torch.float64)
            zero = torch.zeros(1, dtype=torch.float64)
            bounds.append(torch.cat([zero, torch.cumulative_trapezoid(values, one.times)]).exp())
        return Growth(one.times, d2.amax(-1).sqrt(), (d2 * start.weights).sum(-1).sqrt(), *bounds)

    @property
    def ratios(self) -> tuple[float, float]:
        """The largest growth rate over the rate of the estimate, between neighboring times, of W_inf and of W_2."""
        pairs = ((self.largest, self.sup_bound), (self.root_mean_square, self.transport_bound))
        first, second = (float((d.log().diff() / bound.log().diff()).max()) for d, bound in pairs)
        return first, second


def _nudged(measure: ParticleMeasure, size: float, seed: int) -> Tensor:
    """The particles moved along random tangent vectors, the longest of length `size`."""
    noise = Sphere().random_point((measure.n,), measure.d, seed)
    tangent = Sphere().project_vector(measure.points, noise)
    return Sphere().exp(measure.points, size * tangent / tangent.norm(dim=-1).max())


def _clustered(heads: AbstractHeads, sign: int, n: int, seed: int) -> ParticleMeasure:
    """Tokens close to where the mean head pushes them apart fastest: its top eigenvector (bottom for sign = -1)."""
    vectors = torch.linalg.eigh(heads.at(0.0).mean(0)).eigenvectors
    center = ParticleMeasure(vectors[:, -1 if sign == 1 else 0].expand(n, -1))
    return center.moved(_nudged(center, 1e-2, seed))


def groenwall(setting: Setting) -> tuple[Finding, ...]:
    """Theorem 5.1 with constants: W_inf and W_2 grow no faster than their exponents say."""
    measured, curves = [], []
    t1 = setting.choose(0.3, 1.0)
    measure = tokens(setting.choose(10, 24), setting.seed, weighted=True)
    for count in setting.choose((1, 4), (1, 4, 16)):
        heads = smooth_heads(count, setting.seed, _NORM)
        for sign in SIGNS:
            name = f"sign = {sign:+d}, H = {count}"
            cluster = _clustered(heads, sign, measure.n, setting.seed)
            starts = [(cluster, 1e-3), (measure, 1e-3), (measure, 1.0), (measure, 0.1), (measure, 2.0)]
            found = [
                Growth.along(heads, sign, start, _nudged(start, size, setting.seed + k), t1)
                for k, (start, size) in enumerate(starts[: setting.choose(3, 5)])
            ]
            for which, metric in enumerate(("W_inf", "W_2")):
                worst = max(growth.ratios[which] for growth in found)
                measured.append(
                    Measurement(
                        f"largest growth rate of {metric} over that of the estimate, {name}",
                        worst,
                        1.0,
                        Relation.AT_MOST,
                        _ACCURACY,
                    )
                )
            first, factor = found[0], found[0].largest / found[0].largest[0]
            rate = math.log(float(factor[-1])) / t1
            measured.append(Measurement(f"mean growth rate of W_inf, tokens in a cluster, per unit time, {name}", rate))
            curves.append(Curve(name, tuple(first.t.tolist()), tuple(factor.tolist())))
            bound = first.sup_bound
        if count == 1:
            measured.append(_weighted_growth(setting, heads, t1))
    curves.append(Curve("bound for $W_\\infty$", tuple(first.t.tolist()), tuple(bound.tolist()), reference=True))
    return (
        Finding(
            key="groenwall",
            statement="Thm 5.1",
            claim="distances grow at most by exp int 2 mean(|D|+|D|^2) (W_inf), exp int mean((|D|+|D|^2)(1+e^|D|)) "
            "(W_2)",
            tested="pairs of transformer runs, near, far and from clusters, symmetric moving heads, both signs",
            measurements=tuple(measured),
            verdict=decide(tuple(measured)),
            explanation="Symmetric heads; in W_{m,2} the constant C1 is that of the equivalence with W_2.",
            figure=FindingFigure(
                "Growth of an initial distance of 1e-3, tokens in a cluster, transformer flow",
                "time",
                "$W_\\infty(t) / W_\\infty(0)$",
                tuple(curves),
                y_log=True,
            ),
        ),
    )


def _weighted_growth(setting: Setting, heads: AbstractHeads, t1: float) -> Measurement:
    """W_{m,2}(T) <= C2(T) / C1(0) W_{m,2}(0) exp of the W_2 rate, five particles."""
    start = tokens(5, setting.seed)
    flow = attention_flow(heads, HeadwiseWasserstein(), 1)
    moved = _nudged(start, 0.1, setting.seed)
    ends = [solve(flow, start.moved(points), RK4(_STEP), t1=t1).points[-1] for points in (start.points, moved)]
    before = weighted.weighted_distance(start.points, moved, heads.at(0.0), segments=4).value
    after = weighted.weighted_distance(ends[0], ends[1], heads.at(t1), segments=4).value
    constants = [weighted.equivalence_constants(heads.at(t)) for t in (0.0, t1)]
    growth = Growth.along(heads, 1, start, moved, t1)
    bound = float(constants[1].upper / constants[0].lower * growth.transport_bound[-1])
    return Measurement(
        "W_{m,2}(T) / W_{m,2}(0), H = 1, sign = +1", after / before, bound, Relation.AT_MOST, _ACCURACY * bound
    )


def second_moment(setting: Setting) -> tuple[Finding, ...]:
    """Is the exponent a constant times M_theta = int mean_h |D_h|^2? Not for small heads."""
    rates = []
    size, t1 = 1e-5, setting.choose(1.0, 4.0)
    for epsilon in _EPSILONS:
        D = epsilon * torch.diag(torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64))[None]
        flow = attention_flow(D, HeadwiseWasserstein(), 1)
        start = ParticleMeasure(torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64))
        moved = torch.tensor([[math.cos(size), math.sin(size), 0.0]], dtype=torch.float64)
        ends = [solve(flow, start.moved(x), RK4(_STEP), t1=t1).points[-1] for x in (start.points, moved)]
        rates.append(0.5 * math.log(float(Sphere().squared_distance(*ends)) / size**2) / t1)
    # e^{2 eps t} size may not leave the linear range; each step misses a share (2 eps tau)^5.
    slack = size**2 * math.exp(4 * t1) + (2 * _STEP) ** 4 + 1e-16 / size
    constant = rates[0] / _EPSILONS[0] ** 2
    claims = tuple(
        Measurement(
            f"growth rate with C |D|^2, C from |D| = 1, |D| = {epsilon:g}, n = 1",
            rate,
            constant * epsilon**2,
            Relation.AT_MOST,
            slack,
        )
        for epsilon, rate in zip(_EPSILONS[1:], rates[1:], strict=True)
    )
    predictions = tuple(
        measurement
        for epsilon, rate in zip(_EPSILONS, rates, strict=True)
        for measurement in (
            Measurement(f"growth rate is 2 |D|, |D| = {epsilon:g}", rate, 2 * epsilon, Relation.EQUAL, slack),
            Measurement(
                f"growth rate and 2(|D| + |D|^2), |D| = {epsilon:g}",
                rate,
                2 * (epsilon + epsilon**2),
                Relation.AT_MOST,
                slack,
            ),
        )
    )
    return (
        Finding(
            key="groenwall-second-moment",
            statement="Thm 5.1, M_theta",
            claim="the growth is governed by exp(C M_theta), M_theta = int mean |D|^2, with one constant C",
            tested="one token at e_1, D = eps diag(1, -1, 0), sign = +1",
            measurements=(*claims, *predictions),
            verdict=judge(claims, predictions),
            explanation=(
                f"The rate is 2 |D|, of first order: at |D| = {_EPSILONS[-1]:g} it is {rates[-1]:.4f}, "
                f"{rates[-1] / (constant * _EPSILONS[-1] ** 2):.0f} times C |D|^2. The exponent needs |D| + |D|^2, and "
                "2(|D| + |D|^2) is sharp as |D| -> 0."
            ),
            figure=FindingFigure(
                "One token, D = eps diag(1, -1, 0), sign = +1",
                "norm of $D$",
                "growth rate (1 / time)",
                (
                    Curve("measured", _EPSILONS, tuple(rates)),
                    Curve("2 (|D| + |D|^2)", _EPSILONS, tuple(2 * (e + e**2) for e in _EPSILONS), reference=True),
                    Curve("C |D|^2", _EPSILONS, tuple(constant * e**2 for e in _EPSILONS), reference=True),
                ),
                x_log=True,
                y_log=True,
            ),
            expected=Verdict.FAILS,
        ),
    )


STATEMENTS = (
    Statement("groenwall", "Thm 5.1: stability in the initial datum", groenwall),
    Statement("groenwall-second-moment", "Thm 5.1: exponent C M_theta", second_moment),
)
