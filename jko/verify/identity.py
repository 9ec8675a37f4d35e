"""Theorem 4.13, the energy identity: residuals extrapolated to step 0, so that time-step and model errors are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko import weighted
from jko.driver import Save, solve
from jko.flows import GradientFlow
from jko.measure import ParticleMeasure
from jko.metrics import AbstractMetric, HeadwiseWasserstein, WeightedWasserstein
from jko.schemes import JKO, RK4, AbstractScheme, ExplicitEuler
from jko.verify.base import Curve, Finding, FindingFigure, Measurement, Relation, Setting, Statement, Verdict, decide
from jko.verify.evidence import judge, value_at_zero
from jko.verify.gradients import TwoTokens
from jko.verify.orders import fit_order
from jko.verify.problems import METRICS, SIGNS, attention_flow, describe, smooth_heads, tokens

__all__ = ["STATEMENTS", "chain_rule", "energy_identity", "rising_energy", "weighted_identity"]

_NORM = 1.5
# Relative change of the velocity per unit time, the size of the next term of an error in tau.
_RATE = 2 * (_NORM + _NORM**2)
_PAPER_STEP = 0.01


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Balance:
    """E(T) - E(0) - (time parts) + sum tau (rate) with halved steps: what an identity leaves over.

    Attributes:
        name: metric, sign, number of heads, scheme.
        taus: step sizes.
        residuals: one for each.
        limit: extrapolated to tau = 0.
        slack: what the extrapolation may be off by.
    """

    name: str
    taus: tuple[float, ...]
    residuals: tuple[float, ...]
    limit: float
    slack: float

    def closes(self, identity: str) -> Measurement:
        """The claim that nothing is left as tau -> 0."""
        return Measurement(
            f"what {identity} leaves as tau -> 0, {self.name}", self.limit, 0.0, Relation.EQUAL, self.slack
        )

    @property
    def beside(self) -> Measurement:
        """The residual at the step of the paper."""
        at = self.taus.index(_PAPER_STEP)
        return Measurement(f"the same at the paper's dt = {_PAPER_STEP:g}, {self.name}", self.residuals[at])


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """One flow on [0, T] with heads that move smoothly."""

    flow: GradientFlow
    measure: ParticleMeasure
    taus: tuple[float, ...]
    t1: float

    @staticmethod
    def of(setting: Setting, count: int, metric: AbstractMetric, sign: int) -> _Problem:
        """The problem of a setting: sizes and horizon are those of the mode."""
        taus = setting.choose((0.04, 0.02, 0.01), (0.08, 0.04, 0.02, 0.01, 0.005))
        flow = attention_flow(smooth_heads(count, setting.seed, _NORM), metric, sign)
        measure = tokens(setting.choose(16, 40), setting.seed, weighted=True)
        return _Problem(flow, measure, taus, setting.choose(0.16, 0.8))

    def balance(self, column: str, minimizing: bool = False) -> _Balance:
        """Return the residual with the rate in `column`, at the old state of explicit and the new one of JKO steps."""
        residuals = []
        for tau in self.taus:
            scheme: AbstractScheme = JKO(tau) if minimizing else ExplicitEuler(tau)
            run = solve(self.flow, self.measure, scheme, t1=self.t1, save=Save(every=10**6))
            energy, rate = run.states.energy, run.states[column]
            rates = rate[1:] if minimizing else rate[:-1]
            residuals.append(float(energy[-1] - energy[0] - run.records.time_part.sum() + tau * rates.sum()))
        limit, slack = value_at_zero(self.taus, residuals)
        # Five digits of rounding in sums of hundreds of terms of size 1.
        rounding = 1e-11 + 1e-8 * minimizing
        name = f"{describe(self.flow)}, {'JKO' if minimizing else 'explicit'}"
        return _Balance(name, self.taus, tuple(residuals), limit, slack + rounding)

    def margin(self) -> tuple[float, float]:
        """Integrate sum w b <C, mean_h(DK_h / m_h)> along the transformer; return it and its quadrature error.

        The covariance is formed from the head gradients and mobilities, the path has order 4.
        """
        run = solve(self.flow, self.measure, RK4(self.taus[-2] / 2), t1=self.t1, save=Save(every=1))
        values = [self._covariance_rate(x, float(t)) for t, x in zip(run.times, run.points, strict=True)]
        step = self.taus[-2] / 2
        fine, coarse = _simpson(values, step), _simpson(values[::2], 2 * step)
        return fine, abs(fine - coarse) + 1e-11

    def _covariance_rate(self, points: Tensor, t: float) -> float:
        measure = self.measure.moved(points)
        heads = self.flow.energy.evaluate(measure, t).heads
        assert heads is not None
        gradient, mobility = self.flow.manifold.project_vector(points, heads.gradient), heads.mobility
        C = weighted.covariance_defect(gradient, mobility)
        V = (gradient / mobility[..., None]).mean(0)
        return float((measure.weights * weighted.effective_mobility(mobility) * (C * V).sum(-1)).sum())


def _simpson(values: list[float], step: float) -> float:
    weights = [1 if k in {0, len(values) - 1} else 4 if k % 2 else 2 for k in range(len(values))]
    return step / 3 * sum(w * value for w, value in zip(weights, values, strict=True))


def energy_identity(setting: Setting) -> tuple[Finding, ...]:
    """Theorem 4.13 along the transformer: E(T) - E(0) - int d_t E + int G^2 = 0."""
    claim = "E(T) - E(0) - int d_tE dt + (1/2) int |u'|^2 dt + (1/2) int G^2 dt = 0 along the transformer flow"
    tested = "smooth moving heads, exact time parts, explicit steps, residual extrapolated to tau = 0 by halved steps"
    one = [_Problem.of(setting, 1, HeadwiseWasserstein(), sign) for sign in SIGNS]
    balances = [problem.balance("paper_slope2") for problem in one]
    balances += [_Problem.of(setting, 1, WeightedWasserstein(), sign).balance("paper_slope2", True) for sign in SIGNS]
    closing = tuple(balance.closes("(116)") for balance in balances)
    holding = Finding(
        key="energy-identity-one-head",
        statement="Thm 4.13 (H = 1)",
        claim=f"{claim}, for one head",
        tested=f"{tested}; JKO steps too",
        measurements=(*closing, *(balance.beside for balance in balances)),
        verdict=decide(closing),
        explanation="The residual is O(tau): time stepping alone.",
        figure=_figure("Energy identity along the transformer, H = 1", balances),
    )
    return holding, _broken_identity(setting, claim, tested)


def _broken_identity(setting: Setting, claim: str, tested: str) -> Finding:
    claims, predictions, beside, shown, margins = [], [], [], [], []
    for count in setting.choose((4,), (4, 100)):
        for sign in SIGNS:
            problem = _Problem.of(setting, count, HeadwiseWasserstein(), sign)
            balance = problem.balance("paper_slope2")
            margin, error = problem.margin()
            claims.append(balance.closes("(116)"))
            predictions.append(
                Measurement(
                    f"the same against int sum w b <C, mean_h(DK_h/m_h)>, {balance.name}",
                    balance.limit,
                    margin,
                    Relation.EQUAL,
                    balance.slack + error,
                )
            )
            beside.append(balance.beside)
            shown.append(balance)
            margins.append(margin)
    verdicts = {judge((c,), (p,)) for c, p in zip(claims, predictions, strict=True)}
    return Finding(
        key="energy-identity",
        statement="Thm 4.13 (H >= 2)",
        claim=f"{claim}, for several heads",
        tested=tested,
        measurements=(*claims, *predictions, *beside),
        verdict=verdicts.pop() if len(verdicts) == 1 else Verdict.NOT_TESTABLE,
        explanation=(
            "E falls at the rate sum w <mean DK, mean(DK/m)>, which differs from G^2 by -sum w b <C, mean(DK/m)>, C "
            f"the covariance over heads of 1/m_h and DK_h. Left over as tau -> 0: {claims[0].value:.6f}, predicted "
            f"{margins[0]:.6f} ({shown[0].name})."
        ),
        figure=_margin_figure(shown, margins),
        expected=Verdict.FAILS,
    )


def rising_energy(setting: Setting) -> tuple[Finding, ...]:
    """Theorem 4.13 at one instant, by hand: E along the transformer of two tokens."""
    claims, predictions = [], []
    for betas in ((1.0, 3.0), (3.99, -1.97)):
        two = TwoTokens(betas)
        flow = attention_flow(two.heads, HeadwiseWasserstein(), 1)
        state = flow.state(two.measure, 0.0)
        fall, slack = _rate_of_fall(flow, two.measure)
        name = f"two tokens, D = ({betas[0]:g} I, {betas[1]:g} I)"
        claims.append(
            Measurement(
                f"-dE/dt along the transformer against G^2, {name}",
                fall,
                two.squared_paper_slope,
                Relation.EQUAL,
                slack,
            )
        )
        rounding = 1e-13
        predictions += [
            Measurement(f"-dE/dt along the transformer by hand, {name}", fall, two.dissipation, Relation.EQUAL, slack),
            Measurement(
                f"G^2, {name}", state.columns["paper_slope2"], two.squared_paper_slope, Relation.EQUAL, rounding
            ),
            Measurement(
                f"weighted slope^2, {name}",
                float(attention_flow(two.heads, WeightedWasserstein(), 1).slope(two.measure, 0.0)) ** 2,
                two.squared_slope,
                Relation.EQUAL,
                rounding,
            ),
        ]
    two = TwoTokens((3.99, -1.97))
    return (
        Finding(
            key="rising-energy",
            statement="Thm 4.13, two tokens",
            claim="-dE/dt = G^2 along the transformer flow; in particular E falls",
            tested="E along Runge-Kutta steps from x = e_1, e_2, by differences, against closed forms",
            measurements=(*claims, *predictions),
            verdict=judge(tuple(claims), tuple(predictions)),
            explanation=(
                f"D = (3.99 I, -1.97 I): E rises at the rate {-two.dissipation:.4f} while G^2 = "
                f"{two.squared_paper_slope:.3f} (weighted slope^2 {two.squared_slope:.3f})."
            ),
            figure=_energies_figure(two),
            expected=Verdict.FAILS,
        ),
    )


def _rate_of_fall(flow: GradientFlow, measure: ParticleMeasure) -> tuple[float, float]:
    """-dE/dt at time 0 by one-sided differences along tiny Runge-Kutta steps, extrapolated, and their error."""
    start = float(flow.energy.value(measure, 0.0))
    steps = (4e-3, 2e-3, 1e-3, 5e-4)
    falls = [(start - float(flow.energy.value(RK4(h).step(flow, measure).measure, 0.0))) / h for h in steps]
    limit, slack = value_at_zero(steps, falls)
    return limit, slack + 4 * float(torch.finfo(torch.float64).eps) * abs(start) / steps[-1]


def _energies_figure(two: TwoTokens) -> FindingFigure:
    curves = []
    for metric, name in ((HeadwiseWasserstein(), "transformer $v_T$"), (WeightedWasserstein(), "weighted flow $v_B$")):
        run = solve(attention_flow(two.heads, metric, 1), two.measure, RK4(0.05), t1=2.0)
        curves.append(Curve(name, tuple(run.states.t.tolist()), tuple(run.states.energy.tolist())))
    return FindingFigure("Two tokens, D = (3.99 I, -1.97 I), sign = +1", "time", "energy $E$", tuple(curves))


def weighted_identity(setting: Setting) -> tuple[Finding, ...]:
    """The repair of Theorem 4.13: v_B with the weighted slope, every number of heads."""
    balances = []
    for count in setting.choose((4,), (1, 4, 100)):
        for sign in SIGNS:
            problem = _Problem.of(setting, count, WeightedWasserstein(), sign)
            balances.append(problem.balance("slope2"))
            if count < 100:
                balances.append(problem.balance("slope2", True))
    closing = tuple(balance.closes("the identity") for balance in balances)
    return (
        Finding(
            key="energy-identity-weighted",
            statement="Thm 4.13, weighted slope",
            claim="E(T) - E(0) - int d_tE dt + int slope^2 dt = 0 along v_B, for every number of heads",
            tested="smooth moving heads, exact time parts, explicit and JKO steps, extrapolated to tau = 0",
            measurements=(*closing, *(balance.beside for balance in balances)),
            verdict=decide(closing),
            explanation="With slope^2 = sum w |mean_h DK_h|^2 / b the limit of the W_{m,2} steps is a curve of maximal "
            "slope for every H.",
            figure=_figure("Energy identity along $v_B$ with the weighted slope", balances),
        ),
    )


def chain_rule(setting: Setting) -> tuple[Finding, ...]:
    """dE/dt = d_tE + sum w <grad E, v> in every metric: the ledger with exact time parts, O(dt)."""
    balances = [_Problem.of(setting, 4, metric, sign).balance("dissipation") for metric in METRICS for sign in SIGNS]
    closing = [balance.closes("the chain rule") for balance in balances]
    taus = balances[0].taus
    # Of all runs together: the leading term of a single one may happen to be small.
    together = [math.hypot(*(balance.residuals[k] for balance in balances)) for k in range(len(taus))]
    order = fit_order(taus, together).last
    closing.append(
        Measurement("order in dt, root mean square over the runs", order, 1.0, Relation.EQUAL, _RATE * taus[-1])
    )
    return (
        Finding(
            key="chain-rule",
            statement="Chain rule along v",
            claim="E(T) - E(0) = int d_tE dt + int sum w <grad E, v> dt in every metric, for several heads",
            tested="H = 4, smooth moving heads, exact time parts, explicit steps",
            measurements=(*closing, *(balance.beside for balance in balances)),
            verdict=decide(tuple(closing)),
            explanation="What closes for every metric is the exact chain rule, to O(dt); its rate has no fixed sign "
            "along the transformer.",
            figure=_figure("Chain rule with exact time parts, H = 4", balances),
        ),
    )


def _figure(title: str, balances: list[_Balance]) -> FindingFigure:
    taus = balances[0].taus
    curves = [
        Curve(balance.name, balance.taus, tuple(abs(value) for value in balance.residuals)) for balance in balances
    ]
    lowest = min(curve.y[-1] for curve in curves)
    guide = tuple(0.6 * lowest * tau / taus[-1] for tau in taus)
    curves.append(Curve("slope 1", taus, guide, reference=True))
    return FindingFigure(
        title, "step size (time)", "|residual| over [0, T] (energy)", tuple(curves), x_log=True, y_log=True
    )


def _margin_figure(balances: list[_Balance], margins: list[float]) -> FindingFigure:
    """Residuals with their signs, down to the extrapolated step 0, beside what the covariance predicts."""
    curves = [Curve(balance.name, (*balance.taus, 0.0), (*balance.residuals, balance.limit)) for balance in balances]
    ends = (0.0, balances[0].taus[0])
    curves += [
        Curve(f"predicted: {balance.name}", ends, (margin, margin), reference=True)
        for balance, margin in zip(balances, margins, strict=True)
    ]
    return FindingFigure(
        "Energy identity along the transformer, extrapolated to step 0",
        "step size (time); 0: extrapolated",
        "residual over [0, T] (energy)",
        tuple(curves),
    )


STATEMENTS = (
    Statement("energy-identity", "Thm 4.13: energy identity along the transformer", energy_identity),
    Statement("rising-energy", "Thm 4.13 on two tokens by hand", rising_energy),
    Statement("energy-identity-weighted", "Thm 4.13 with the weighted slope", weighted_identity),
    Statement("chain-rule", "Exact chain rule of the energy", chain_rule),
)
