"""The weighted metric: its equivalence with W_2 (Lemma 3.4, Prop. 3.7) and its reduced form (Lemma 3.8)."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from jko import weighted
from jko.averages import head_average
from jko.heads import AbstractHeads, ConstantHeads
from jko.manifolds import Sphere
from jko.measure import ParticleMeasure
from jko.metrics import WeightedWasserstein
from jko.transport import squared_wasserstein
from jko.verify.base import Curve, Finding, FindingFigure, Measurement, Relation, Setting, Statement, Verdict, decide
from jko.verify.orders import fit_order
from jko.verify.problems import attention_flow, bounded_heads, smooth_heads, tokens

__all__ = ["STATEMENTS", "equivalence", "lifted_minimum", "metric_derivative"]

_ROUNDING = 1e-12
_NORM = 2.0


def _distances(points: Tensor, ends: Tensor, D: Tensor, weights: Tensor | None) -> tuple[float, float]:
    """W_2 and W_{m,2} between two clouds."""
    mu, nu = ParticleMeasure(points, weights), ParticleMeasure(ends, weights)
    plain = math.sqrt(squared_wasserstein(mu, nu, Sphere()))
    return plain, weighted.weighted_distance(points, ends, D, weights, segments=8).value


def _random_pairs(setting: Setting, heads: int) -> list[tuple[float, float]]:
    """W_2 and W_{m,2} of random pairs: far apart with equal weights, close together with unequal ones."""
    D = bounded_heads(heads, setting.seed + heads, _NORM)
    pairs = []
    for k in range(setting.choose(3, 12)):
        start, end = tokens(5, setting.seed + 10 + 2 * k), tokens(5, setting.seed + 11 + 2 * k)
        pairs.append(_distances(start.points, end.points, D, None))
        # Particle i goes to particle i, which is optimal for W_2 where nobody moves far.
        near = Sphere().exp(start.points, 0.1 * Sphere().log(start.points, end.points))
        unequal = tokens(5, setting.seed, weighted=True).weights
        pairs.append(_distances(start.points, near, D, unequal))
    return pairs


def _extreme_ratio(beta: float, light: float, side: int) -> float:
    """W_{m,2} / W_2 for D = beta diag(1, 0, 0), a light particle that moves a little and a heavy one that rests.

    The light one is at e_1; the heavy one sits there too (side = +1: the mobility is largest), or opposite (-1).
    """
    D = beta * torch.diag(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))[None]
    angle = torch.tensor([0.0, 1e-3], dtype=torch.float64)
    arc = torch.stack([angle.cos(), angle.sin(), torch.zeros(2, dtype=torch.float64)], -1)
    heavy = torch.tensor([float(side), 0.0, 0.0], dtype=torch.float64)
    start, end = torch.stack([arc[0], heavy]), torch.stack([arc[1], heavy])
    weights = torch.tensor([light, 1 - light], dtype=torch.float64)
    length = weighted.weighted_distance(start, end, D, weights, segments=1).value
    return length / math.sqrt(light * 1e-3**2)


def equivalence(setting: Setting) -> tuple[Finding, ...]:
    """Prop. 3.7: C1 W_2 <= W_{m,2} <= C2 W_2, for bounded weights."""
    bracket, curves = [], []
    for heads in (1, 4):
        pairs = _random_pairs(setting, heads)
        ratios = [long / plain for plain, long in pairs]
        constants = weighted.equivalence_constants(bounded_heads(heads, setting.seed + heads, _NORM))
        lower, upper = float(constants.lower), float(constants.upper)
        name = f"W_{{m,2}} / W_2 over {len(pairs)} random pairs, H = {heads}"
        bracket += [
            Measurement(f"smallest {name}", min(ratios), lower, Relation.AT_LEAST, _ROUNDING * lower),
            Measurement(f"largest {name}", max(ratios), upper, Relation.AT_MOST, _ROUNDING * upper),
        ]
        plain, long = zip(*sorted(pairs), strict=True)
        curves.append(Curve(f"random pairs, H = {heads}", plain, long, joined=False))
        if heads == 4:
            ends = (min(plain), max(plain))
            curves.append(Curve(f"C1 W_2, C1 = {lower:.3f}", ends, (lower * ends[0], lower * ends[1]), True))
            curves.append(Curve(f"C2 W_2, C2 = {upper:.3f}", ends, (upper * ends[0], upper * ends[1]), True))
    lights = (1e-2, 1e-4, 1e-6)
    sharp = []
    for side, exact in ((1, math.exp(_NORM / 2)), (-1, math.exp(-_NORM / 2))):
        ratios = [_extreme_ratio(_NORM, light, side) for light in lights]
        # b = (1 - w) e^{+-|D|} + w e^{|D|}, and its change along the arc of length 1e-3.
        slack = lights[-1] * math.exp(2 * _NORM) + 1e-6 * _NORM
        which = "C2" if side == 1 else "C1"
        sharp.append(
            Measurement(
                f"sharpness: W_{{m,2}} / ({which} W_2), a particle of weight 1e-6 beside a heavy one",
                ratios[-1] / exact,
                1.0,
                Relation.EQUAL,
                slack,
            )
        )
    outside = Measurement(
        "one C1 for all weights: W_{m,2} / W_2 at norm(D) = 8 against C1 of norm(D) = 2",
        _extreme_ratio(8.0, 1e-8, -1),
        math.exp(-_NORM / 2),
        Relation.AT_LEAST,
    )
    measured = (*bracket, *sharp)
    verdict = decide(measured, expected_to_fail=(outside,), restriction="bounded weights")
    return (
        Finding(
            key="equivalence",
            statement="Lemma 3.4, Prop. 3.7",
            claim="C1 W_2 <= W_{m,2} <= C2 W_2 for all measures, with c <= m <= cbar",
            tested=f"random pairs on S^2, n = 5, equal and unequal weights, norm(D_h) = {_NORM:g}, H = 1 and 4",
            measurements=(*measured, outside),
            verdict=verdict,
            explanation=(
                "Holds with C1 = (mean_h e^|D_h|)^(-1/2) and C2 = (mean_h e^-|D_h|)^(-1/2), both sharp for one head. "
                "Restriction: bounded weights. C1 tends to 0 with norm(D), so no constant serves all times of an "
                "Ornstein-Uhlenbeck path, whose weights are not bounded. W_{m,2} is measured among paths of n "
                "particles, an upper bound of the infimum over all measures."
            ),
            figure=FindingFigure(
                "Equivalence of $W_{m,2}$ and $W_2$", "$W_2$ (radians)", "$W_{m,2}$ (radians)", tuple(curves)
            ),
            expected=Verdict.RESTRICTED,
        ),
    )


def lifted_minimum(setting: Setting) -> tuple[Finding, ...]:
    """Lemma 3.8: min over head velocities with mean v of mean_h sum w m_h |v_h|^2 is sum w b |v|^2."""
    measured = []
    spread: list[tuple[float, float]] = []
    for heads in (1, 4, 16):
        measure = tokens(20, setting.seed, weighted=True)
        flow = attention_flow(bounded_heads(heads, setting.seed, _NORM), WeightedWasserstein(), 1)
        v = flow.velocity(measure, 0.0)
        m = weighted.head_mobility(measure.points, bounded_heads(heads, setting.seed, _NORM), measure.weights)
        exact = float(weighted.metric_speed(v, m, measure.weights)) ** 2
        found = _least_lifted_cost(v, m, measure.weights)
        lift = weighted.horizontal_lift(v, m)
        cost = _lifted_cost(lift, m, measure.weights)
        slack = 64 * _ROUNDING * exact
        measured += [
            Measurement(f"least lifted cost by least squares, H = {heads}", found, exact, Relation.EQUAL, slack),
            Measurement(f"cost of the horizontal lift (38), H = {heads}", cost, exact, Relation.EQUAL, slack),
        ]
        if heads == 4:
            spread = _competitors(lift, m, measure.weights, exact, setting)
    cheapest = min(ratio for _, ratio in spread)
    measured.append(
        Measurement("cheapest of random competitors / reduced value, H = 4", cheapest, 1.0, Relation.AT_LEAST, 1e-12)
    )
    sizes, ratios = zip(*spread, strict=True)
    return (
        Finding(
            key="reduced-metric",
            statement="Lemma 3.8",
            claim="the lifted minimum over head velocities with mean v is sum w b |v|^2, b the harmonic mean of m_h",
            tested="20 unequal particles on S^2, H = 1, 4, 16, velocity of the weighted flow",
            measurements=tuple(measured),
            verdict=decide(tuple(measured)),
            explanation="The minimum is attained by the horizontal lift b v / m_h of eq. (38).",
            figure=FindingFigure(
                "Lifted cost over the reduced value, H = 4",
                "size of the deviation from the horizontal lift, relative",
                "lifted cost / reduced value",
                (
                    Curve("random competitors", sizes, ratios, joined=False),
                    Curve("reduced value", (min(sizes), max(sizes)), (1.0, 1.0), reference=True),
                ),
            ),
        ),
    )


def _lifted_cost(lift: Tensor, mobility: Tensor, weights: Tensor) -> float:
    return float((weights * head_average(mobility * lift.square().sum(-1))).sum())


def _least_lifted_cost(v: Tensor, mobility: Tensor, weights: Tensor) -> float:
    """Minimize over v_h = v + u_h - mean u by least squares, particle by particle: no formula for the minimizer."""
    count = mobility.shape[0]
    center = torch.eye(count, dtype=v.dtype) - 1 / count
    root = (mobility.mT / count).sqrt()
    matrix = root[..., None] * center
    right = -root[..., None] * v[:, None, :]
    u = torch.linalg.lstsq(matrix, right, driver="gelsd").solution
    lift = (v[:, None, :] + center @ u).movedim(0, 1)
    return _lifted_cost(lift, mobility, weights)


def _competitors(
    lift: Tensor, mobility: Tensor, weights: Tensor, exact: float, setting: Setting
) -> list[tuple[float, float]]:
    found = []
    for k in range(40):
        noise = Sphere().random_point(tuple(lift.shape[:-1]), lift.shape[-1], setting.seed + k)
        noise = noise - noise.mean(0)
        size = 0.02 * (k + 1)
        change = size * noise * (lift.norm() / noise.norm())
        found.append((size, _lifted_cost(lift + change, mobility, weights) / exact))
    return found


def metric_derivative(setting: Setting) -> tuple[Finding, ...]:
    """Lemma 3.8: the metric speed of a moving measure is (sum w b |v|^2)^(1/2)."""
    gaps = (0.2, 0.1, 0.05) if setting.quick else (0.2, 0.1, 0.05, 0.025)
    measured, curves = [], []
    for heads in (1, 4):
        for moving in (False, True):
            smooth = smooth_heads(heads, setting.seed, 1.0)
            path: AbstractHeads = smooth if moving else ConstantHeads(smooth.at(0.5))
            name = f"H = {heads}, {'moving' if moving else 'frozen'} heads"
            exact, ratios = _quotients(path, gaps, setting)
            errors = [abs(ratio / exact - 1) for ratio in ratios]
            extrapolated = [(4 * fine - coarse) / 3 for coarse, fine in itertools.pairwise(ratios)]
            # What the last extrapolation still changed; the error is 16 times smaller.
            slack = abs(extrapolated[-1] - extrapolated[-2]) + 1e-8 * exact
            measured += [
                Measurement(f"speed, extrapolated, {name}", extrapolated[-1], exact, Relation.EQUAL, slack),
                Measurement(f"order in h, {name}", fit_order(gaps, errors).last, 2.0, Relation.AT_LEAST, 0.1),
            ]
            curves.append(Curve(name, gaps, tuple(errors)))
    guide = tuple(0.6 * min(curve.y[-1] for curve in curves) * (h / gaps[-1]) ** 2 for h in gaps)
    return (
        Finding(
            key="metric-speed",
            statement="Lemma 3.8",
            claim="the metric derivative of a moving measure in W_{m,2} is (sum w b |v|^2)^(1/2)",
            tested="W_{m,2}(u_{t-h}, u_{t+h}) / 2h of 5 particles along geodesics of S^2 against the formula",
            measurements=tuple(measured),
            verdict=decide(tuple(measured)),
            explanation="Central difference quotients of the dynamic distance converge with order 2, or better.",
            figure=FindingFigure(
                "Metric speed in $W_{m,2}$: difference quotients",
                "half interval $h$ (time)",
                "relative error of $W_{m,2}(u_{t-h}, u_{t+h}) / 2h$",
                (*curves, Curve("slope 2", tuple(gaps), guide, reference=True)),
                x_log=True,
                y_log=True,
            ),
        ),
    )


def _quotients(path: AbstractHeads, gaps: tuple[float, ...], setting: Setting) -> tuple[float, list[float]]:
    """The exact speed at t = 0.5 and the difference quotients."""
    measure = tokens(5, setting.seed, weighted=True)
    x = measure.points
    v = attention_flow(path, WeightedWasserstein(), 1).velocity(measure, 0.5)
    m = weighted.head_mobility(x, path.at(0.5), measure.weights)
    ratios = []
    for h in gaps:

        def heads_along(s: float, h: float = h) -> Tensor:
            return path.at(0.5 + (2 * s - 1) * h)

        start, end = (Sphere().exp(x, side * h * v) for side in (-1, 1))
        D = heads_along if path.moves else path.at(0.5)
        found = weighted.weighted_distance(start, end, D, measure.weights, segments=4)
        ratios.append(found.value / (2 * h))
    return float(weighted.metric_speed(v, m, measure.weights)), ratios


STATEMENTS = (
    Statement("equivalence", "Lemma 3.4 and Prop. 3.7: W_{m,2} and W_2 are equivalent", equivalence),
    Statement("reduced-metric", "Lemma 3.8: reduced form of the lifted metric", lifted_minimum),
    Statement("metric-speed", "Lemma 3.8: metric derivative", metric_derivative),
)
