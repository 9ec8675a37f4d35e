"""Lemma 4.12: is G a strong upper gradient of E? For one head it is; for several only the weighted slope is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko import weighted
from jko.manifolds import Sphere
from jko.measure import ParticleMeasure
from jko.metrics import WeightedWasserstein
from jko.verify.base import Curve, Finding, FindingFigure, Measurement, Relation, Setting, Statement, Verdict, decide
from jko.verify.evidence import judge
from jko.verify.problems import SIGNS, attention_flow, bounded_heads, tokens

__all__ = ["STATEMENTS", "Cloud", "TwoTokens", "upper_gradient", "weighted_slope"]

_NORM = 2.0
_STEP = 1e-2


@final
@dataclass(frozen=True, slots=True, eq=False)
class TwoTokens:
    """Orthogonal unit tokens e_1, e_2 with scalar heads beta_h I: every quantity by hand.

    With K_h = 1 and DK_h = beta_h / 2 along the circle, m_h = (e^{beta_h} + 1) / 2.

    Args:
        betas: one number a head.
    """

    betas: tuple[float, ...]

    @property
    def measure(self) -> ParticleMeasure:
        """The two tokens."""
        return ParticleMeasure(torch.eye(2, dtype=torch.float64))

    @property
    def heads(self) -> Tensor:
        """The head matrices, shape (H, 2, 2)."""
        return torch.tensor(self.betas, dtype=torch.float64)[:, None, None] * torch.eye(2, dtype=torch.float64)

    @property
    def b(self) -> float:
        """Effective mobility."""
        return 1 / self._mean([2 / (math.exp(beta) + 1) for beta in self.betas])

    @property
    def squared_paper_slope(self) -> float:
        """G^2 = b (mean beta_h / (e^{beta_h} + 1))^2."""
        return self.b * self._normalized**2

    @property
    def dissipation(self) -> float:
        """-dE/dt along the transformer: mean(beta_h / 2) mean(beta_h / (e^{beta_h} + 1))."""
        return self._mean(self.betas) / 2 * self._normalized

    @property
    def squared_slope(self) -> float:
        """The weighted metric's own: (mean beta_h / 2)^2 / b."""
        return (self._mean(self.betas) / 2) ** 2 / self.b

    @property
    def _normalized(self) -> float:
        return self._mean([beta / (math.exp(beta) + 1) for beta in self.betas])

    @staticmethod
    def _mean(values: tuple[float, ...] | list[float]) -> float:
        return sum(values) / len(values)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Cloud:
    """A measure and heads, with curves through the measure along which E is differentiated by differences.

    Attributes:
        measure: the particles.
        D: heads, shape (H, d, d).
        sign: of the energy.
    """

    measure: ParticleMeasure
    D: Tensor
    sign: int

    @property
    def fields(self) -> tuple[Tensor, Tensor]:
        """Tangent head gradients s DK_h, shape (H, n, d), and mobilities m_h, shape (H, n)."""
        heads = attention_flow(self.D, WeightedWasserstein(), self.sign).energy.evaluate(self.measure, 0.0).heads
        assert heads is not None
        return Sphere().project_vector(self.measure.points, heads.gradient), heads.mobility

    @property
    def paper_slope(self) -> float:
        """G of Lemma 4.12."""
        return float(weighted.upper_gradient(*self.fields, self.measure.weights))

    @property
    def squared_slope_excess(self) -> float:
        """Slope^2 - G^2 of the weighted metric from the covariance C: sum w b (|C|^2 - 2 <C, mean_h(DK_h / m_h)>)."""
        gradient, mobility = self.fields
        C = weighted.covariance_defect(gradient, mobility)
        V = (gradient / mobility[..., None]).mean(0)
        density = C.square().sum(-1) - 2 * (C * V).sum(-1)
        return float((self.measure.weights * weighted.effective_mobility(mobility) * density).sum())

    @property
    def steepest(self) -> Tensor:
        """v_B = -(1/b) mean_h DK_h, along which E falls fastest for its weighted speed."""
        gradient, mobility = self.fields
        return -gradient.mean(0) / weighted.effective_mobility(mobility)[:, None]

    @property
    def transformer(self) -> Tensor:
        """v_T = -mean_h(DK_h / m_h)."""
        gradient, mobility = self.fields
        return -(gradient / mobility[..., None]).mean(0)

    def rate(self, v: Tensor) -> tuple[float, float]:
        """|dE/ds| over the weighted speed along the geodesics of v, and what the differences may be off by."""
        energy = attention_flow(self.D, WeightedWasserstein(), self.sign).energy
        speed = float(weighted.metric_speed(v, self.fields[1], self.measure.weights))
        v = v / speed

        def quotient(h: float) -> float:
            ends = [self.measure.moved(Sphere().exp(self.measure.points, side * h * v)) for side in (1, -1)]
            return (float(energy.value(ends[0], 0.0)) - float(energy.value(ends[1], 0.0))) / (2 * h)

        coarse, fine = quotient(_STEP), quotient(_STEP / 2)
        rounding = 4 * float(torch.finfo(torch.float64).eps) * abs(float(energy.value(self.measure, 0.0))) / _STEP
        return abs((4 * fine - coarse) / 3), abs(fine - coarse) + rounding


def _clouds(setting: Setting, count: int, heads: int) -> list[Cloud]:
    """Random clouds, unequal weights in every other one, both signs in turn."""
    return [
        Cloud(
            tokens(16, setting.seed + k, weighted=k % 2 == 1),
            bounded_heads(heads, setting.seed + 50 + k, _NORM),
            SIGNS[k // 2 % 2],
        )
        for k in range(count)
    ]


def _random_direction(cloud: Cloud, seed: int) -> Tensor:
    x = cloud.measure.points
    return Sphere().project_vector(x, Sphere().random_point((cloud.measure.n,), cloud.measure.d, seed))


def _bounded(cloud: Cloud, bound: float, v: Tensor, name: str) -> Measurement:
    """The claim that E changes along v no faster than the bound times the speed."""
    rate, slack = cloud.rate(v)
    return Measurement(f"|dE/ds| / (G |u'|) along v_B, {name}", rate / bound, 1.0, Relation.AT_MOST, slack / bound)


def _worst(measurements: list[Measurement], name: str) -> Measurement:
    worst = max(measurements, key=lambda m: m.value - m.tolerance)
    return Measurement(name, worst.value, worst.reference, worst.relation, worst.tolerance)


def upper_gradient(setting: Setting) -> tuple[Finding, ...]:
    """Lemma 4.12, first for one head, then for several."""
    return _one_head(setting), _several_heads(setting)


def _one_head(setting: Setting) -> Finding:
    measured = []
    for sign in SIGNS:
        clouds = [cloud for cloud in _clouds(setting, setting.choose(8, 40), 1) if cloud.sign == sign]
        random = [
            _bounded(cloud, cloud.paper_slope, _random_direction(cloud, setting.seed + k), "")
            for k, cloud in enumerate(clouds)
        ]
        along = [_bounded(cloud, cloud.paper_slope, cloud.transformer, "") for cloud in clouds]
        name = f"sign = {sign:+d}, H = 1"
        sharp = min(along, key=lambda m: m.value)
        measured += [
            _worst(random, f"largest |dE/ds| / (G |u'|) along random curves, {name}"),
            _worst(along, f"largest |dE/ds| / (G |u'|) along the transformer, {name}"),
            Measurement(
                f"smallest |dE/ds| / (G |u'|) along the transformer, {name}",
                sharp.value,
                1.0,
                Relation.EQUAL,
                sharp.tolerance,
            ),
        ]
    return Finding(
        key="upper-gradient-one-head",
        statement="Lemma 4.12 (H = 1)",
        claim="|dE/ds| <= G |u'| along every curve, for one head",
        tested="derivatives of E by central differences along geodesics from random clouds, equal and unequal weights",
        measurements=tuple(measured),
        verdict=decide(tuple(measured)),
        explanation="One head: G is the slope of the weighted metric, attained along the transformer.",
        figure=_figure(
            "Change of E along curves against G in $W_{m,2}$, both signs, H = 1", _clouds(setting, 8, 1), setting
        ),
    )


def _several_heads(setting: Setting) -> Finding:
    two = TwoTokens((1.0, 3.0))
    pair = Cloud(two.measure, two.heads, 1)
    claims = [_bounded(pair, pair.paper_slope, pair.steepest, "two tokens, D = (I, 3I)")]
    rate, slack = pair.rate(pair.steepest)
    predictions = [
        _exact("b by hand, two tokens", float(weighted.effective_mobility(pair.fields[1])[0]), two.b),
        _exact("G^2 by hand, two tokens", pair.paper_slope**2, two.squared_paper_slope),
        Measurement(
            "weighted slope^2 by differences, two tokens", rate**2, two.squared_slope, Relation.EQUAL, 2 * rate * slack
        ),
    ]
    reported = []
    for count in setting.choose((4,), (4, 16, 100)):
        clouds = _clouds(setting, setting.choose(8, 40), count)
        bounds = [_bounded(cloud, cloud.paper_slope, cloud.steepest, "") for cloud in clouds]
        claims.append(_worst(bounds, f"largest |dE/ds| / (G |u'|) along v_B over {len(clouds)} clouds, H = {count}"))
        margins = [_margin(cloud) for cloud in clouds]
        worst = max(margins, key=lambda m: abs(m.value - (m.reference or 0.0)) - m.tolerance)
        predictions.append(
            Measurement(
                f"slope^2 - G^2 against the covariance over heads, H = {count}",
                worst.value,
                worst.reference,
                Relation.EQUAL,
                worst.tolerance,
            )
        )
        broken = sum(not bound.passed for bound in bounds) / len(bounds)
        reported.append(Measurement(f"share of clouds where the bound is broken, H = {count}", broken))
    return Finding(
        key="upper-gradient",
        statement="Lemma 4.12 (H >= 2)",
        claim="|dE/ds| <= G |u'| along every curve, for several heads",
        tested="derivatives of E by central differences along v_B, two tokens by hand and random clouds",
        measurements=(*claims, *predictions, *reported),
        verdict=judge(tuple(claims), tuple(predictions)),
        explanation=(
            f"Two tokens e_1, e_2, D = (I, 3I): E falls along v_B by {math.sqrt(two.squared_slope):.6f} a unit length, "
            f"but G = {math.sqrt(two.squared_paper_slope):.6f} (b = {two.b:.6f}, G^2 = {two.squared_paper_slope:.6f}, "
            f"slope^2 = {two.squared_slope:.6f}). Always slope^2 - G^2 = sum w b (|C|^2 - 2 <C, mean_h(DK_h/m_h)>), "
            "with C the covariance over heads of 1/m_h and DK_h."
        ),
        figure=_figure(
            "Change of E along curves against G in $W_{m,2}$, both signs, H = 4", _clouds(setting, 8, 4), setting
        ),
        expected=Verdict.FAILS,
    )


def _margin(cloud: Cloud) -> Measurement:
    rate, slack = cloud.rate(cloud.steepest)
    found = rate**2 - cloud.paper_slope**2
    return Measurement("", found, cloud.squared_slope_excess, Relation.EQUAL, 2 * rate * slack + 1e-12)


def _exact(name: str, value: float, reference: float) -> Measurement:
    """A number that differs from its closed form by rounding only."""
    return Measurement(name, value, reference, Relation.EQUAL, 64 * float(torch.finfo(torch.float64).eps) * abs(value))


def weighted_slope(setting: Setting) -> tuple[Finding, ...]:
    """The repair of Lemma 4.12: the slope of the weighted metric bounds |dE/ds| for every number of heads."""
    measured = []
    for count in setting.choose((4,), (1, 4, 16, 100)):
        clouds = _clouds(setting, setting.choose(8, 40), count)
        slopes = [
            float(attention_flow(cloud.D, WeightedWasserstein(), cloud.sign).slope(cloud.measure, 0.0))
            for cloud in clouds
        ]
        pairs = list(zip(clouds, slopes, strict=True))
        directions = {
            "random curves": [
                _bounded(cloud, slope, _random_direction(cloud, setting.seed + k), "")
                for k, (cloud, slope) in enumerate(pairs)
            ],
            "the transformer": [_bounded(cloud, slope, cloud.transformer, "") for cloud, slope in pairs],
            "v_B": [_bounded(cloud, slope, cloud.steepest, "") for cloud, slope in pairs],
        }
        measured += [
            _worst(bounds, f"largest |dE/ds| / (slope |u'|) along {name}, H = {count}")
            for name, bounds in directions.items()
        ]
        sharp = min(directions["v_B"], key=lambda m: m.value)
        measured.append(
            Measurement(
                f"smallest |dE/ds| / (slope |u'|) along v_B, H = {count}",
                sharp.value,
                1.0,
                Relation.EQUAL,
                sharp.tolerance,
            )
        )
    return (
        Finding(
            key="upper-gradient-weighted",
            statement="Lemma 4.12, weighted slope",
            claim="|dE/ds| <= slope |u'| with slope^2 = sum w |mean_h DK_h|^2 / b, for every number of heads",
            tested="derivatives of E by central differences along random curves, the transformer and v_B",
            measurements=tuple(measured),
            verdict=decide(tuple(measured)),
            explanation="Attained along v_B = -(1/b) mean_h DK_h, the velocity that the W_{m,2} step follows.",
        ),
    )


def _figure(title: str, clouds: list[Cloud], setting: Setting) -> FindingFigure:
    """One point per cloud and curve: the rate of E per unit weighted length, over G."""
    curves = []
    bounds = tuple(cloud.paper_slope for cloud in clouds)
    for name in ("v_B", "the transformer", "random curves"):
        ratios = []
        for k, (cloud, bound) in enumerate(zip(clouds, bounds, strict=True)):
            random = _random_direction(cloud, setting.seed + k)
            v = {"v_B": cloud.steepest, "the transformer": cloud.transformer}.get(name, random)
            ratios.append(cloud.rate(v)[0] / bound)
        curves.append(Curve(f"along {name}", bounds, tuple(ratios), joined=False))
    ends = (min(bounds), max(bounds))
    curves.append(Curve("upper gradient: at most 1", ends, (1.0, 1.0), reference=True))
    return FindingFigure(
        title,
        "$G$ of Lemma 4.12 (energy per unit weighted length), random clouds",
        "$|dE/ds| \\; / \\; (G\\, |u'|)$",
        tuple(curves),
    )


STATEMENTS = (
    Statement("upper-gradient", "Lemma 4.12: strong upper gradient", upper_gradient),
    Statement("upper-gradient-weighted", "Lemma 4.12 with the weighted slope", weighted_slope),
)
