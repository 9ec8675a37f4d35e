"""Entropic transport in the log domain, debiased by default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.checks import check_integer, check_positive
from jko.errors import InvalidInput
from jko.status import Status
from jko.transport.base import (
    AbstractTransport,
    CouplingCertificate,
    CouplingProblem,
    TransportProblem,
    TransportSolution,
    normalized,
)
from jko.transport.certify import certify_identity
from jko.transport.cost import GroundCost
from jko.transport.entropic.field import entropic_field
from jko.transport.entropic.solve import EntropicSettings, SelfTransport, cross_transport, self_transport

__all__ = ["Sinkhorn"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sinkhorn(AbstractTransport):
    """OT_eps = min <P, C> + eps KL(P | a x w) over couplings P, with C the squared distance times the mobility.

    No factor 1/2 in C: eps here is twice that of the cost |x - y|^2 / 2. Debiased, the value is
    S_eps = OT_eps(u, v) - OT_eps(u, u) / 2 - OT_eps(v, v) / 2, which is 0 with gradient 0 at u = v; that needs a
    symmetric cost, so `target_mobility` along with a mobility. Without debiasing a step contracts the cloud: the
    variance falls by eps / 2 a coordinate, eps / (2 b) with mobility. S_eps >= 0 where exp(-C / eps) is positive
    definite, as in R^d; a mobility that varies on the scale of sqrt(eps) can make it negative.

    Solved in float64 in logarithms, from a quarter of the largest cost down to eps, by updates in turn and Newton steps
    on the dual. Converged means that the plan's marginals differ from the weights by at most `tolerance` in L^1; the
    value is right to the square of that, gradients and plans to its first power. Everything else is a status.

    Args:
        eps: strength of the entropy, in units of the cost.
        debias: whether to subtract the self-transports.
        tolerance: largest marginal error sum_j |sum_i P_ji - a_j|, of the self-transports too.
        max_iterations: limit of sums over the kernel in both directions, for each of the three transports.
        scaling: largest factor from one eps to the next on the way down, in (0, 1).
        lazy: whether to form the kernel anew for each sum in memory O(n); None decides by size.
        keops: whether KeOps forms the sums of a lazy kernel; None takes it on a GPU where it works.

    Raises:
        InvalidInput: for arguments out of their range.
        MissingDependency: from `solve`, for `keops=True` where KeOps does not work.
    """

    eps: float
    debias: bool = True
    tolerance: float = 1e-10
    max_iterations: int = 5000
    scaling: float = 0.25
    lazy: bool | None = None
    keops: bool | None = None

    def __post_init__(self) -> None:
        check_positive(self.eps, "eps")
        check_positive(self.tolerance, "tolerance")
        check_integer(self.max_iterations, "max_iterations", least=1)
        if not 0 < check_positive(self.scaling, "scaling") < 1:
            raise InvalidInput(f"scaling must lie strictly between 0 and 1, got {self.scaling!r}; 1 would never arrive")
        if self.keops and self.lazy is False:
            raise InvalidInput("keops=True forms kernels anew for each sum, which lazy=False forbids; drop one of them")

    @property
    def title(self) -> str:
        return f"Sinkhorn, eps = {self.eps:g}, {'debiased' if self.debias else 'not debiased'}"

    @property
    def entropic(self) -> bool:
        return True

    @property
    def symmetric(self) -> bool:
        return self.debias

    @property
    def dense(self) -> bool:
        return self.lazy is False

    def solve(self, problem: TransportProblem, start: TransportSolution | None = None) -> TransportSolution:
        if self.debias and not problem.symmetric:
            raise InvalidInput(
                "debiasing needs a cost that treats both measures alike, and b(y) d^2(x, y) does not: give "
                "target_mobility too, for (b(x) + b(y)) / 2 d^2, or take Sinkhorn(eps, debias=False)"
            )
        warm = start if start is not None and _fits(start, problem) else None
        a, w = normalized(problem.source.weights), normalized(problem.target.weights)
        cost, settings = problem.cost(), self._settings()
        if _identical(problem):
            return self._at_rest(problem, cost, w, warm)
        own: tuple[SelfTransport, ...] = ()
        guess = None
        if self.debias:
            own = self._self_transports(problem, cost, a, w, warm)
            # Right where the measures are close.
            guess = own[0].potential, own[1].potential
        if warm is not None and warm.source_potential is not None and warm.target_potential is not None:
            guess = warm.source_potential, warm.target_potential
        found = cross_transport(cost, a, w, settings, guess)
        errors = [found.error, *(item.error for item in own)]
        if not max(errors) <= self.tolerance or any(map(math.isnan, errors)):
            return self._failure(problem, errors, found.iterations, found.detail)
        value, first, gradient = found.value, found.target.potential, found.target.gradient
        if own:
            value -= (own[0].value + own[1].value) / 2
            first = first - own[1].potential
            gradient = gradient - entropic_field(cost.among_targets(), own[1].potential, w, self.eps).gradient
        return TransportSolution(
            problem,
            value,
            Status.SUCCESS,
            max(errors),
            found.iterations,
            gradient.to(problem.target.dtype),
            found.source_potential,
            found.target.potential,
            (first - first.mean()).to(problem.target.dtype),
            self_transports=own,
            eps=self.eps,
        )

    def certify(self, problem: CouplingProblem) -> CouplingCertificate:
        return certify_identity(problem, largest=0)

    def _settings(self) -> EntropicSettings:
        return EntropicSettings(
            self.eps, self.tolerance, self.max_iterations, self.scaling, lazy=self.lazy, keops=self.keops
        )

    def _at_rest(
        self, problem: TransportProblem, cost: GroundCost, w: Tensor, warm: TransportSolution | None
    ) -> TransportSolution:
        """Transport of a measure to itself: exactly symmetric, so that debiasing leaves exactly nothing."""
        own = self_transport(cost, w, self._settings(), None if warm is None else warm.target_potential)
        if not own.error <= self.tolerance:
            return self._failure(problem, [own.error], own.iterations)
        value, first = own.value, own.potential
        gradient = torch.zeros_like(cost.target)
        if self.debias:
            value, first = 0.0, torch.zeros_like(first)
        else:
            gradient = entropic_field(cost.swapped(), own.potential, w, self.eps).gradient
        return TransportSolution(
            problem,
            value,
            Status.SUCCESS,
            own.error,
            own.iterations,
            gradient.to(problem.target.dtype),
            own.potential,
            own.potential,
            (first - first.mean()).to(problem.target.dtype),
            self_transports=(own, own) if self.debias else (),
            eps=self.eps,
        )

    def _self_transports(
        self, problem: TransportProblem, cost: GroundCost, a: Tensor, w: Tensor, warm: TransportSolution | None
    ) -> tuple[SelfTransport, SelfTransport]:
        settings, known = self._settings(), warm.self_transports if warm is not None else ()
        source = known[0] if known else None
        if source is None or warm is None or not self._same_source(warm, problem):
            source = self_transport(cost.among_sources(), a, settings, None if source is None else source.potential)
        guess = known[1].potential if known else None
        return source, self_transport(cost.among_targets(), w, settings, guess)

    def _same_source(self, warm: TransportSolution, problem: TransportProblem) -> bool:
        """Whether a warm start has solved the very same transport of the source to itself, as within one step."""
        before = warm.problem
        return (
            warm.eps == self.eps
            and warm.marginal_error <= self.tolerance
            and before.source is problem.source
            and before.mobility is problem.mobility
            and type(before.manifold) is type(problem.manifold)
        )

    def _failure(
        self, problem: TransportProblem, errors: list[float], iterations: int, detail: str = ""
    ) -> TransportSolution:
        if any(map(math.isnan, errors)):
            detail = "a sum over the kernel is not finite: positions, mobilities or 1 / eps are too large"
            return TransportSolution.failed(problem, Status.NON_FINITE, math.nan, iterations, detail)
        worst = max(errors)
        reached = "eps was not reached" if math.isinf(worst) else f"marginal error {worst:.3g}"
        detail = detail or (
            f"{reached} within max_iterations = {self.max_iterations} (tolerance {self.tolerance:.3g}); raise "
            "max_iterations, eps or tolerance"
        )
        return TransportSolution.failed(problem, Status.NOT_CONVERGED, worst, iterations, detail)


def _fits(start: TransportSolution, problem: TransportProblem) -> bool:
    before = start.problem
    return (
        start.status.ok and start.eps > 0 and (before.source.n, before.target.n) == (problem.source.n, problem.target.n)
    )


def _identical(problem: TransportProblem) -> bool:
    source, target = problem.source, problem.target
    pairs = [(source.points, target.points), (source.weights, target.weights)]
    if problem.mobility is not None:
        if problem.target_mobility is None:
            return False
        pairs.append((problem.mobility, problem.target_mobility))
    return all(one.shape == other.shape and torch.equal(one, other.to(one)) for one, other in pairs)
