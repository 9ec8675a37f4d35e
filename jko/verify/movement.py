"""Theorem 3.11: the minimizing movement obeys its estimates and converges, on a flow of the user's or the suite's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from jko.errors import InvalidInput
from jko.flows import GradientFlow
from jko.measure import ParticleMeasure
from jko.verify import estimates
from jko.verify.base import Curve, Finding, FindingFigure, decide
from jko.verify.estimates import Estimate
from jko.verify.problems import describe
from jko.verify.study import MakeScheme, Study

__all__ = ["collect", "existence"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Estimate:
    """One estimate: what it claims, how it is tested and drawn; `guides` are levels, `slope` a power of tau."""

    key: str
    statement: str
    claim: str
    explanation: str
    run: Callable[[Study], Estimate]
    title: str
    x_label: str
    y_label: str
    guides: tuple[tuple[str, float], ...] = ()
    slope: float | None = None
    x_log: bool = False
    y_log: bool = False
    identity: bool = False


_ESTIMATES = (
    _Estimate(
        "energy-inequality",
        "Theorem 3.11 (i)",
        "sE(u^k, t_k) + W^2(u^k, u^{k-1}) / (2 tau) <= sE(u^{k-1}, t_k) in every step",
        "For the head-wise metric per head, averaged over heads: each head minimizes its own energy.",
        estimates.energy_inequality,
        "Energy drop of a step over its cost",
        "time $t$",
        r"$(sE(u^{k-1}, t_k) - sE(u^k, t_k))\ /\ (W^2 / 2\tau)$",
        (("bound", 1.0), (r"limit $\tau \to 0$", 2.0)),
    ),
    _Estimate(
        "a-priori-bound",
        "Theorem 3.11 (ii)",
        "(tau/2) sum zeta^2 <= sE(u_0, 0) - sE(u^N, T) + signed sum of the time parts",
        "The bound is the exact ledger, so it needs no constant C_fg; half of it is used as tau tends to 0, the other "
        "half being the slope term of the energy identity. For the head-wise metric the ledger has one more entry, "
        "what averaging the heads' displacements changes in E.",
        estimates.a_priori_bound,
        "Share of the a-priori bound that is used",
        r"step size $\tau$",
        r"$(\tau/2)\, \Sigma\, \zeta^2$ / bound",
        (("bound", 1.0), (r"limit $\tau \to 0$", 0.5)),
        x_log=True,
    ),
    _Estimate(
        "hoelder",
        "Theorem 3.11 (iii)",
        "W_2(u^j, u^k) <= sqrt(2 B (t_k - t_j) / min b) with the a-priori bound B: Hoelder-1/2 in time",
        "b is the (effective) mobility along the run, 1 for W_2.",
        estimates.hoelder,
        "Hölder-1/2 estimate, pairs of times",
        "$t_k - t_j$ (time)",
        r"$W_2(u^j, u^k)\ /\ \sqrt{2 B (t_k - t_j) / \min b}$",
        (("bound", 1.0),),
    ),
    _Estimate(
        "de-giorgi",
        "De Giorgi identity",
        "sE(u_tau) + W^2/(2 tau) + int_0^tau W^2(u_s) / (2 s^2) ds = sE(y), per step and summed with the time parts",
        "An equality test of the inner solver, per head for the head-wise metric; it cannot see a wrong mobility.",
        estimates.de_giorgi,
        "De Giorgi identity: defect of each step",
        "time $t$",
        "|defect| (energy), at least rounding",
        y_log=True,
        identity=True,
    ),
    _Estimate(
        "convergence",
        "Theorem 3.11",
        "the interpolants u_tau converge as tau tends to 0",
        "Distances between runs with consecutive step sizes, exact W_2: at the nodes, and over all times for the "
        "piecewise-constant and for De Giorgi's interpolant. Order 1 for heads that are smooth in time.",
        estimates.convergence,
        "Convergence in the step size, at the nodes",
        r"step size $\tau$",
        r"$\sup_t W_2(u_\tau(t), u_{\tau'}(t))$ (radians)",
        slope=1.0,
        x_log=True,
        y_log=True,
    ),
)


def existence(
    flow: GradientFlow,
    measure: ParticleMeasure,
    taus: Sequence[float],
    t1: float,
    *,
    t0: float = 0.0,
    order: float | None = None,
    make_scheme: MakeScheme | None = None,
) -> tuple[Finding, ...]:
    """Test the existence construction of Theorem 3.11 on a flow: five findings with measured numbers and verdicts.

    They are `energy-inequality` (per step), `a-priori-bound`, `hoelder`, `de-giorgi` (identity per step and over the
    flow) and `convergence` (in tau, of the piecewise-constant and De Giorgi's interpolants).

    Args:
        flow: any gradient flow that `jko.JKO` accepts.
        measure: the initial measure.
        taus: decreasing step sizes, the first dividing t1 - t0 and each the one before: (0.1, 0.05, 0.025). At
            least three.
        t1: final time.
        t0: initial time.
        order: the order of convergence that theory predicts: 1 for an energy that is smooth in time. None asks for
            decreasing distances with an order of at least 1/2.
        make_scheme: tau -> scheme; None means JKO with a tolerance of 1e-10.

    Raises:
        InvalidInput: for step sizes that do not fit together.
        SolveFailed: when a step fails.
    """
    if len(taus) < 3:
        raise InvalidInput(f"convergence is judged by at least three step sizes, got taus = {tuple(taus)}")
    study = Study.of(flow, measure, taus, t1, t0=t0, label=describe(flow), make_scheme=make_scheme, order=order)
    sizes = ", ".join(f"{tau:g}" for tau in study.taus)
    return collect((study,), f"n = {measure.n}, d = {measure.d}, t in [{t0:g}, {t1:g}], tau = {sizes}")


def collect(
    studies: Sequence[Study], tested: str, *, suffix: str = "", only: Sequence[str] | None = None, unit: str = "radians"
) -> tuple[Finding, ...]:
    """Return the findings of Theorem 3.11 over several studies, one per estimate.

    Args:
        studies: what was run.
        tested: which problem.
        suffix: at the end of the keys of the findings.
        only: which estimates, by key; None means all.
        unit: of lengths.

    Raises:
        InvalidInput: when there is nothing to collect.
    """
    if not studies:
        raise InvalidInput("there are no studies to collect")
    chosen = [kind for kind in _ESTIMATES if only is None or kind.key in only]
    return tuple(_finding(kind, studies, tested, suffix, unit) for kind in chosen)


def _finding(kind: _Estimate, studies: Sequence[Study], tested: str, suffix: str, unit: str) -> Finding:
    found = [kind.run(study) for study in studies]
    measurements = tuple(m for estimate in found for m in estimate.measurements)
    curves = tuple(curve for estimate in found for curve in estimate.curves)
    # Of the first measurement of each study, which is about single steps as the curves are.
    tolerance = min(estimate.measurements[0].tolerance for estimate in found) if kind.identity else None
    return Finding(
        key=kind.key + suffix,
        statement=kind.statement,
        claim=kind.claim,
        tested=tested,
        measurements=measurements,
        verdict=decide(measurements),
        explanation=kind.explanation,
        figure=FindingFigure(
            kind.title if len(studies) > 1 else f"{kind.title}, {studies[0].label}",
            kind.x_label,
            kind.y_label.replace("radians", unit),
            (*curves, *_guides(kind, curves, tolerance)),
            x_log=kind.x_log,
            y_log=kind.y_log,
        ),
    )


def _guides(kind: _Estimate, curves: tuple[Curve, ...], tolerance: float | None) -> list[Curve]:
    abscissas = [x for curve in curves for x in curve.x]
    ends = (min(abscissas), max(abscissas))
    lines = [Curve(label, ends, (y, y), reference=True) for label, y in kind.guides]
    if tolerance is not None:
        lines.append(Curve("smallest tolerance of a case", ends, (tolerance, tolerance), reference=True))
    heights = [curve.y[-1] for curve in curves if curve.y[-1] > 0]
    if kind.slope is not None and heights and ends[0] < ends[1]:
        low = 0.6 * min(heights)
        rise = math.exp(kind.slope * math.log(ends[1] / ends[0]))
        lines.append(Curve(f"slope {kind.slope:g}", ends, (low, low * rise), reference=True))
    return lines
