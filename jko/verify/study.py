"""Runs of minimizing movements at decreasing step sizes, from which the estimates of Theorem 3.11 are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.checks import check_positive
from jko.driver import solve
from jko.errors import InvalidInput, SolveFailed
from jko.flows import GradientFlow
from jko.measure import ParticleMeasure
from jko.schemes import JKO, AbstractScheme, Anderson, Step
from jko.solution import Solution
from jko.transport import squared_wasserstein

__all__ = ["MakeScheme", "Study", "make_jko"]

MakeScheme = Callable[[float], AbstractScheme]
"""Gives the scheme with a step size."""

_SLACK = 1e-9
_RTOL = 1e-10


def make_jko(tau: float) -> JKO:
    """Return the scheme of the suite: tighter than the default, so that identities close to rounding."""
    return JKO(tau, minimizer=Anderson(rtol=_RTOL))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """One flow from one measure with several step sizes.

    Attributes:
        flow: the gradient flow.
        label: its name in measurements.
        taus: decreasing, each a multiple of the next.
        runs: a solution per tau, every cloud kept.
        make_scheme: gives the scheme with a step size.
        order: of convergence, where theory knows it: 1 for heads that are smooth in time; None elsewhere.
    """

    flow: GradientFlow
    label: str
    taus: tuple[float, ...]
    runs: tuple[Solution, ...]
    make_scheme: MakeScheme
    order: float | None

    @staticmethod
    def of(
        flow: GradientFlow,
        measure: ParticleMeasure,
        taus: Sequence[float],
        t1: float,
        *,
        t0: float = 0.0,
        label: str = "",
        make_scheme: MakeScheme | None = None,
        order: float | None = None,
    ) -> Study:
        """Make the runs.

        Raises:
            InvalidInput: for step sizes that do not decrease or do not divide each other and t1 - t0.
            SolveFailed: when a run does not end well.
        """
        steps = _checked(taus, check_positive(t1 - t0, "t1 - t0"))
        make = make_jko if make_scheme is None else make_scheme
        runs = tuple(solve(flow, measure, make(tau), t1=t1, t0=t0) for tau in steps)
        return Study(flow, label or flow.title, steps, runs, make, order)

    @property
    def finest(self) -> Solution:
        """The run with the smallest step size."""
        return self.runs[-1]

    def energies(self, run: Solution) -> Tensor:
        """sE(u^k, t_k), k = 1..K; for the head-wise metric the mean of the heads' own minima."""
        records = run.records
        energies: Tensor = records.get("head_energy", records.energy)
        return energies

    def costs(self, run: Solution) -> Tensor:
        """W^2(u^k, u^{k-1}) / (2 tau), shape (K,)."""
        costs: Tensor = run.records.squared_distance / (2 * run.states.t.diff())
        return costs

    def dissipation_bound(self, run: Solution) -> float:
        """sE(u_0, t_0) - sE(u^N, T) plus the time parts, plus what averaging over heads changes (head-wise only)."""
        states, records = run.states, run.records
        averaging = float((records.energy - self.energies(run)).sum())
        return float(states.energy[0] - states.energy[-1] + records.time_part.sum()) + averaging

    def rounding(self, run: Solution) -> float:
        """What rounding may change in one energy."""
        unit = float(torch.finfo(run.points.dtype).eps)
        return 64 * unit * float(run.states.energy.abs().max())

    def smallest_mobility(self, run: Solution) -> float:
        """The smallest effective mobility of a particle with mass along the run, b at u^{k-1} with the heads at t_k."""
        found = math.inf
        for k in range(run.steps):
            measure, t = run.measure(k), float(run.states.t[k + 1])
            fields = self.flow.fields(measure, t, self.flow.energy.evaluate(measure, t))
            mobility = self.flow.metric.mobility(fields)
            if self.flow.metric.lifted:
                assert fields.effective_mobility is not None
                mobility = fields.effective_mobility
            found = min(found, float(mobility[measure.weights > 0].min()))
        return found

    def distance(self, mu: ParticleMeasure, nu: ParticleMeasure) -> float:
        """The exact W_2 on the flow's manifold."""
        return math.sqrt(squared_wasserstein(mu, nu, self.flow.manifold))

    def partial_step(self, run: Solution, k: int, s: float) -> Step:
        """De Giorgi's interpolant: step k + 1 of a run with s for tau, the end time unchanged.

        Raises:
            SolveFailed: when that step fails.
        """
        t = float(run.states.t[k + 1])
        step = self.make_scheme(s).step(self.flow, run.measure(k), t - s)
        if not step.info.status.ok:
            raise SolveFailed(
                f"the step from t = {t - s:g} with tau = {s:g} failed: {step.info.detail}",
                solution=run,
                status=step.info.status,
            )
        return step


def _checked(taus: Sequence[float], length: float) -> tuple[float, ...]:
    steps = tuple(check_positive(tau, "tau") for tau in taus)
    if len(steps) < 2:
        raise InvalidInput(f"taus must hold at least two step sizes, got {list(taus)!r}")
    for large, small in zip((length, *steps), steps, strict=False):
        ratio = large / small
        if ratio < 1 or abs(ratio - round(ratio)) > _SLACK * ratio or (large is not length and round(ratio) < 2):
            raise InvalidInput(
                f"taus must decrease, and each must divide the one before and the first the interval {length:g}; "
                f"{small:g} does not divide {large:g}; halve the first as often as you like"
            )
    return steps
