"""The minimizing movement (JKO step)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from jko.checks import check_kind, check_positive
from jko.errors import InvalidInput
from jko.flows import AbstractFlow, GradientFlow
from jko.measure import ParticleMeasure, check_measure
from jko.metrics import Fields
from jko.numerics import row_sum
from jko.schemes.base import AbstractScheme, Step, StepInfo, StepState
from jko.schemes.checks import AbstractCheck, FinishedStep
from jko.schemes.coupling import AbstractCoupling, CouplingFailedError, coupling_of
from jko.schemes.inputs import check_step, start_state, weighted_rows, with_every_head
from jko.schemes.minimizers import (
    AbstractMinimizer,
    Anderson,
    Minimization,
    TrustNewton,
    check_blocks,
    judge,
    minimize,
    reported_residual,
)
from jko.schemes.movement import EntropicBias, MatchedMovement
from jko.schemes.movement.inputs import check_coupled, check_guess
from jko.schemes.objective import StepObjective, Trial
from jko.schemes.pose import Pose
from jko.status import Status
from jko.transport import AbstractTransport, Matched, Sinkhorn
from jko.typing import settle

__all__ = ["JKO"]

_log = logging.getLogger("jko")


@final
@dataclass(frozen=True, slots=True, eq=False)
class JKO(AbstractScheme):
    """u^k in argmin { sE(u, t_k) + W^2(u, u^{k-1}) / (2 tau) }, Massucco et al. 2026, Section 3.3.

    The energy and the heads in the mobility are taken at the END time t_k, the mobility is frozen at u^{k-1}. The
    head-wise metric minimizes per head and averages the displacements in the tangent spaces at u^{k-1}.

    Every step carries a certificate: `certified` is 1 when the relative first-order residual met the tolerance, the
    objective did not rise, every displacement is short of the cut locus, and the potential test proved the coupling;
    an exact transport proves it by its own duals, and an entropic one certifies the entropic objective alone.

    Args:
        tau: step size, in units of time.
        transport: the transport term. `Matched()` is exact for equal weights and costs O(n d); `ExactOT()` finds the
            coupling for unequal weights, or for the other support that a `guess` brings; `Sinkhorn(eps)` is entropic.
        minimizer: solves the step.
        fallback: takes over where the minimizer fails, judged by the minimizer's tolerance; None reports the failure
            instead.
        checks: further statements to examine after every step, such as `jko.DeGiorgi()`; each adds its columns to the
            records, and `certified` is 1 only where all of them were shown too.
    """

    tau: float
    transport: AbstractTransport = field(default=Matched(), kw_only=True)
    minimizer: AbstractMinimizer = field(default=Anderson(), kw_only=True)
    fallback: AbstractMinimizer | None = field(default=TrustNewton(), kw_only=True)
    checks: Sequence[AbstractCheck] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        check_positive(self.tau, "tau")
        for value, kind, name in (
            (self.transport, AbstractTransport, "transport"),
            (self.minimizer, AbstractMinimizer, "minimizer"),
            (self.minimizer if self.fallback is None else self.fallback, AbstractMinimizer, "fallback"),
            *((check, AbstractCheck, "every check") for check in self.checks),
        ):
            check_kind(value, kind, name)
        if self.checks and not isinstance(self.transport, Matched):
            raise InvalidInput(
                f"checks examine the identity coupling of Matched(); with {self.transport.title} leave checks empty"
            )
        settle(self, checks=tuple(self.checks))

    @property
    def title(self) -> str:
        return "JKO" if isinstance(self.transport, Matched) else f"JKO ({self.transport.title})"

    def check(self, flow: AbstractFlow) -> None:
        if not isinstance(flow, GradientFlow):
            raise InvalidInput(
                f"a minimizing movement needs an energy and a metric, which {type(flow).__name__} does not have; use "
                "an explicit scheme"
            )
        if not isinstance(self.transport, Matched):
            check_coupled(self.transport, flow)

    def start(self, flow: AbstractFlow, measure: ParticleMeasure, t: float) -> StepState:
        self.check(flow)
        self._check_size(flow, measure, None)
        state = start_state(flow, measure, t)
        if isinstance(self.transport, Sinkhorn):
            assert isinstance(flow, GradientFlow)
            with torch.no_grad():
                fields = flow.fields(measure, t, state.flow_state.evaluation)
                bias = EntropicBias.of(self.transport, flow, fields, flow.metric.mobility(fields), self.tau)
            if bias.notable:
                _log.warning("%s: %s", self.title, bias.advice)
        return state

    def step(
        self,
        flow: AbstractFlow,
        measure: ParticleMeasure,
        t: float = 0.0,
        tau: float | None = None,
        state: StepState | None = None,
        guess: ParticleMeasure | None = None,
    ) -> Step:
        tau = self.tau if tau is None else tau
        self.check(flow)
        assert isinstance(flow, GradientFlow)
        if state is None or state.memory is None or guess is not None:
            # What a minimizer left says that the step before has asked.
            self._check_size(flow, measure, guess)
        state = check_step(flow, measure, t, tau, state)
        with torch.no_grad():
            return with_every_head(flow, self._step(flow, measure, t, tau, state, guess))

    def _check_size(self, flow: AbstractFlow, measure: ParticleMeasure, guess: ParticleMeasure | None) -> None:
        """Refuse arrays that memory cannot hold, before the first pass."""
        check_measure(measure)
        if guess is not None:
            check_measure(guess, "guess")
        self.transport.check_size(measure.n, measure.n if guess is None else guess.n, measure.device)
        assert isinstance(flow, GradientFlow)
        # An energy that does not move has no curvature at hand: its evaluation is that of the step before.
        if self.minimizer.wants_curvature and flow.moves:
            flow.energy.check_curvature(measure)
            check_blocks(flow.energy.attention_parts[0].heads.num_heads if flow.metric.lifted else 1, measure)

    def _step(
        self,
        flow: GradientFlow,
        measure: ParticleMeasure,
        t: float,
        tau: float,
        state: StepState,
        guess: ParticleMeasure | None,
    ) -> Step:
        """Pose, minimize and judge, certify, hand over."""
        energy = flow.energy.at(t + tau, measure.points)
        evaluation, passes = (None if flow.moves else state.flow_state.evaluation), 0.0
        if evaluation is None:
            curvature = self.minimizer.wants_curvature
            evaluation, passes = energy.evaluate(measure, t + tau, curvature=curvature), energy.passes
        rows = weighted_rows(flow)
        if rows is not None and evaluation.heads is not None:
            evaluation = replace(evaluation, heads=evaluation.heads.selected(rows))
        fields = flow.fields(measure, t + tau, evaluation)
        pose = Pose.of(flow, energy, fields, tau, self.minimizer.tolerance(measure.dtype), rows)
        previous = float(evaluation.value)
        columns = {"energy_previous": previous, "time_part": previous - state.flow_state.columns["energy"]}
        guess = check_guess(flow, measure, guess)
        objective = pose.objective(pose.matched)
        origin, _ = pose.origin(objective)
        if not origin.finite:
            detail = flow.explain_non_finite(measure, t + tau)
            info = StepInfo(Status.NON_FINITE, {**columns, "evaluations": passes}, origin.xi, 0.0, detail=detail)
            return Step(measure, info, state)
        coupling = coupling_of(self.transport, pose, guess)
        outcome = self._solve(pose, coupling, (objective, origin), guess, state.memory)
        return self._finish(pose, coupling, replace(outcome, passes=passes + outcome.passes), columns, measure, state)

    def _solve(
        self,
        pose: Pose,
        coupling: AbstractCoupling,
        matched: tuple[StepObjective, Trial],
        guess: ParticleMeasure | None,
        memory: Any,
    ) -> _Outcome:
        """Minimize with the first movement, then with that of every better coupling, until one stays."""
        place, passes, origin, objective, trial = guess, 0.0, None, None, None
        try:
            movement = coupling.first()
            while True:
                if isinstance(movement, MatchedMovement):
                    (objective, origin), paid = matched, 0.0
                else:
                    objective = pose.objective(movement)
                    origin, paid = pose.origin(objective)
                reference = pose.reference(objective, origin, coupling.start.weights)
                start = None
                if place is not None:
                    start = pose.flow.manifold.log(movement.base, place.points).expand_as(origin.xi).clone()
                # On the way from a guess only the end must lie below the old measure.
                least = reference if guess is None or movement.base is pose.fields.measure.points else None
                found = self._minimize(objective, origin, least, start, memory)
                trial, passes = found.trial, passes + paid + found.passes
                if not found.status.ok:
                    status, detail = coupling.explain(found.status, found.detail)
                    return _Outcome(status, detail, objective, origin, trial, passes, None)
                better = coupling.following(trial)
                if better is None:
                    status, detail = found.status, found.detail
                    if least is not reference:
                        status, detail = judge(objective, trial, reference)
                    return _Outcome(status, detail, objective, origin, trial, passes, found.memory)
                movement, place = better, coupling.start.moved(trial.points[0])
        except CouplingFailedError as error:
            return _Outcome(error.status, str(error), objective, origin, trial, passes, None)

    def _minimize(
        self,
        objective: StepObjective,
        origin: Trial,
        reference: Sequence[float] | None,
        guess: Tensor | None,
        memory: Any,
    ) -> Minimization:
        """Minimize, with the fallback where the minimizer fails; the passes are those of all attempts."""
        first = minimize(self.minimizer, objective, origin, reference, guess, memory)
        if first.status.ok or self.fallback is None:
            return first
        # A wrong branch is no place to start from; an unfinished point is, and so is one that only some groups spoil.
        several = objective.groups > 1
        unfinished = first.status is Status.NOT_CONVERGED and first.trial.residual < 0.1
        start = first.trial.xi if unfinished or (several and first.trial.finite) else guess
        second = minimize(self.fallback, objective, origin, reference, start)
        passes = first.passes + second.passes
        if start is not guess and not several and not second.status.ok:
            third = minimize(self.fallback, objective, origin, reference, guess)
            passes += third.passes
            second = third if third.status.ok else second
        return replace(second, passes=passes, memory=None)

    def _finish(
        self,
        pose: Pose,
        coupling: AbstractCoupling,
        outcome: _Outcome,
        columns: dict[str, float],
        measure: ParticleMeasure,
        state: StepState,
    ) -> Step:
        """Judge the new state, certify the coupling, and hand over."""
        flow, fields, trial, objective = pose.flow, pose.fields, outcome.trial, outcome.objective
        columns = {**columns, "evaluations": outcome.passes, "certified": 0.0, **coupling.columns()}
        if trial is None or objective is None or outcome.origin is None:
            info = StepInfo(outcome.status, columns, torch.zeros_like(measure.points), 0.0, detail=outcome.detail)
            return Step(measure, info, state)
        displacement = trial.xi if flow.metric.lifted else trial.xi[0]
        largest = float(row_sum(trial.xi.square()).amax().sqrt())
        columns["squared_distance"] = float(torch.tensor(trial.cost, dtype=torch.float64) @ pose.shares)
        if flow.metric.lifted:
            columns["head_energy"] = float(torch.tensor(trial.energy, dtype=torch.float64) @ pose.shares)
        columns |= {"largest_displacement": largest, "residual": reported_residual(objective, trial)}
        moved = pose.moved(coupling.start, trial) if trial.finite else None
        if not outcome.status.ok or moved is None:
            detail = _explain(flow, fields, outcome.detail)
            return Step(measure, StepInfo(outcome.status, columns, displacement, largest, moved, detail=detail), state)
        evaluation = pose.evaluation_at(trial)
        if evaluation is None:
            columns["evaluations"] += flow.energy.passes
        new = flow.state_of(flow.fields(moved, fields.t, evaluation))
        if not all(map(math.isfinite, map(new.columns.__getitem__, ("energy", "slope2", "dissipation")))):
            detail = flow.explain_non_finite(moved, fields.t)
            return Step(
                measure, StepInfo(Status.NON_FINITE, columns, displacement, largest, moved, detail=detail), state
            )
        certificate, shown = coupling.certify(trial)
        finished = FinishedStep(
            flow, fields, objective, outcome.origin, trial, pose.shares, self._resolve(pose, outcome)
        )
        results = {check.name: check.examine(finished) for check in self.checks}
        columns |= {name: number for result in results.values() for name, number in result.columns.items()}
        columns["certified"] = float(shown and all(result.passed for result in results.values()))
        details = ["" if certificate is None else certificate.detail, *(result.detail for result in results.values())]
        info = StepInfo(
            Status.SUCCESS,
            columns,
            displacement,
            largest,
            coupling=certificate,
            checks=results,
            detail="; ".join(detail for detail in details if detail),
        )
        return Step(moved, info, StepState(flow, new, outcome.memory))

    def _resolve(self, pose: Pose, outcome: _Outcome) -> Callable[[float], Minimization | None]:
        """The same step with another tau: measure, end time and mobility stay, and the trial at xi = 0 serves again."""
        objective, origin = outcome.objective, outcome.origin
        assert objective is not None
        assert origin is not None

        def solve(tau: float) -> Minimization | None:
            found = self._minimize(replace(objective, tau=tau), origin, origin.objective, None, None)
            return found if found.status.ok else None

        return solve


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Outcome:
    """How the minimizations of a step ended; without a trial where not even the first coupling was found."""

    status: Status
    detail: str
    objective: StepObjective | None
    origin: Trial | None
    trial: Trial | None
    passes: float
    memory: Any


def _explain(flow: GradientFlow, fields: Fields, detail: str) -> str:
    """The particulars of a failure; where the energy is too large for its differences to mean anything, say so."""
    if abs(float(fields.evaluation.value)) * torch.finfo(torch.float64).eps < 1:
        return detail
    return f"{detail}; {flow.explain_non_finite(fields.measure, fields.t)}"
