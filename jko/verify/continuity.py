"""Prop. 4.5 and Theorem 4.7: the minimizing movement solves the continuity equation in the weak form, up to a bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.averages import head_average
from jko.errors import InvalidInput, SolveFailed
from jko.flows import GradientFlow
from jko.grid import step_size, time_grid
from jko.measure import ParticleMeasure
from jko.metrics import Wasserstein2
from jko.schemes import Step
from jko.verify.base import Curve, Finding, FindingFigure, Measurement, Relation, Setting, Statement, decide
from jko.verify.orders import fit_order
from jko.verify.probes import Probe, bump_integrals, default_probes
from jko.verify.problems import METRICS, SIGNS, attention_flow, describe, plane_cloud, plane_flows, smooth_heads, tokens
from jko.verify.study import MakeScheme, make_jko

__all__ = ["STATEMENTS", "weak_form"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Residual:
    """Weak residuals of one run: per test function the residual, its bound, and what the inner tolerance may add."""

    residuals: list[float]
    bounds: list[float]
    slacks: list[float]

    @property
    def share(self) -> float:
        """The largest residual over its bound."""
        return max(abs(r) / bound for r, bound in zip(self.residuals, self.bounds, strict=True))

    @property
    def slack(self) -> float:
        return max(slack / bound for slack, bound in zip(self.slacks, self.bounds, strict=True))

    @property
    def size(self) -> float:
        return sum(abs(r) for r in self.residuals)


def weak_form(
    flow: GradientFlow,
    measure: ParticleMeasure,
    taus: Sequence[float],
    t1: float,
    *,
    t0: float = 0.0,
    functions: Sequence[Probe] | None = None,
    make_scheme: MakeScheme | None = None,
) -> tuple[Finding, ...]:
    """Test the weak form of the limit equation on a flow: one finding, `weak-form`.

    With test functions phi(x) psi(t), psi a smooth bump, the residual is

        sum_k int psi dt ( (int phi du^k - int phi du^{k-1}) / tau + sum_i w_i <grad sE(x_i^k, t_k) / b_i, grad phi> ),

    b the mobility at u^{k-1} with the heads at t_k (1 for W_2). Stationarity of the steps and a Taylor expansion of
    phi bound it by (beta tau / 2) int psi zeta^2 dt / min b, beta = sup norm(Hess phi). For the head-wise metric the
    second term is taken per head at the heads' own copies and averaged, and the average of the displacements costs
    another beta: the bound has the factor 3.

    Args:
        flow: any gradient flow that `jko.JKO` accepts, on the sphere or in R^d.
        measure: the initial measure.
        taus: decreasing step sizes.
        t1: final time.
        t0: initial time.
        functions: test functions; None means spherical harmonics of degrees 1 to 3, or plane waves.
        make_scheme: tau -> scheme; None means JKO with a tolerance of 1e-10.

    Raises:
        InvalidInput: for another manifold without test functions, or an empty list of step sizes.
        SolveFailed: when a step fails.
    """
    if not taus:
        raise InvalidInput("taus must hold at least one step size")
    chosen = default_probes(flow.manifold, measure.d) if functions is None else tuple(functions)
    make = make_jko if make_scheme is None else make_scheme
    measured, curves = _case(flow, measure, taus, t0, t1, chosen, make, describe(flow))
    return (_finding(measured, curves, f"n = {measure.n}, t in [{t0:g}, {t1:g}]", describe(flow)),)


def _case(
    flow: GradientFlow,
    measure: ParticleMeasure,
    taus: Sequence[float],
    t0: float,
    t1: float,
    functions: tuple[Probe, ...],
    make: MakeScheme,
    name: str,
) -> tuple[list[Measurement], list[Curve]]:
    runs = [_run(flow, measure, tau, t0, t1, functions, make) for tau in taus]
    worst = max(runs, key=lambda run: run.share)
    measured = [
        Measurement(
            f"largest weak residual / bound, {len(functions)} functions, {len(taus)} step sizes, {name}",
            worst.share,
            1.0,
            Relation.AT_MOST,
            worst.slack,
        )
    ]
    if len(taus) > 1:
        order = fit_order(taus, [run.size for run in runs]).last
        measured.append(Measurement(f"order of the weak residual, {name}", order, 1.0, Relation.AT_LEAST, 0.1))
    return measured, [
        Curve(f"residual, {name}", tuple(taus), tuple(run.size for run in runs)),
        Curve(f"bound, {name}", tuple(taus), tuple(sum(run.bounds) for run in runs), reference=True),
    ]


def _run(
    flow: GradientFlow,
    measure: ParticleMeasure,
    tau: float,
    t0: float,
    t1: float,
    functions: tuple[Probe, ...],
    make: MakeScheme,
) -> _Residual:
    times = time_grid(t0, t1, tau, flow.jumps)
    scheme = make(tau)
    lifted = flow.metric.lifted
    rates: list[list[float]] = []
    costs, smallest, errors = [], math.inf, []
    old, state = measure, scheme.start(flow, measure, times[0])
    for start, end in itertools.pairwise(times):
        length = step_size(start, end, tau, flow.jumps)
        fields = flow.fields(old, start + length)
        mobility = flow.metric.mobility(fields)
        step = scheme.step(flow, old, start, length, state)
        if not step.info.status.ok:
            raise SolveFailed(
                f"the step from t = {start:g} failed: {step.info.detail}", solution=None, status=step.info.status
            )
        pull, places = _pull(flow, old, step, mobility, start + length)
        b = fields.effective_mobility if lifted else mobility
        assert b is not None
        smallest = min(smallest, float(b[old.weights > 0].min()))
        rates.append([_rate(flow, old, step, f, pull, places, end - start) for f in functions])
        costs.append(float(step.info.squared_distance) / (end - start))
        errors.append(float(step.info.residual) * math.sqrt(float(step.info.squared_distance)) / (end - start))
        old = step.measure
        # The state to the left of a jump is none to start from on its right.
        state = scheme.start(flow, old, end) if end in flow.jumps else step.state.at(end)
    psi = bump_integrals(torch.tensor(times, dtype=torch.float64))
    used = float(psi @ torch.tensor(costs, dtype=torch.float64))
    totals = (psi @ torch.tensor(rates, dtype=torch.float64)).tolist()
    missed = float(psi @ torch.tensor(errors, dtype=torch.float64))
    factor = 1.5 if lifted else 0.5
    return _Residual(
        totals,
        [factor * f.hessian_bound * used / smallest for f in functions],
        [missed / math.sqrt(smallest) * _steepest(flow, old, f) + 1e-13 for f in functions],
    )


def _pull(flow: GradientFlow, old: ParticleMeasure, step: Step, mobility: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """Return grad sE / b at the new particles, shape (1, n, d); if lifted, per head at the heads' own copies."""
    if flow.metric.lifted:
        places = flow.manifold.exp(old.points, step.info.displacement)
        gradient = flow.energy.by_head().evaluate(ParticleMeasure(places, old.weights), t).gradient
        return flow.manifold.project_vector(places, gradient) / mobility[..., None], places
    evaluation = step.state.flow_state.evaluation
    assert evaluation is not None
    places = step.measure.points
    return (flow.manifold.project_vector(places, evaluation.gradient) / mobility[..., None])[None], places[None]


def _rate(
    flow: GradientFlow, old: ParticleMeasure, step: Step, f: Probe, pull: Tensor, places: Tensor, tau: float
) -> float:
    w = old.weights
    change = float((w * (f.value(step.measure.points) - f.value(old.points))).sum()) / tau
    slope = flow.manifold.project_vector(places, f.gradient(places))
    per_head = (w * (pull * slope).sum(-1)).sum(-1, keepdim=True)
    parts = flow.energy.attention_parts
    weights = parts[0].heads.head_weights if flow.metric.lifted and parts else None
    return change + float(head_average(per_head, weights)[0])


def _steepest(flow: GradientFlow, measure: ParticleMeasure, f: Probe) -> float:
    slopes = flow.manifold.project_vector(measure.points, f.gradient(measure.points))
    return float(slopes.square().sum(-1).max().sqrt()) + 1.0


def _finding(measured: list[Measurement], curves: list[Curve], tested: str, title: str) -> Finding:
    return Finding(
        key="weak-form",
        statement="Prop. 4.5, Theorem 4.7",
        claim="u_tau solves the weak continuity equation up to (beta tau / 2) int zeta^2 / min b",
        tested=tested,
        measurements=tuple(measured),
        verdict=decide(tuple(measured)),
        explanation=(
            "beta is the exact bound of the test function's Hessian, b the mobility at u^{k-1} with the heads at t_k. "
            "The limit equation is that of the metric: for W_{m,2} with several heads it is not the transformer's."
        ),
        figure=FindingFigure(
            f"Weak residual against its bound, {title}",
            r"step size $\tau$",
            "weak residual, summed over test functions",
            tuple(curves),
            x_log=True,
            y_log=True,
        ),
    )


def _both_spaces(setting: Setting) -> tuple[Finding, ...]:
    n, t1 = setting.choose((8, 0.1), (30, 0.8))
    taus = setting.choose((0.02, 0.01), (0.05, 0.025, 0.0125, 0.00625))
    measured: list[Measurement] = []
    shown: list[Curve] = []
    for heads in (1, 4):
        path = smooth_heads(heads, setting.seed, 1.5)
        for sign in SIGNS:
            for metric in METRICS:
                if setting.quick and heads == 1 and metric.lifted:
                    continue
                flow = attention_flow(path, metric, sign)
                measure = tokens(n, setting.seed, weighted=True)
                functions = default_probes(flow.manifold, 3)
                numbers, curves = _case(flow, measure, taus, 0.0, t1, functions, make_jko, describe(flow))
                measured += numbers
                if heads == 4 and sign == 1 and not isinstance(metric, Wasserstein2):
                    shown += curves
    for name, flow in plane_flows().items():
        functions = default_probes(flow.manifold, 2)
        measured += _case(flow, plane_cloud(n, setting.seed), taus, 0.0, t1, functions, make_jko, name)[0]
    tested = (
        f"{n} unequal particles on S^2 to t = {t1:g}, smooth heads, and in R^2; harmonics or waves times a bump in t"
    )
    return (_finding(measured, shown, tested, "sign = +1, H = 4"),)


STATEMENTS = (Statement("weak-form", "Prop. 4.5 and Theorem 4.7: weak form with its bound", _both_spaces),)
