"""One minimizing-movement step whose coupling is found by a transport solver."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from jko.energies import Evaluation, Sum
from jko.flows import GradientFlow
from jko.measure import ParticleMeasure
from jko.metrics import Fields
from jko.numerics import row_sum
from jko.schemes.coupled.certificate import certify_coupling
from jko.schemes.coupled.chart_base import ChartBase
from jko.schemes.coupled.correction import TransportCorrection
from jko.schemes.coupled.inputs import mobility_field
from jko.schemes.coupled.terms import AbstractTerm, EntropicTerm, PlanTerm
from jko.schemes.minimizers import Minimization, reported_residual
from jko.schemes.objective import StepProblem, Trial
from jko.status import Status
from jko.transport import AbstractTransport, Coupling, CouplingCertificate, Sinkhorn, TransportProblem

__all__ = ["CoupledOutcome", "CoupledStep"]

_ROUNDS = 50
_RELATIVE_EXCESS = 1e-9
_RETRIES = 3


@final
@dataclass(frozen=True, slots=True, eq=False)
class CoupledOutcome:
    """What a step with a transport solver found.

    Attributes:
        status: SUCCESS only where the minimizer, the transport and the energy balance were all satisfied.
        measure: the new particles with their weights; the best ones found where the step failed.
        evaluation: the energy there; None where the step failed.
        xi: displacements from the last chart base, shape (m, d).
        squared_distance: the transport cost.
        residual: norm in L^2(w/b) of grad T / (2 tau) + grad sE over the larger of the norms of the two.
        passes: passes over the pairs.
        rounds: couplings that were tried.
        marginal_error: of the last transport, in L^1.
        coupling: the last coupling; None for an entropic transport, which has no sparse one.
        detail: particulars of a failure.
    """

    status: Status
    measure: ParticleMeasure
    evaluation: Evaluation | None
    xi: Tensor
    squared_distance: float
    residual: float
    passes: float
    rounds: int
    marginal_error: float
    coupling: Coupling | None
    detail: str = ""


@final
@dataclass(frozen=True, slots=True, eq=False)
class CoupledStep:
    """Minimize sE(u, t_k) + T(u, u^{k-1}) / (2 tau) over m particles of fixed weights.

    With an exact transport T is the smallest of many plan costs: the positions are minimized for one plan, the plan is
    found anew, and so on until it stays; the objective falls every time. With an entropic one T is smooth, and the
    positions are minimized with T evaluated anew at every trial.

    Attributes:
        flow: the gradient flow.
        fields: fields at the old measure and the end time.
        mobility: b at the old particles, shape (n,).
        transport: the solver.
        tau: step size.
        rtol: relative residual that counts as solved.
        minimize: the scheme's minimizer with its fallback.
    """

    flow: GradientFlow
    fields: Fields
    mobility: Tensor
    transport: AbstractTransport
    tau: float
    rtol: float
    minimize: Callable[[StepProblem, Trial, Tensor | None], Minimization]

    def solve(self, guess: ParticleMeasure | None) -> CoupledOutcome:
        """Take the step, on the support size of the guess where there is one."""
        start = self.fields.measure if guess is None else guess
        return self._smooth(start) if self.transport.entropic else self._alternate(start)

    def certify(self, outcome: CoupledOutcome) -> CouplingCertificate:
        """Say what is known about the coupling of a finished step."""
        assert outcome.coupling is not None
        assert outcome.evaluation is not None
        return certify_coupling(
            outcome.coupling,
            self.fields.measure,
            outcome.measure,
            self.mobility / (2 * self.tau),
            outcome.evaluation.first_variation,
            self.flow.manifold,
            self.rtol,
        )

    def _alternate(self, start: ParticleMeasure) -> CoupledOutcome:
        y, manifold = self.fields.measure, self.flow.manifold
        work = _Work()
        if start is y:
            coupling = Coupling.identity(y.weights)
        else:
            first = self.transport.solve(self._problem(start))
            if not first.status.ok or first.coupling is None:
                return self._failed(first.status, start, work, f"the coupling of the guess failed: {first.detail}")
            coupling = first.coupling
        x, rtol = start, self.rtol
        while work.rounds < _ROUNDS:
            term = PlanTerm(y.points, self.mobility, x.weights, coupling, manifold)
            base = ChartBase.of_coupling(coupling, y, self.mobility, start, manifold)
            found = self._minimized(term, base, None if x is y else x, rtol)
            work = replace(work, passes=work.passes + found.passes, rounds=work.rounds + 1)
            if not found.status.ok:
                return self._failed(found.status, x, work, found.detail, found.trial)
            x = x.moved(found.trial.points[0])
            new = self.transport.solve(self._problem(x))
            work = replace(work, marginal_error=new.marginal_error)
            if not new.status.ok or new.coupling is None:
                return self._failed(new.status, x, work, f"the coupling of the new particles failed: {new.detail}")
            kept = new.problem.cost().pairs(coupling.rows, coupling.columns) @ coupling.masses
            if float(kept) - new.value > _RELATIVE_EXCESS * abs(new.value):
                coupling = new.coupling
                continue
            trial = found.trial if base.complete else replace(found.trial, evaluation=None)
            outcome = self._finished(term, x, trial, work, coupling)
            if outcome.status is not Status.NOT_CONVERGED:
                return outcome
            work = replace(work, passes=outcome.passes)
            rtol = 0.5 * rtol * self.rtol / outcome.residual
        return self._failed(
            Status.NOT_CONVERGED, x, work, f"the coupling did not settle within {_ROUNDS} rounds; reduce tau"
        )

    def _smooth(self, start: ParticleMeasure) -> CoupledOutcome:
        y = self.fields.measure
        alike = start.n == y.n and torch.equal(start.weights, y.weights)
        term = EntropicTerm(
            transport=self.transport,
            source=y,
            mobility=self._mobility_or_none(),
            mobility_field=mobility_field(self.transport, self.flow, self.fields),
            weights=start.weights,
            manifold=self.flow.manifold,
        )
        mean = (self.mobility * y.weights).sum()
        base = ChartBase(y.points if alike else start.points, self.mobility if alike else mean.expand(start.n).clone())
        # The plain term pushes even the old measure, which is the size of its forces where there is no energy.
        drift = term.at(y.points).gradient / (2 * self.tau) if alike else None
        x, rtol, work = start, self.rtol, _Work(rounds=1)
        for _ in range(_RETRIES):
            found = self._minimized(term, base, None if x is y else x, rtol)
            work = replace(work, passes=work.passes + found.passes, marginal_error=term.marginal_error)
            if not found.status.ok:
                broken = not term.status.ok
                status = term.status if broken else found.status
                detail = f"the transport ended with {status.name}; {found.detail}" if broken else found.detail
                return self._failed(status, start, work, detail, found.trial)
            x = start.moved(found.trial.points[0])
            outcome = self._finished(term, x, replace(found.trial, evaluation=None), work, None, drift)
            if outcome.status is not Status.NOT_CONVERGED:
                return outcome
            # The chart's own quadratic may be larger than the transport term, which makes its residual too mild.
            work = replace(work, passes=outcome.passes)
            rtol = 0.5 * rtol * self.rtol / outcome.residual
        return outcome

    def _minimized(
        self, term: AbstractTerm, base: ChartBase, start: ParticleMeasure | None, rtol: float
    ) -> Minimization:
        """Minimize the objective with T = term in the chart at `base`."""
        flow, y = self.flow, self.fields.measure
        measure = y if start is None else start
        energy = flow.energy
        if not base.complete:
            energy = Sum((energy, TransportCorrection(term, base.points, base.mobility, flow.manifold, self.tau)))
        problem = StepProblem(
            energy=energy,
            manifold=flow.manifold,
            measure=measure.moved(base.points),
            t=self.fields.t,
            tau=self.tau,
            mobility=base.mobility[None],
            lifted=False,
            rtol=rtol,
            noise=self._noise,
        )
        xi = None if start is None else flow.manifold.log(base.points, start.points)[None]
        zero = torch.zeros_like(base.points)[None]
        if base.complete and start is None:
            # The old measure itself, whose pass the step has paid for.
            origin, paid = problem.from_evaluation(zero, y.points[None], self.fields.evaluation), 0
        else:
            origin, paid = problem.evaluate(zero), 1
        found = self.minimize(problem, origin, xi)
        trial = replace(found.trial, residual=reported_residual(problem, found.trial))
        return replace(found, trial=trial, passes=found.passes + paid)

    def _finished(
        self,
        term: AbstractTerm,
        x: ParticleMeasure,
        trial: Trial,
        work: _Work,
        coupling: Coupling | None,
        drift: Tensor | None = None,
    ) -> CoupledOutcome:
        """Judge the result by the step's own balance, in which no chart occurs."""
        evaluation = trial.evaluation
        if evaluation is None:
            evaluation, work = self.flow.energy.evaluate(x, self.fields.t), replace(work, passes=work.passes + 1)
        value = term.at(x.points)
        residual = trial.residual
        if trial.evaluation is None:
            residual = self._residual(x, value.gradient / (2 * self.tau), evaluation.gradient, drift)
        status, detail = Status.SUCCESS, ""
        if not math.isfinite(residual):
            status = Status.NON_FINITE
        elif residual > self.rtol:
            status, detail = Status.NOT_CONVERGED, f"relative residual {residual:.3g} above rtol = {self.rtol:.3g}"
        elif coupling is not None:
            rise = self._rise(x, float(evaluation.value) + value.value / (2 * self.tau))
            if rise > 0:
                status, detail = Status.NO_DESCENT, f"objective rises by {rise:.3g}"
        return CoupledOutcome(
            status=status,
            measure=x,
            evaluation=evaluation,
            xi=trial.xi[0],
            squared_distance=value.value,
            residual=residual,
            passes=work.passes,
            rounds=work.rounds,
            marginal_error=work.marginal_error,
            coupling=coupling,
            detail=detail,
        )

    def _residual(self, x: ParticleMeasure, cost: Tensor, ambient: Tensor, drift: Tensor | None) -> float:
        manifold = self.flow.manifold
        force, cost = (manifold.project_vector(x.points, vectors).to(torch.float64) for vectors in (ambient, cost))
        weights = x.weights.to(torch.float64)
        mean = float((self.mobility * self.fields.measure.weights).sum())
        size = [
            float((weights * row_sum(vectors.square())).sum().div(mean).sqrt())
            for vectors in (force + cost, force, cost, ambient.to(torch.float64), *([] if drift is None else [drift]))
        ]
        floor = 30 * float(torch.finfo(x.dtype).eps) / self.rtol * size[3]
        scale = max(size[1], size[2], *size[4:], floor)
        if not math.isfinite(size[0]) or not math.isfinite(scale):
            return math.inf
        residual = size[0] / scale if scale > 0 else 0.0
        # As for every step: an error of the displacement within the rounding of the positions is no error.
        eps = max(float(torch.finfo(x.dtype).eps), self._noise)
        reach = 30 * eps * float(torch.maximum(x.points.abs().amax(), self.fields.measure.points.abs().amax()))
        share = size[0] * mean**0.5 * self.tau / mean / reach if reach > 0 else math.inf
        return share * self.rtol if residual > self.rtol and share <= 1 else residual

    def _rise(self, x: ParticleMeasure, objective: float) -> float:
        """How far the objective lies above that of the old measure, where that one is a candidate."""
        y, old = self.fields.measure, float(self.fields.evaluation.value)
        if x.n != y.n or not torch.equal(x.weights, y.weights):
            return 0.0
        rise = objective - old
        slack = 32 * float(torch.finfo(y.dtype).eps) * (abs(old) + abs(objective))
        return rise if rise > slack else 0.0

    def _failed(
        self, status: Status, x: ParticleMeasure, work: _Work, detail: str, trial: Trial | None = None
    ) -> CoupledOutcome:
        usable = trial is not None and trial.finite
        return CoupledOutcome(
            status=status,
            measure=x.moved(trial.points[0]) if trial is not None and usable else x,
            evaluation=None,
            xi=torch.zeros_like(x.points) if trial is None else trial.xi[0],
            squared_distance=math.nan,
            residual=math.inf if trial is None else trial.residual,
            passes=work.passes,
            rounds=work.rounds,
            marginal_error=work.marginal_error,
            coupling=None,
            detail=detail,
        )

    @property
    def _noise(self) -> float:
        """What the transport's own tolerance leaves of the accuracy of its gradient, relative to positions."""
        return self.transport.tolerance if isinstance(self.transport, Sinkhorn) else 0.0

    def _problem(self, target: ParticleMeasure) -> TransportProblem:
        return TransportProblem(self.fields.measure, target, self.flow.manifold, mobility=self._mobility_or_none())

    def _mobility_or_none(self) -> Tensor | None:
        return None if bool((self.mobility == 1).all()) else self.mobility


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """What a step has cost so far: passes over the pairs, couplings; and the error of the last transport."""

    passes: float = 0.0
    rounds: int = 0
    marginal_error: float = 0.0
