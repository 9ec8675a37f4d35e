"""Where the coupling of a step comes from, transport by transport: identity, exact plans found in turn, entropic."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from jko.checks import simplex_tolerance
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure
from jko.schemes.movement import AbstractMovement, EntropicBias, TransportMovement
from jko.schemes.movement.certificate import certify_coupling
from jko.schemes.movement.chart_base import ChartBase
from jko.schemes.movement.inputs import mobility_field
from jko.schemes.movement.terms import EntropicTerm, PlanTerm
from jko.schemes.objective import Trial
from jko.schemes.pose import Pose
from jko.status import Status
from jko.transport import (
    AbstractTransport,
    Coupling,
    CouplingCertificate,
    CouplingProblem,
    Matched,
    Sinkhorn,
    TransportProblem,
)
from jko.typing import default

__all__ = ["AbstractCoupling", "CouplingFailedError", "coupling_of"]


class CouplingFailedError(Exception):
    """The transport solver found no coupling: the step fails with its status."""

    def __init__(self, status: Status, detail: str) -> None:
        self.args = (detail,)
        self.status = status


class AbstractCoupling(ABC):
    """The coupling of one step: gives the first movement, and after each minimization the next one or none.

    Attributes:
        start: the measure whose weights the new one has: y, or the guess where the transport allows another support.
    """

    __slots__ = ()
    start: ParticleMeasure

    @abstractmethod
    def first(self) -> AbstractMovement:
        """Return the movement to begin with.

        Raises:
            CouplingFailedError: when the transport solver fails.
        """

    @default
    def following(self, trial: Trial) -> AbstractMovement | None:
        """Return the movement of a better coupling with the new particles; None where the old one stays.

        Raises:
            CouplingFailedError: when the transport solver fails, or the coupling does not settle.
        """
        return None

    @abstractmethod
    def certify(self, trial: Trial) -> tuple[CouplingCertificate | None, bool]:
        """Return what was shown about the coupling of a finished step, and whether that certifies it."""

    @default
    def columns(self) -> dict[str, float]:
        """Return the columns of the records that tell of the coupling."""
        return {}

    @default
    def explain(self, status: Status, detail: str) -> tuple[Status, str]:
        """Return status and detail of a minimization that failed: the transport may be what broke."""
        return status, detail


def coupling_of(transport: AbstractTransport, pose: Pose, guess: ParticleMeasure | None) -> AbstractCoupling:
    """Return how this transport couples a step; the one place that tells transports apart."""
    start = pose.fields.measure if guess is None else guess
    if isinstance(transport, Matched):
        if guess is not None:
            _check_alike(pose.fields.measure, guess)
        return _MatchedCoupling(pose, transport, pose.fields.measure)
    if isinstance(transport, Sinkhorn):
        return _EntropicCoupling(pose, transport, start)
    return _PlannedCoupling(pose, transport, start)


@final
@dataclass(frozen=True, eq=False)
class _MatchedCoupling(AbstractCoupling):
    """Particle i comes from particle i, in every group."""

    pose: Pose
    transport: Matched
    start: ParticleMeasure

    def first(self) -> AbstractMovement:
        return self.pose.matched

    def certify(self, trial: Trial) -> tuple[CouplingCertificate | None, bool]:
        pose, y = self.pose, self.pose.fields.measure
        certificate = self.transport.certify_all(
            [
                CouplingProblem(
                    source=y.points,
                    target=trial.points[g],
                    weights=y.weights,
                    mobility=pose.mobility[g],
                    potential=trial.potential[g],
                    tau=pose.tau,
                    manifold=pose.flow.manifold,
                    tolerance=pose.rtol,
                )
                for g in range(trial.points.shape[0])
            ]
        )
        return certificate, certificate.global_on_support


_ROUNDS = 50
"""Couplings that are tried in one step; the objective falls with each, so more than a few mean a large tau."""
_RELATIVE_EXCESS = 1e-9
"""A coupling stays while it costs at most so much more than the optimal one, relatively."""


@final
@dataclass(eq=False)
class _PlannedCoupling(AbstractCoupling):
    """The smallest of many plan costs: the positions are minimized for one plan, the plan is found anew, and so on."""

    pose: Pose
    transport: AbstractTransport
    start: ParticleMeasure
    coupling: Coupling = field(init=False)
    rounds: int = 0
    marginal_error: float = 0.0

    def first(self) -> AbstractMovement:
        y = self.pose.fields.measure
        if self.start is y:
            return self._movement(Coupling.identity(y.weights))
        solution = self.transport.solve(self._problem(self.start))
        if not solution.status.ok or solution.coupling is None:
            raise CouplingFailedError(solution.status, f"the coupling of the guess failed: {solution.detail}")
        return self._movement(solution.coupling)

    def following(self, trial: Trial) -> AbstractMovement | None:
        solution = self.transport.solve(self._problem(self.start.moved(trial.points[0])))
        self.marginal_error = solution.marginal_error
        if not solution.status.ok or solution.coupling is None:
            raise CouplingFailedError(solution.status, f"the coupling of the new particles failed: {solution.detail}")
        kept = solution.problem.cost().pairs(self.coupling.rows, self.coupling.columns) @ self.coupling.masses
        if float(kept) - solution.value <= _RELATIVE_EXCESS * abs(solution.value):
            return None
        if self.rounds == _ROUNDS:
            detail = f"the coupling did not settle within {_ROUNDS} rounds; reduce tau"
            raise CouplingFailedError(Status.NOT_CONVERGED, detail)
        return self._movement(solution.coupling)

    def certify(self, trial: Trial) -> tuple[CouplingCertificate | None, bool]:
        pose = self.pose
        target = self.start.moved(trial.points[0])
        certificate = certify_coupling(
            self.coupling,
            pose.fields.measure,
            target,
            pose.mobility[0] / (2 * pose.tau),
            trial.potential[0],
            pose.flow.manifold,
            pose.rtol,
        )
        return certificate, certificate.optimal is True

    def columns(self) -> dict[str, float]:
        return {"couplings": self.rounds, "marginal_error": self.marginal_error}

    def _movement(self, coupling: Coupling) -> TransportMovement:
        self.coupling, self.rounds = coupling, self.rounds + 1
        y, manifold, mobility = self.pose.fields.measure, self.pose.flow.manifold, self.pose.mobility[0]
        term = PlanTerm(y.points, mobility, self.start.weights, coupling, manifold)
        chart = ChartBase.of_coupling(coupling, y, mobility, self.start, manifold)
        # The base points of the identity are y itself: the pass there is at hand.
        base = y.points if self.rounds == 1 and self.start is y else chart.points
        return TransportMovement(base, chart.mobility[None], self.start.weights, term, manifold, chart.complete)

    def _problem(self, target: ParticleMeasure) -> TransportProblem:
        mobility = _mobility_or_none(self.pose.mobility[0])
        return TransportProblem(self.pose.fields.measure, target, self.pose.flow.manifold, mobility=mobility)


@final
@dataclass(eq=False)
class _EntropicCoupling(AbstractCoupling):
    """The entropic cost is smooth in the particles: one minimization with it evaluated anew at every trial."""

    pose: Pose
    transport: Sinkhorn
    start: ParticleMeasure
    term: EntropicTerm = field(init=False)

    def first(self) -> AbstractMovement:
        pose, y, start = self.pose, self.pose.fields.measure, self.start
        alike = start.n == y.n and torch.equal(start.weights, y.weights)
        mobility = pose.mobility[0]
        self.term = EntropicTerm(
            transport=self.transport,
            source=y,
            mobility=_mobility_or_none(mobility),
            mobility_field=mobility_field(self.transport, pose.flow, pose.fields),
            weights=start.weights,
            manifold=pose.flow.manifold,
        )
        mean = (mobility * y.weights).sum()
        # The plain term pushes even the old measure, which is the size of its forces where there is no energy.
        drift = self.term.at(y.points).gradient[None] if alike else None
        return TransportMovement(
            base=y.points if alike else start.points,
            mobility=(mobility if alike else mean.expand(start.n).clone())[None],
            weights=start.weights,
            term=self.term,
            manifold=pose.flow.manifold,
            drift=drift,
            noise=self.transport.tolerance,
        )

    def certify(self, trial: Trial) -> tuple[CouplingCertificate | None, bool]:
        return None, True

    def columns(self) -> dict[str, float]:
        bias = EntropicBias.of(self.transport, self.pose.flow, self.pose.fields, self.pose.mobility[0], self.pose.tau)
        last = self.term.last
        return {
            "couplings": 1,
            "marginal_error": 0.0 if last is None else last.marginal_error,
            "entropic_bias": bias.relative_error,
        }

    def explain(self, status: Status, detail: str) -> tuple[Status, str]:
        last = self.term.last
        if last is None or last.status.ok:
            return status, detail
        return last.status, f"the transport ended with {last.status.name}; {detail}"


def _mobility_or_none(mobility: Tensor) -> Tensor | None:
    return None if bool((mobility == 1).all()) else mobility


def _check_alike(measure: ParticleMeasure, guess: ParticleMeasure) -> None:
    """Refuse a guess with other particles or weights: `Matched` keeps both."""
    if guess.points.shape != measure.points.shape:
        raise InvalidInput(
            f"guess has points of shape {tuple(guess.points.shape)}; Matched transport needs "
            f"{tuple(measure.points.shape)}"
        )
    apart = float((guess.weights - measure.weights).abs().max())
    if apart > simplex_tolerance(measure.dtype) or math.isnan(apart):
        raise InvalidInput(
            f"guess has other weights than the measure, by up to {apart:.3g}; Matched transport keeps the weights: "
            "give the guess those of the measure, or use JKO(tau, transport=ExactOT())"
        )
