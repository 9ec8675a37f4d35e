"""The estimates of Theorem 3.11 and De Giorgi's identity, read from the runs of a study."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from jko.solution import Solution
from jko.verify.base import Curve, Measurement, Relation
from jko.verify.orders import fit_order
from jko.verify.study import Study

__all__ = ["Estimate", "a_priori_bound", "convergence", "de_giorgi", "energy_inequality", "hoelder"]

_NODES = (5, 8)
_SAVED = 8


@final
@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """What one estimate gave for one study: measurements with the study's label in their names, and curves."""

    measurements: tuple[Measurement, ...]
    curves: tuple[Curve, ...]


def energy_inequality(study: Study) -> Estimate:
    """Theorem 3.11 (i): sE(u^k, t_k) + W^2 / (2 tau) <= sE(u^{k-1}, t_k) in every step of every run."""
    rises, scales, ratios = [], [], []
    for run in study.runs:
        drop = run.records.energy_previous - study.energies(run)
        costs = study.costs(run)
        rises.append(float((costs - drop).max()))
        scales.append(study.rounding(run))
        ratios.append(drop / costs)
    steps = sum(run.steps for run in study.runs)
    measured = (
        Measurement(
            f"largest sE(u^k, t_k) + W^2/(2 tau) - sE(u^(k-1), t_k) of {steps} steps, {study.label}",
            max(rises),
            0.0,
            Relation.AT_MOST,
            max(scales),
        ),
        Measurement(f"smallest energy drop / (W^2/(2 tau)), {study.label}", min(float(r.min()) for r in ratios)),
    )
    times = tuple(study.finest.states.t[1:].tolist())
    return Estimate(measured, (Curve(study.label, times, tuple(ratios[-1].tolist())),))


def a_priori_bound(study: Study) -> Estimate:
    """(tau/2) sum zeta^2 <= sE(u_0, t_0) - sE(u^N, T) + sum of time parts, with zeta = W(u^k, u^{k-1}) / tau."""
    spent = [float(study.costs(run).sum()) for run in study.runs]
    bounds = [study.dissipation_bound(run) for run in study.runs]
    fractions = [cost / bound for cost, bound in zip(spent, bounds, strict=True)]
    run = study.finest
    measured = [
        Measurement(
            f"(tau/2) sum zeta^2 at tau = {study.taus[-1]:g}, {study.label}",
            spent[-1],
            bounds[-1],
            Relation.AT_MOST,
            run.steps * study.rounding(run),
        )
    ]
    coarse = max(range(len(spent)), key=lambda k: spent[k] - bounds[k])
    measured.append(
        Measurement(
            f"largest excess over the bound at any tau, {study.label}",
            spent[coarse] - bounds[coarse],
            0.0,
            Relation.AT_MOST,
            study.runs[coarse].steps * study.rounding(study.runs[coarse]),
        )
    )
    if study.order is not None:
        change = (fractions[-1] - fractions[-2]) / (study.taus[-2] / study.taus[-1] - 1)
        measured.append(
            Measurement(
                f"fraction of the bound, extrapolated to tau = 0, {study.label}",
                fractions[-1] + change,
                0.5,
                Relation.EQUAL,
                # The extrapolation removes the first order; what it leaves is smaller than what it removed.
                abs(change) + 1e-6,
            )
        )
    return Estimate(tuple(measured), (Curve(study.label, study.taus, tuple(fractions)),))


def hoelder(study: Study) -> Estimate:
    """W_2(u^j, u^k) <= sqrt(2 B (t_k - t_j) / min b), B the a-priori bound of the same run, b the mobility."""
    run = study.finest
    bound = max(study.dissipation_bound(run), study.rounding(run))
    b = study.smallest_mobility(run)
    kept = sorted({round(k) for k in np.linspace(0, run.steps, min(_SAVED, run.steps) + 1)})
    gaps, ratios = [], []
    for j, k in itertools.combinations(kept, 2):
        gap = float(run.times[k] - run.times[j])
        gaps.append(gap)
        ratios.append(study.distance(run.measure(j), run.measure(k)) / math.sqrt(2 * bound * gap / b))
    measured = (
        Measurement(
            f"largest W_2(u^j, u^k) / sqrt(2 B (t_k - t_j) / min b), {study.label}",
            max(ratios),
            1.0,
            Relation.AT_MOST,
            1e-9,
        ),
    )
    return Estimate(measured, (Curve(study.label, tuple(gaps), tuple(ratios), joined=False),))


def de_giorgi(study: Study, index: int = 0) -> Estimate:
    """E(u_tau) + W^2/(2 tau) + int_0^tau W^2(u_s) / (2 s^2) ds = E(y), per step and summed over a run, with time parts.

    Args:
        study: the runs.
        index: which of them; by default that with the largest tau.
    """
    run = study.runs[index]
    integrals, errors = [], []
    for k in range(run.steps):
        (rough, _), (fine, inner) = (_integral(study, run, k, nodes) for nodes in _NODES)
        integrals.append(fine)
        errors.append(abs(fine - rough) + inner)
    integral = torch.tensor(integrals, dtype=torch.float64)
    defects = study.energies(run) + study.costs(run) + integral - run.records.energy_previous
    total = float((study.costs(run) + integral).sum()) - study.dissipation_bound(run)
    # Quadrature, the inner tolerance of every minimizer in the integral, and of the step itself, and rounding.
    last = 4 * run.records.residual * study.costs(run)
    slack = [error + float(part) + study.rounding(run) for error, part in zip(errors, last, strict=True)]
    worst = int((defects.abs() - torch.tensor(slack)).argmax())
    name = f"tau = {study.taus[index]:g}, {study.label}"
    measured = (
        Measurement(f"De Giorgi defect of a step, {name}", float(defects[worst]), 0.0, Relation.EQUAL, slack[worst]),
        Measurement(f"De Giorgi defect of the flow, {name}", total, 0.0, Relation.EQUAL, sum(slack)),
        Measurement(f"integral term relative to W^2/(2 tau), {name}", float((integral / study.costs(run)).mean())),
    )
    times = tuple(run.states.t[1:].tolist())
    floor = float(torch.finfo(run.points.dtype).eps) * float(run.states.energy.abs().max())
    return Estimate(measured, (Curve(study.label, times, tuple(max(abs(float(d)), floor) for d in defects)),))


def _integral(study: Study, run: Solution, k: int, nodes: int) -> tuple[float, float]:
    """Gauss-Legendre sum of W^2(u_s, u^k) / (2 s^2) over (0, tau) in step k + 1, and what inner tolerances change."""
    tau = float(run.states.t[k + 1] - run.states.t[k])
    abscissas, factors = np.polynomial.legendre.leggauss(nodes)
    total = error = 0.0
    for abscissa, factor in zip(abscissas.tolist(), factors.tolist(), strict=True):
        s = tau * (1 + abscissa) / 2
        info = study.partial_step(run, k, s).info
        part = factor * tau / 2 * float(info.squared_distance) / (2 * s * s)
        total += part
        # W^2 is of second order in the displacement, whose relative error is the residual; twice that for curvature.
        error += 4 * float(info.residual) * part
    return total, error


def convergence(study: Study) -> Estimate:
    """sup_t W_2(u_tau(t), u_tau'(t)) for consecutive step sizes: at common nodes, and for the two interpolants."""
    nodes, constant, variational = [], [], []
    for coarse, fine, tau, smaller in zip(study.runs, study.runs[1:], study.taus, study.taus[1:], strict=False):
        factor = round(tau / smaller)
        at_nodes, between, curved = [0.0], [0.0], [0.0]
        for j in range(1, fine.steps + 1):
            k, rest = divmod(j, factor)
            if rest == 0:
                at_nodes.append(study.distance(coarse.measure(k), fine.measure(j)))
                continue
            # The piecewise-constant interpolant on (t_k, t_{k+1}] is u^{k+1}.
            between.append(study.distance(coarse.measure(k + 1), fine.measure(j)))
            found = study.partial_step(coarse, k, rest * smaller).measure
            curved.append(study.distance(found, fine.measure(j)))
        nodes.append(max(at_nodes))
        constant.append(max(*at_nodes, *between))
        variational.append(max(*at_nodes, *curved))
    taus = study.taus[:-1]
    measured: list[Measurement] = []
    for name, errors in (("nodes", nodes), ("piecewise constant", constant), ("De Giorgi", variational)):
        text = f"sup_t W_2(u_tau, u_tau'), {name}, {study.label}"
        if len(errors) == 1:
            measured.append(Measurement(text, errors[0]))
            continue
        reference = 0.5 if study.order is None else study.order
        # De Giorgi's interpolant is off by a higher power within a step, which may dominate for the largest tau.
        exact = study.order is not None and name != "De Giorgi"
        relation = Relation.EQUAL if exact else Relation.AT_LEAST
        measured += [
            Measurement(f"order of {text}", fit_order(taus, errors).last, reference, relation, 0.1),
            Measurement(f"smallest {text}, against the one before", errors[-1], errors[-2], Relation.AT_MOST),
        ]
    return Estimate(tuple(measured), (Curve(study.label, taus, tuple(nodes)),))
