"""Which flow a minimizing movement converges to: Prop. 4.5, Theorem 4.7 and Corollary 4.8, with rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.flows import AbstractField, AbstractFlow, AttentionField, VelocityFlow
from jko.heads import AbstractHeads
from jko.manifolds import Sphere
from jko.measure import ParticleMeasure
from jko.metrics import AbstractMetric, HeadwiseWasserstein, Wasserstein2, WeightedWasserstein
from jko.schemes import JKO
from jko.verify.base import Curve, Finding, FindingFigure, Measurement, Relation, Setting, Statement, Verdict, decide
from jko.verify.evidence import Ladder, at_zero, climb, distance, first_order, judge, reference_points, run_points
from jko.verify.problems import METRICS, SIGNS, SmoothHeads, attention_flow, describe, smooth_heads, tokens

__all__ = ["STATEMENTS", "Unnormalized", "headwise_limit", "nonsymmetric_limit", "plain_limit", "weighted_limit"]

_SAVED = 2
_NORM = 1.5
# Relative accuracy 1e-8 of every step, of displacements that add up to less than 1; the reference is better.
_ROUNDING = 1e-8
# Of the transformer's velocity: 2 mean_h (|D_h| + |D_h|^2), see jko.verify.stability.
_RATE = 2 * (_NORM + _NORM**2)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Unnormalized(AbstractField):
    """The field -sign mean_h sum_j w_j e^{<x, D_h x_j>} D_h x_j from the plain formula: attention without softmax."""

    heads: AbstractHeads
    sign: int

    @property
    def moves(self) -> bool:
        return self.heads.moves

    @property
    def title(self) -> str:
        return f"unnormalized attention, sign = {self.sign:+d}"

    def check_times(self, t0: float, t1: float) -> None:
        self.heads.at(t0), self.heads.at(t1)

    def evaluate(self, measure: ParticleMeasure, t: float) -> Tensor:
        x, D = measure.points, self.heads.at(t).to(measure.points)
        kernel = torch.einsum("ia,hab,jb->hij", x, D, x).exp() * measure.weights
        return -self.sign * torch.einsum("hij,hab,jb->hia", kernel, D, x).mean(0)

    def largest_exponent(self, measure: ParticleMeasure, t: float) -> float:
        x = measure.points
        return float(torch.einsum("ia,hab,jb->hij", x, self.heads.at(t).to(x), x).max())


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """JKO runs in one metric, compared with a target flow and with the flow of their own limit velocity."""

    name: str
    to_target: Ladder
    to_own: Ladder
    gap: float

    @property
    def claims(self) -> tuple[Measurement, ...]:
        """What the statement says."""
        return at_zero(self.to_target, self.name), first_order(self.to_target, self.name)

    @property
    def failure(self) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
        """The claim that is to fail, and what is predicted in its place."""
        claim = Measurement(
            f"distance to the attention flow as tau -> 0, {self.name}",
            self.to_target.limit,
            0.0,
            Relation.AT_MOST,
            self.to_target.slack,
        )
        predictions = (
            Measurement(
                f"the same against the distance of the two limit flows, {self.name}",
                self.to_target.limit,
                self.gap,
                Relation.EQUAL,
                self.to_target.slack,
            ),
            at_zero(self.to_own, f"to the flow of the metric's own velocity, {self.name}"),
            first_order(self.to_own, f"own velocity, {self.name}"),
        )
        return (claim,), predictions


def _case(setting: Setting, heads: AbstractHeads, metric: AbstractMetric, sign: int, target: AbstractFlow) -> _Case:
    """Run the minimizing movement with halved steps."""
    measure = tokens(setting.choose(10, 24), setting.seed)
    t1, steps = setting.choose((0.16, (2, 4, 8)), (0.32, (4, 8, 16, 32)))
    taus = [t1 / count for count in steps]
    flow = attention_flow(heads, metric, sign)
    runs = [run_points(flow, measure, JKO(tau), t1, _SAVED) for tau in taus]
    own, wanted = (reference_points(each, measure, t1, _SAVED, steps[-1]) for each in (flow, target))
    to_target, to_own = (climb(taus, runs, each, _RATE, _ROUNDING) for each in (wanted, own))
    return _Case(describe(flow), to_target, to_own, distance(own, wanted))


def _figure(title: str, cases: list[_Case], *, own: bool = False) -> FindingFigure:
    """Distances over the step size, with a line of slope 1."""
    taus = cases[0].to_target.taus
    prefix = "to attention: " if own else ""
    curves = [Curve(f"{prefix}{case.name}", taus, case.to_target.errors) for case in cases]
    if own:
        curves += [Curve(f"to its own flow: {case.name}", taus, case.to_own.errors) for case in cases]
        curves.append(Curve("predicted", taus, (cases[0].gap,) * len(taus), reference=True))
    lowest = min(curve.y[-1] for curve in curves)
    guide = tuple(0.6 * lowest * tau / taus[-1] for tau in taus)
    curves.append(Curve("slope 1", taus, guide, reference=True))
    return FindingFigure(
        title,
        "step size $\\tau$ (time)",
        "RMS distance of the particles (chord)",
        tuple(curves),
        x_log=True,
        y_log=True,
    )


def _holding(
    key: str, statement: str, claim: str, tested: str, cases: list[_Case], title: str, why: str
) -> tuple[Finding, ...]:
    measured = tuple(measurement for case in cases for measurement in case.claims)
    return (
        Finding(
            key=key,
            statement=statement,
            claim=claim,
            tested=tested,
            measurements=measured,
            verdict=decide(measured),
            explanation=why,
            figure=_figure(title, cases),
        ),
    )


def _failing(
    key: str, statement: str, claim: str, tested: str, cases: list[_Case], title: str, why: str
) -> tuple[Finding, ...]:
    parts = [case.failure for case in cases]
    claims = tuple(measurement for part in parts for measurement in part[0])
    predictions = tuple(measurement for part in parts for measurement in part[1])
    # Every case has to fail by its own margin: one that does not is no counterexample.
    verdicts = {judge(*part) for part in parts}
    return (
        Finding(
            key=key,
            statement=statement,
            claim=claim,
            tested=tested,
            measurements=(*claims, *predictions),
            verdict=verdicts.pop() if len(verdicts) == 1 else Verdict.NOT_TESTABLE,
            explanation=why,
            figure=_figure(f"{title}, sign = +1", [case for case in cases if "sign = +1" in case.name], own=True),
            expected=Verdict.FAILS,
        ),
    )


def plain_limit(setting: Setting) -> tuple[Finding, ...]:
    """Prop. 4.5: W_2 steps follow unnormalized attention, whatever the number of heads."""
    cases = []
    for count in (1, 4):
        heads = smooth_heads(count, setting.seed, _NORM)
        cases += [
            _case(setting, heads, Wasserstein2(), sign, VelocityFlow(Unnormalized(heads, sign))) for sign in SIGNS
        ]
    return _holding(
        "limit-unnormalized",
        "Prop. 4.5, Cor. 4.8",
        "the minimizing movement in W_2 converges to the flow of unnormalized attention, for every number of heads",
        "symmetric moving heads, H = 1 and 4, both signs; JKO with halved steps against Runge-Kutta on plain formulas",
        cases,
        "JKO in $W_2$ against unnormalized attention",
        "The distance to the explicit flow vanishes with order 1 in tau.",
    )


def weighted_limit(setting: Setting) -> tuple[Finding, ...]:
    """Theorem 4.7: W_{m,2} steps follow the transformer for one head, and another flow for several."""
    cases: dict[int, list[_Case]] = {}
    for count in setting.choose((1, 4), (1, 4, 16)):
        heads = smooth_heads(count, setting.seed, _NORM)
        cases[count] = [
            _case(setting, heads, WeightedWasserstein(), sign, VelocityFlow(AttentionField(heads, sign=sign)))
            for sign in SIGNS
        ]
    claim = "the minimizing movement in W_{m,2} converges to the transformer flow (softmax attention)"
    several = [case for count, group in cases.items() if count > 1 for case in group]
    return (
        *_holding(
            "limit-one-head",
            "Thm 4.7, Cor. 4.8 (H = 1)",
            f"{claim}, for one head",
            "one symmetric moving head, both signs; JKO with halved steps against Runge-Kutta on softmax attention",
            cases[1],
            "JKO in $W_{m,2}$ against the transformer, H = 1",
            "One head: b = m, and the two limit velocities are one.",
        ),
        *_failing(
            "limit-weighted",
            "Thm 4.7, Cor. 4.8 (H >= 2)",
            f"{claim}, for several heads",
            "symmetric moving heads, H >= 2, both signs; extrapolated to tau = 0",
            several,
            "JKO in $W_{m,2}$ against the transformer, several heads",
            "The steps converge, with order 1, to the flow of v_B = -(1/b) mean_h DK_h. Its distance to the "
            f"transformer is {several[0].gap:.4f} ({several[0].name}), the effect of the covariance over heads of "
            "1/m_h and DK_h, and the extrapolated runs stay exactly that far away.",
        ),
    )


def headwise_limit(setting: Setting) -> tuple[Finding, ...]:
    """The head-wise step is the one that follows the transformer for several symmetric heads."""
    cases = []
    for count in setting.choose((4,), (4, 16)):
        heads = smooth_heads(count, setting.seed, _NORM)
        cases += [
            _case(setting, heads, HeadwiseWasserstein(), sign, VelocityFlow(AttentionField(heads, sign=sign)))
            for sign in SIGNS
        ]
    return _holding(
        "limit-headwise",
        "Cor. 4.8, head-wise step",
        "steps of every head in its own mobility, averaged over heads, converge to the transformer flow",
        "symmetric moving heads, H >= 2, both signs; against Runge-Kutta on softmax attention",
        cases,
        "Head-wise JKO against the transformer",
        "The head-wise step repairs Theorem 4.7 for several heads: it is a splitting, not a step in one metric.",
    )


def nonsymmetric_limit(setting: Setting) -> tuple[Finding, ...]:
    """Non-symmetric D_h: no metric gives attention, since DK_h only sees the symmetric half of the interaction."""
    A, B = (torch.stack([_matrix(setting.seed + 20 + 2 * h + part) for h in range(2)]) for part in (0, 1))
    heads = SmoothHeads(A, B / 2)
    cases = []
    for metric in METRICS:
        for sign in setting.choose((1,), SIGNS):
            field = Unnormalized(heads, sign) if metric.title == "W2" else AttentionField(heads, sign=sign)
            cases.append(_case(setting, heads, metric, sign, VelocityFlow(field)))
    return _failing(
        "limit-nonsymmetric",
        "Cor. 4.8, D_h not symmetric",
        "the minimizing movements converge to attention flows for every D_h",
        "two moving heads that are not symmetric, three metrics; W_2 against unnormalized attention, the others "
        "against softmax attention",
        cases,
        "JKO against attention, $D_h$ not symmetric",
        "E is symmetric in its two particles, so its gradient mixes D_h with its transpose: D_h must be symmetric. "
        "Least gap: " + "{:.4f} ({})".format(*min((case.gap, case.name) for case in cases)) + ".",
    )


def _matrix(seed: int) -> Tensor:
    """A matrix of spectral norm `_NORM` that is not symmetric."""
    M = Sphere().random_point((3,), 3, seed)
    norm: Tensor = torch.linalg.matrix_norm(M, ord=2)
    return M * (_NORM / norm)


STATEMENTS = (
    Statement("limit-w2", "Prop. 4.5: the W_2 step gives unnormalized attention", plain_limit),
    Statement("limit-weighted", "Thm 4.7, Cor. 4.8: the W_{m,2} step and the transformer", weighted_limit),
    Statement("limit-headwise", "Cor. 4.8: the head-wise step gives the transformer", headwise_limit),
    Statement("limit-nonsymmetric", "Cor. 4.8: heads that are not symmetric", nonsymmetric_limit),
)
