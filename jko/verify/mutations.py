"""Which check catches which fault: the checks of a minimizing movement, run on steps with planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import torch

from jko.manifolds import Sphere
from jko.numerics import row_sum
from jko.transport import CouplingProblem, Matched
from jko.verify.base import Curve, Finding, FindingFigure, Measurement, Relation, Setting, Statement, decide
from jko.verify.evidence import climb
from jko.verify.faults import Fault, Taken, faults, honest
from jko.verify.stability import sup_rate

__all__ = ["CHECKS", "STATEMENTS", "examine", "mutation_table"]

_RTOL = 1e-8
_SMALL = 0.02
_NODES = 12
_STARTS = 3


def _ratio(value: float, tolerance: float) -> float:
    """How far beyond its tolerance a number is: an alarm above 1; infinite for what is not finite."""
    return value / tolerance if math.isfinite(value) else math.inf


def limit_velocity(fault: Fault, taken: Taken) -> float:
    """Xi / tau as tau -> 0 against v_B at (y, t) from plain formulas."""
    problem, taus = fault.problem, [_SMALL / 2**k for k in range(3)]
    quotients = [fault.make(problem.measure, problem.t, tau).xi / tau for tau in taus]
    coarse, fine = (2 * after - before for before, after in pairwise(quotients))
    v = problem.velocity(problem.measure.points, problem.t)
    slack = float((fine - coarse).norm()) + 4 * _RTOL * float(v.norm())
    return _ratio(float((fine - v).norm()), slack)


def stationarity(fault: Fault, taken: Taken) -> float:
    """The relative first-order residual at (x, t_k) from plain formulas, against the tolerance of the step."""
    problem = fault.problem
    pull = Sphere().exp_adjoint(taken.measure.points, taken.xi, problem.gradient(taken.points, problem.t))
    cost = problem.mobility(taken.measure.points, problem.t)[:, None] * taken.xi / taken.tau
    residual = float((cost + pull).norm()) / max(float(cost.norm()), float(pull.norm()))
    # The step is judged in L^2(w / b); in the plain norm the same residual may look larger by the spread of b.
    return _ratio(residual, 10 * _RTOL)


def weak_form(fault: Fault, taken: Taken) -> float:
    """|sum w b (phi(x) - phi(y)) / tau + sum w <grad E(x), grad phi(x)>| <= sum w b |xi|^2 / (2 tau).

    The test functions phi are the coordinates: on the sphere a linear function has a Hessian of norm at most 1. With
    b at y and heads at t_k, from plain formulas.
    """
    problem = fault.problem
    y, x, w = taken.measure.points, taken.points, taken.measure.weights
    b = problem.mobility(y, problem.t)
    gradient = Sphere().project_vector(x, problem.gradient(x, problem.t))
    left = ((w * b)[:, None] * (x - y) / taken.tau + w[:, None] * gradient).sum(0).abs().amax()
    bound = float((w * b * row_sum(taken.xi.square())).sum()) / (2 * taken.tau)
    return _ratio(float(left), bound * (1 + _RTOL) + _RTOL * float(gradient.norm()))


def energy_inequality(fault: Fault, taken: Taken) -> float:
    """E(x) + W^2 / (2 tau) <= E(y) in the step's own energy and metric."""
    before = float(taken.flow.energy.value(taken.measure, taken.t))
    slack = 64 * float(torch.finfo(torch.float64).eps) * (abs(before) + abs(taken.objective))
    return _ratio(max(0.0, taken.objective - before), slack)


def de_giorgi(fault: Fault, taken: Taken) -> float:
    """De Giorgi's identity in the step's own energy and metric, over steps that are made the same way."""
    problem = fault.problem
    integrals = []
    for nodes in (_NODES // 2, _NODES):
        abscissas, factors = np.polynomial.legendre.leggauss(nodes)
        sizes = [problem.tau * (1 + float(a)) / 2 for a in abscissas]
        costs = [fault.smaller(taken, s).squared_distance / (2 * s * s) for s in sizes]
        integrals.append(problem.tau / 2 * float(factors @ np.array(costs)))
    before = float(taken.flow.energy.value(taken.measure, taken.t))
    slack = abs(integrals[1] - integrals[0]) + 4 * _RTOL * abs(integrals[1]) + 1e-14 * abs(before)
    return _ratio(abs(taken.objective + integrals[1] - before), slack)


def many_starts(fault: Fault, taken: Taken) -> float:
    """The objective of the step against those reached from random starts, in its own energy and metric."""
    y = taken.measure
    guesses = [y.moved(Sphere().random_point((y.n,), y.d, seed)) for seed in range(_STARTS)]
    others = [honest(taken.flow, guess=guess)(y, taken.t, taken.tau).objective for guess in guesses]
    slack = 64 * float(torch.finfo(torch.float64).eps) * abs(taken.objective)
    slack += _RTOL * taken.squared_distance / (2 * taken.tau)
    return _ratio(max(0.0, taken.objective - min(others)), slack)


def coupling(fault: Fault, taken: Taken) -> float:
    """The certificate of the coupling: the potential test, else an exact assignment."""
    potential = taken.flow.energy.evaluate(taken.measure.moved(taken.points), taken.t).first_variation
    certificate = Matched().certify(
        CouplingProblem(
            source=taken.measure.points,
            target=taken.points,
            weights=taken.measure.weights,
            mobility=taken.mobility,
            potential=potential,
            tau=taken.tau,
            manifold=Sphere(),
            tolerance=_RTOL,
        )
    )
    return 0.0 if certificate.optimal else _ratio(certificate.excess, 1e-9)


def cut_locus(fault: Fault, taken: Taken) -> float:
    """The largest displacement against pi, beyond which the tangent cost is no distance."""
    return float(taken.xi.norm(dim=-1).max()) / math.pi


def explicit_order(fault: Fault, taken: Taken) -> float:
    """JKO against explicit Euler from plain formulas: the distance vanishes as tau -> 0."""
    problem = fault.problem
    t1, taus = 2 * _SMALL * 4, [2 * _SMALL, _SMALL, _SMALL / 2]
    differences = []
    for tau in taus:
        start = problem.t - t1
        moved, explicit = problem.measure, problem.measure.points
        for k in range(round(t1 / tau)):
            moved = moved.moved(fault.make(moved, start + (k + 1) * tau, tau).points)
            explicit = Sphere().project_point(explicit + tau * problem.velocity(explicit, start + k * tau))
        differences.append((moved.points - explicit)[None])
    rate = sup_rate(problem.heads.at(problem.t))
    ladder = climb(taus, differences, torch.zeros_like(differences[0]), rate, _RTOL)
    return _ratio(ladder.limit, ladder.slack)


CHECKS: MappingProxyType[str, Callable[[Fault, Taken], float]] = MappingProxyType(
    {
        "limit velocity": limit_velocity,
        "first-order residual": stationarity,
        "weak form": weak_form,
        "energy inequality": energy_inequality,
        "De Giorgi identity": de_giorgi,
        "many starts": many_starts,
        "coupling certificate": coupling,
        "cut locus": cut_locus,
        "JKO-explicit order": explicit_order,
    }
)
"""Every check by name: the number it returns is an alarm above 1."""


def examine(fault: Fault) -> dict[str, float]:
    """Run every check on the step with the fault: how far each is beyond its tolerance, an alarm above 1."""
    taken = fault.make(fault.problem.measure, fault.problem.t, fault.problem.tau)
    return {name: check(fault, taken) for name, check in CHECKS.items()}


def mutation_table(setting: Setting) -> tuple[Finding, ...]:
    """Run every check on every fault."""
    table = {fault.name: examine(fault) for fault in faults(setting)}
    measured = []
    for fault, ratios in table.items():
        alarms = [name for name, ratio in ratios.items() if ratio > 1]
        clean = fault.startswith("no fault")
        measured.append(
            Measurement(
                f"checks that catch '{fault}': {', '.join(alarms) or 'none'}",
                float(len(alarms)),
                0.0 if clean else 1.0,
                Relation.AT_MOST if clean else Relation.AT_LEAST,
            )
        )
    numbers = tuple(float(k) for k in range(1, len(CHECKS) + 1))
    names = [f"{k} {name}" for k, name in enumerate(CHECKS, start=1)]
    legend = "\n".join(", ".join(names[k : k + 3]) for k in range(0, len(names), 3))
    curves = tuple(
        Curve(fault, numbers, tuple(min(max(ratio, 1e-6), 1e12) for ratio in ratios.values()), joined=False)
        for fault, ratios in table.items()
    )
    return (
        Finding(
            key="mutations",
            statement="Mutation table",
            claim="every planted fault is caught by a named check, and no check cries without a fault",
            tested="one W_{m,2} step of 8 tokens (H = 3, moving heads) and one of a single token with tau = 100",
            measurements=tuple(measured),
            verdict=decide(tuple(measured)),
            explanation=(
                "Energy inequality, De Giorgi identity, many starts and coupling certificate run on the step's own "
                "energy and metric, as they would in a faulty program; the others use plain formulas. " + _blind(table)
            ),
            figure=FindingFigure(
                "Planted faults: how far each check is beyond its tolerance",
                legend,
                "measured / tolerance (alarm above 1)",
                (*curves, Curve("tolerance", (1.0, float(len(CHECKS))), (1.0, 1.0), reference=True)),
                y_log=True,
            ),
        ),
    )


def _blind(table: dict[str, dict[str, float]]) -> str:
    """Which faults De Giorgi's identity does not see."""
    unseen = [fault for fault, ratios in table.items() if ratios["De Giorgi identity"] <= 1 and "no fault" not in fault]
    return f"De Giorgi's identity is blind to: {', '.join(unseen) or 'nothing here'}."


STATEMENTS = (Statement("mutations", "Which check catches which fault", mutation_table),)
