"""Where the transformer rests, and where the energy is stationary: two places for several heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch

from jko.driver import Save, solve
from jko.measure import ParticleMeasure
from jko.metrics import AbstractMetric, HeadwiseWasserstein, WeightedWasserstein
from jko.schemes import ExplicitEuler
from jko.verify.base import Curve, Finding, FindingFigure, Measurement, Relation, Setting, Statement, Verdict
from jko.verify.evidence import judge
from jko.verify.gradients import TwoTokens
from jko.verify.problems import attention_flow

__all__ = ["STATEMENTS", "Angle", "rest_of_the_transformer"]

_PAIR = TwoTokens((3.99, -1.97))
_STARTS = (0.0, 0.9, -0.6)
_STEP = 0.1


@final
@dataclass(frozen=True, slots=True, eq=False)
class Angle:
    """Two unit tokens with inner product gamma and scalar heads beta_h I: everything is a function of gamma.

    Args:
        betas: one number a head.
    """

    betas: tuple[float, ...]

    def transformer(self, gamma: float) -> float:
        """mean_h beta_h e^{beta_h gamma} / (e^{beta_h} + e^{beta_h gamma}): zero where v_T rests."""
        return self._mean([beta / (1 + math.exp(beta * (1 - gamma))) for beta in self.betas])

    def gradient(self, gamma: float) -> float:
        """mean_h beta_h e^{beta_h gamma} / 2: dE/dgamma, zero where grad E vanishes."""
        return self._mean([beta * math.exp(beta * gamma) / 2 for beta in self.betas])

    def root(self, name: str) -> float:
        """Return the zero of `transformer` or `gradient` in (-1, 1), by bisection."""
        function = {"transformer": self.transformer, "gradient": self.gradient}[name]
        low, high = -1.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if (function(middle) > 0) == (function(high) > 0) else (middle, high)
        return (low + high) / 2

    @staticmethod
    def _mean(values: list[float]) -> float:
        return sum(values) / len(values)


def _pair_at(gamma: float) -> ParticleMeasure:
    cos, sin = math.sqrt((1 + gamma) / 2), math.sqrt((1 - gamma) / 2)
    return ParticleMeasure(torch.tensor([[cos, sin], [cos, -sin]], dtype=torch.float64))


def _follow(metric: AbstractMetric, gamma: float, t1: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Times and inner products of the two tokens along the flow."""
    flow = attention_flow(_PAIR.heads, metric, 1)
    run = solve(flow, _pair_at(gamma), ExplicitEuler(_STEP), t1=t1, save=Save(every=1))
    inner = (run.points[:, 0] * run.points[:, 1]).sum(-1)
    return tuple(run.times.tolist()), tuple(inner.tolist())


def rest_of_the_transformer(setting: Setting) -> tuple[Finding, ...]:
    """Theorem 4.16, what the limits are: rest points of v_T need not be stationary for E."""
    angle, t1 = Angle(_PAIR.betas), setting.choose(20.0, 60.0)
    rest, stationary = angle.root("transformer"), angle.root("gradient")
    claims, predictions, curves = [], [], []
    for start in setting.choose(_STARTS[:2], _STARTS):
        times, inner = _follow(HeadwiseWasserstein(), start, t1)
        # What still moves over the last tenth of the run bounds what is left of an exponential approach.
        moving = abs(inner[-1] - inner[-len(inner) // 10]) + 1e-12
        slope = _slope_at(inner[-1])
        name = f"from inner product {start:g}"
        claims.append(
            Measurement(f"weighted slope of E where v_T rests, {name}", slope, 0.0, Relation.AT_MOST, 10 * moving)
        )
        predictions.append(
            Measurement(f"inner product where v_T rests, {name}", inner[-1], rest, Relation.EQUAL, 2 * moving)
        )
        curves.append(Curve(f"$v_T$ {name}", times, inner))
    times, inner = _follow(WeightedWasserstein(), _STARTS[0], t1)
    moving = abs(inner[-1] - inner[-len(inner) // 10]) + 1e-12
    predictions += [
        Measurement("inner product where v_B rests", inner[-1], stationary, Relation.EQUAL, 2 * moving),
        Measurement(
            "zero of dE/d(inner product) by bisection",
            stationary,
            math.log(1.97 / 3.99) / (3.99 + 1.97),
            Relation.EQUAL,
            1e-14,
        ),
        Measurement("slope of E where v_B rests", _slope_at(inner[-1]), 0.0, Relation.AT_MOST, 10 * moving),
    ]
    curves += [
        Curve(f"$v_B$ from inner product {_STARTS[0]:g}", times, inner),
        Curve(f"v_T rests: {rest:.6f}", (0.0, t1), (rest, rest), reference=True),
        Curve(f"grad E = 0: {stationary:.6f}", (0.0, t1), (stationary, stationary), reference=True),
    ]
    return (
        Finding(
            key="rest-of-the-transformer",
            statement="Thm 4.16 (H >= 2)",
            claim="omega-limits of the transformer flow are stationary points of E",
            tested="two tokens on the circle, D = (3.99 I, -1.97 I) at rest, several starts",
            measurements=(*claims, *predictions),
            verdict=judge(tuple(claims), tuple(predictions)),
            explanation=(
                f"v_T rests at inner product {rest:.6f}, where G = 0 but E still falls along v_B at slope "
                f"{claims[0].value:.4f}; grad E vanishes at {stationary:.6f}, where v_B rests. Theorem 4.16 in terms "
                "of G stands, but for several heads G = 0 does not mean grad E = 0."
            ),
            figure=FindingFigure(
                "Two tokens, D = (3.99 I, -1.97 I), sign = +1", "time", "inner product of the tokens", tuple(curves)
            ),
            expected=Verdict.FAILS,
        ),
    )


def _slope_at(gamma: float) -> float:
    return float(attention_flow(_PAIR.heads, WeightedWasserstein(), 1).slope(_pair_at(gamma), 0.0))


STATEMENTS = (Statement("rest-of-the-transformer", "Thm 4.16: where v_T rests", rest_of_the_transformer),)
