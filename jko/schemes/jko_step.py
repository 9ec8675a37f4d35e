"""The minimizing movement (JKO step)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from jko.checks import check_kind, check_positive, simplex_tolerance
from jko.energies import AbstractEnergy
from jko.errors import InvalidInput
from jko.flows import AbstractFlow, GradientFlow
from jko.measure import ParticleMeasure
from jko.metrics import Fields
from jko.numerics import row_sum
from jko.schemes.base import AbstractScheme, Step, StepInfo, StepState
from jko.schemes.checks import AbstractCheck, CheckResult, FinishedStep
from jko.schemes.coupled import CoupledStep, EntropicBias, check_coupled, check_guess
from jko.schemes.inputs import check_step, start_state, weighted_rows, with_every_head
from jko.schemes.minimizers import AbstractMinimizer, Anderson, Minimization, Secants, TrustNewton, reported_residual
from jko.schemes.objective import StepProblem, Trial
from jko.status import Status
from jko.transport import AbstractTransport, CouplingCertificate, CouplingProblem, Matched, Sinkhorn

__all__ = ["JKO"]

_log = logging.getLogger("jko")


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
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
    transport: AbstractTransport
    minimizer: AbstractMinimizer
    fallback: AbstractMinimizer | None
    checks: tuple[AbstractCheck, ...]

    def __init__(
        self,
        tau: float,
        *,
        transport: AbstractTransport | None = None,
        minimizer: AbstractMinimizer | None = None,
        fallback: AbstractMinimizer | None = TrustNewton(),
        checks: Sequence[AbstractCheck] = (),
    ) -> None:
        transport = Matched() if transport is None else transport
        minimizer = Anderson() if minimizer is None else minimizer
        for value, kind, name in (
            (transport, AbstractTransport, "transport"),
            (minimizer, AbstractMinimizer, "minimizer"),
            (minimizer if fallback is None else fallback, AbstractMinimizer, "fallback"),
            *((check, AbstractCheck, "every check") for check in checks),
        ):
            check_kind(value, kind, name)
        if checks and not isinstance(transport, Matched):
            raise InvalidInput(
                f"checks examine the identity coupling of Matched(); with {transport.title} leave checks empty"
            )
        object.__setattr__(self, "tau", check_positive(tau, "tau"))
        object.__setattr__(self, "transport", transport)
        object.__setattr__(self, "minimizer", minimizer)
        object.__setattr__(self, "fallback", fallback)
        object.__setattr__(self, "checks", tuple(checks))

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
        state = check_step(flow, measure, t, tau, state)
        with torch.no_grad():
            return with_every_head(flow, self._step(flow, measure, t, tau, state, guess))

    def _step(
        self,
        flow: GradientFlow,
        measure: ParticleMeasure,
        t: float,
        tau: float,
        state: StepState,
        guess: ParticleMeasure | None,
    ) -> Step:
        old = state.flow_state
        passes = 0.0
        evaluation = None if flow.moves else old.evaluation
        if evaluation is None:
            curvature = self.minimizer.wants_curvature
            evaluation, passes = flow.energy.evaluate(measure, t + tau, curvature=curvature), 1.0
        energy, rows = flow.energy, weighted_rows(flow)
        if rows is not None and evaluation.heads is not None:
            energy, evaluation = energy.heads_alone(rows), replace(evaluation, heads=evaluation.heads.selected(rows))
        fields = flow.fields(measure, t + tau, evaluation)
        problem, origin = self._problem(flow, energy, fields, tau)
        previous = float(evaluation.value)
        columns = {"energy_previous": previous, "time_part": previous - old.columns["energy"]}
        if not origin.finite:
            detail = flow.explain_non_finite(measure, t + tau)
            info = StepInfo(Status.NON_FINITE, {**columns, "evaluations": passes}, origin.xi, 0.0, detail=detail)
            return Step(measure, info, state)
        if not isinstance(self.transport, Matched):
            return self._coupled(flow, fields, problem, guess, passes, columns, state)
        guess = check_guess(flow, measure, guess)
        start = None if guess is None else _logarithm(flow, measure, guess, origin)
        found = self._minimize(problem, origin, start, state.secants)
        return self._finish(flow, fields, problem, origin, found, passes + found.passes, columns, state)

    def _problem(
        self, flow: GradientFlow, energy: AbstractEnergy, fields: Fields, tau: float
    ) -> tuple[StepProblem, Trial]:
        """The step's objective and its trial at xi = 0, from the fields at y and the end time."""
        metric, y = flow.metric, fields.measure.points
        mobility = metric.mobility(fields)
        problem = StepProblem(
            energy=energy,
            manifold=flow.manifold,
            measure=fields.measure,
            t=fields.t,
            tau=tau,
            mobility=mobility if metric.lifted else mobility[None],
            lifted=metric.lifted,
            rtol=self.minimizer.tolerance(fields.measure.dtype),
        )
        heads = fields.evaluation.heads
        if metric.lifted:
            assert heads is not None
            zero = torch.zeros(problem.mobility.shape[0], *y.shape, dtype=y.dtype, device=y.device)
            return problem, problem.from_heads(zero, y.expand_as(zero), heads)
        zero = torch.zeros_like(y)[None]
        return problem, problem.from_evaluation(zero, y[None], fields.evaluation)

    def _coupled(
        self,
        flow: GradientFlow,
        fields: Fields,
        problem: StepProblem,
        guess: ParticleMeasure | None,
        passes: float,
        columns: dict[str, float],
        state: StepState,
    ) -> Step:
        """Take the step with the coupling left to the transport solver."""
        setting = CoupledStep(
            flow=flow,
            fields=fields,
            mobility=problem.mobility[0],
            transport=self.transport,
            tau=problem.tau,
            rtol=problem.rtol,
            minimize=lambda part, start, xi: self._minimize(part, start, xi, None),
        )
        found = setting.solve(check_guess(flow, fields.measure, guess))
        certificate = None if found.coupling is None else setting.certify(found)
        status, detail = found.status, _explained(flow, fields, found.detail)
        new = state
        if found.evaluation is not None:
            new = StepState(flow, flow.state_of(flow.fields(found.measure, fields.t, found.evaluation)))
            finite = all(math.isfinite(new.flow_state.columns[name]) for name in ("energy", "slope2", "dissipation"))
            if status.ok and not finite:
                status, detail = Status.NON_FINITE, flow.explain_non_finite(found.measure, fields.t)
        largest = float(row_sum(found.xi.square()).amax().sqrt())
        if isinstance(self.transport, Sinkhorn):
            bias = EntropicBias.of(self.transport, flow, fields, problem.mobility[0], problem.tau)
            columns["entropic_bias"] = bias.relative_error
        info = StepInfo(
            status,
            {
                **columns,
                "squared_distance": found.squared_distance,
                "largest_displacement": largest,
                "residual": found.residual,
                "evaluations": passes + found.passes,
                "certified": float(status.ok and (certificate is None or certificate.optimal is True)),
                "couplings": found.rounds,
                "marginal_error": found.marginal_error,
            },
            found.xi,
            largest,
            trial=None if status.ok else found.measure,
            coupling=certificate,
            detail=detail,
        )
        return Step(found.measure, info, new) if status.ok else Step(fields.measure, info, state)

    def _minimize(
        self, problem: StepProblem, origin: Trial, guess: Tensor | None, secants: Secants | None
    ) -> Minimization:
        """Minimize, with the fallback where the minimizer fails; the passes are those of all attempts."""
        found = self.minimizer.minimize(problem, origin, guess, secants)
        if found.status.ok or self.fallback is None:
            return found
        # A wrong branch is no place to start from; an unfinished point is, and so is one that only some heads spoil.
        unfinished = found.status is Status.NOT_CONVERGED and found.trial.residual < 0.1
        start = found.trial.xi if unfinished or (problem.lifted and found.trial.finite) else guess
        second = self.fallback.minimize(problem, origin, start)
        passes = found.passes + second.passes
        if start is not guess and not problem.lifted and not second.status.ok:
            third = self.fallback.minimize(problem, origin, guess)
            passes += third.passes
            second = third if third.status.ok else second
        return replace(second, passes=passes)

    def _finish(
        self,
        flow: GradientFlow,
        fields: Fields,
        problem: StepProblem,
        origin: Trial,
        found: Minimization,
        passes: float,
        columns: dict[str, float],
        state: StepState,
    ) -> Step:
        trial, measure = found.trial, fields.measure
        displacement = trial.xi if problem.lifted else trial.xi[0]
        heads = fields.evaluation.heads
        weights = None if heads is None else heads.head_weights
        squared = flow.metric.squared_displacement(
            displacement, problem.mobility if problem.lifted else problem.mobility[0], measure.weights, weights
        )
        columns = {**columns, "squared_distance": float(squared)}
        if problem.lifted:
            energies = torch.tensor(trial.energy, dtype=torch.float64)
            columns["head_energy"] = float(energies.mean() if weights is None else energies @ weights.to(energies))
        largest = float(row_sum(trial.xi.square()).amax().sqrt())
        residual = reported_residual(problem, trial)
        common = {**columns, "largest_displacement": largest, "residual": residual}
        if not found.status.ok:
            failed = _averaged(flow, measure, trial, weights) if trial.finite else None
            info = StepInfo(
                found.status,
                {**common, "evaluations": passes, "certified": 0.0},
                displacement,
                largest,
                trial=failed,
                detail=_explained(flow, fields, found.detail),
            )
            return Step(measure, info, state)
        moved = _averaged(flow, measure, trial, weights)
        if trial.evaluation is None:
            passes += 1
        new = flow.state_of(flow.fields(moved, fields.t, trial.evaluation))
        if not all(math.isfinite(new.columns[name]) for name in ("energy", "slope2", "dissipation")):
            detail = flow.explain_non_finite(moved, fields.t)
            numbers = {**common, "evaluations": passes, "certified": 0.0}
            failed_info = StepInfo(Status.NON_FINITE, numbers, displacement, largest, trial=moved, detail=detail)
            return Step(measure, failed_info, state)
        coupling = self._certify(flow, problem, trial)
        results = self._examine(FinishedStep(flow, fields, problem, origin, trial, self._resolver(problem, origin)))
        shown = coupling.global_on_support and all(result.passed for result in results.values())
        numbers = {name: number for result in results.values() for name, number in result.columns.items()}
        details = [coupling.detail, *(result.detail for result in results.values())]
        info = StepInfo(
            Status.SUCCESS,
            {**common, "evaluations": passes, "certified": float(shown), **numbers},
            displacement,
            largest,
            coupling=coupling,
            checks=results,
            detail="; ".join(detail for detail in details if detail),
        )
        return Step(moved, info, StepState(flow, new, found.secants))

    def _examine(self, finished: FinishedStep) -> dict[str, CheckResult]:
        return {check.name: check.examine(finished) for check in self.checks}

    def _resolver(self, problem: StepProblem, origin: Trial) -> Callable[[float], Minimization | None]:
        """The same step with another tau: measure, end time and mobility stay, and the trial at xi = 0 serves again."""

        def solve(tau: float) -> Minimization | None:
            found = self._minimize(replace(problem, tau=tau), origin, None, None)
            return found if found.status.ok else None

        return solve

    def _certify(self, flow: GradientFlow, problem: StepProblem, trial: Trial) -> CouplingCertificate:
        """The weakest certificate over the groups: each head of a lifted metric has a coupling of its own."""
        assert isinstance(self.transport, Matched)
        return self.transport.certify_all(
            [
                CouplingProblem(
                    source=problem.measure.points,
                    target=trial.points[g],
                    weights=problem.measure.weights,
                    mobility=problem.mobility[g],
                    potential=trial.potential[g],
                    tau=problem.tau,
                    manifold=flow.manifold,
                    tolerance=problem.rtol,
                )
                for g in range(trial.points.shape[0])
            ]
        )


def _explained(flow: GradientFlow, fields: Fields, detail: str) -> str:
    """The particulars of a failure; where the energy is too large for its differences to mean anything, say so."""
    if abs(float(fields.evaluation.value)) * torch.finfo(torch.float64).eps < 1:
        return detail
    return f"{detail}; {flow.explain_non_finite(fields.measure, fields.t)}"


def _averaged(
    flow: GradientFlow, measure: ParticleMeasure, trial: Trial, head_weights: Tensor | None
) -> ParticleMeasure:
    """The new measure: Exp_y of the displacement, averaged over heads for a lifted metric."""
    if trial.evaluation is not None:
        return measure.moved(trial.points[0])
    weights = None if head_weights is None else head_weights.to(trial.xi)
    mean = trial.xi.mean(0) if weights is None else torch.tensordot(weights, trial.xi, dims=1)
    return measure.moved(flow.manifold.exp(measure.points, mean))


def _logarithm(flow: GradientFlow, measure: ParticleMeasure, guess: ParticleMeasure, origin: Trial) -> Tensor:
    """The displacements (G, n, d) that lead to the guess, which has the particles and the weights of the measure."""
    if guess.points.shape != measure.points.shape:
        raise InvalidInput(
            f"guess has points of shape {tuple(guess.points.shape)}; Matched transport needs "
            f"{tuple(measure.points.shape)}"
        )
    apart = float((guess.weights - measure.weights).abs().max())
    if apart > simplex_tolerance(measure.dtype):
        raise InvalidInput(
            f"guess has other weights than the measure, by up to {apart:.3g}; Matched transport keeps the weights: "
            "give the guess those of the measure, or use JKO(tau, transport=ExactOT())"
        )
    return flow.manifold.log(measure.points, guess.points).expand_as(origin.xi).clone()
