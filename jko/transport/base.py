"""The contract of a transport term: problems, solutions, couplings, and what is known about a coupling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.checks import check_finite, check_no_gradient, first_bad_index
from jko.errors import InvalidInput
from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure, check_measure
from jko.status import Status
from jko.transport.cost import GroundCost, check_dense
from jko.transport.entropic.solve import SelfTransport
from jko.typing import default

__all__ = [
    "AbstractTransport",
    "Coupling",
    "CouplingCertificate",
    "CouplingProblem",
    "TransportProblem",
    "TransportSolution",
    "normalized",
]


@final
@dataclass(frozen=True, slots=True, eq=False)
class TransportProblem:
    """Two measures and a ground cost between them.

    The cost is d^2(x_i, y_j) without mobility, b(y_j) d^2(x_i, y_j) with `mobility` alone, and the symmetric
    (b(x_i) + b(y_j)) / 2 d^2(x_i, y_j) with `target_mobility` as well. No factor 1/2, no tau.

    Attributes:
        source: the old measure, particles y of shape (n, d).
        target: the new measure, particles x of shape (m, d); m and the weights may differ from the source's.
        manifold: the geometry of d.
        mobility: b at the sources, shape (n,); None is 1.
        target_mobility: b at the targets, shape (m,).
        target_mobility_gradient: ambient gradient of b at the targets, shape (m, d); None holds b fixed in gradients.

    Raises:
        InvalidInput: for measures that are batched, off the manifold or unlike in d, dtype or device, and for
            mobilities that are not positive or do not fit.
    """

    source: ParticleMeasure
    target: ParticleMeasure
    manifold: AbstractManifold
    mobility: Tensor | None = None
    target_mobility: Tensor | None = None
    target_mobility_gradient: Tensor | None = None

    def __post_init__(self) -> None:
        source, target = self.source, self.target
        for measure, name in ((source, "source"), (target, "target")):
            check_measure(measure, name)
            if measure.batch_shape:
                raise InvalidInput(
                    f"the {name} has batch shape {tuple(measure.batch_shape)}; pass one measure at a time"
                )
            self.manifold.check(measure.points, f"{name}.points")
        if source.d != target.d:
            raise InvalidInput(f"the measures live in R^{source.d} and R^{target.d}; they need the same d")
        if (source.dtype, source.device) != (target.dtype, target.device):
            raise InvalidInput(
                f"the source is {source.dtype} on {source.device}, the target {target.dtype} on {target.device}; "
                "convert one with .to()"
            )
        _check_mobility(self.mobility, "mobility", source.n)
        _check_mobility(self.target_mobility, "target_mobility", target.n)
        if self.target_mobility is not None and self.mobility is None:
            raise InvalidInput("target_mobility needs mobility too: the symmetric cost is (b(x) + b(y)) / 2 d^2")
        gradient = self.target_mobility_gradient
        if gradient is None:
            return
        if self.target_mobility is None:
            raise InvalidInput("target_mobility_gradient needs target_mobility, whose gradient it is")
        if gradient.shape != target.points.shape:
            raise InvalidInput(
                f"target_mobility_gradient has shape {tuple(gradient.shape)}; it needs {tuple(target.points.shape)}"
            )
        check_finite(gradient, "target_mobility_gradient")

    @property
    def symmetric(self) -> bool:
        """Whether the cost treats both measures alike."""
        return self.mobility is None or self.target_mobility is not None

    def cost(self) -> GroundCost:
        """Return the ground cost in float64 on the device of the measures."""

        def half(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.detach().to(y) / 2

        y, x = (measure.points.to(torch.float64) for measure in (self.source, self.target))
        if self.target_mobility is not None:
            beta, alpha = half(self.mobility), half(self.target_mobility)
            slope = half(self.target_mobility_gradient)
            return GroundCost(y, x, self.manifold, beta, alpha, target_factor_gradient=slope)
        return GroundCost(y, x, self.manifold, None if self.mobility is None else self.mobility.detach().to(y))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Coupling:
    """A plan with few entries: masses[e] goes from source particle rows[e] to target particle columns[e].

    Attributes:
        rows: indices of sources, shape (k,), int64.
        columns: indices of targets, shape (k,), int64.
        masses: positive masses, shape (k,), float64.
    """

    rows: Tensor
    columns: Tensor
    masses: Tensor

    @staticmethod
    def identity(weights: Tensor) -> Coupling:
        """Return the coupling of particle i with particle i; tracers have no mass to send."""
        massive = weights.nonzero()[:, 0]
        return Coupling(massive, massive, weights[massive].to(torch.float64))

    def dense(self, n: int, m: int) -> Tensor:
        """Return the plan as a matrix of shape (n, m).

        Raises:
            InvalidInput: where memory cannot hold it.
        """
        check_dense((n, m), self.masses.device)
        plan = torch.zeros(n, m, dtype=self.masses.dtype, device=self.masses.device)
        return plan.index_put_((self.rows, self.columns), self.masses, accumulate=True)


@final
@dataclass(frozen=True, slots=True, eq=False)
class TransportSolution:
    """What a transport solver found. Where `status.ok` is false nothing else may be used: value and gradient are NaN.

    Potentials and masses are float64 whatever the precision of the measures (a plan is the exponential of potentials
    over eps); gradients come in the precision of the particles.

    Attributes:
        problem: what was solved.
        value: the transport cost: <P, C>, with eps KL(P | a x b) for an entropic solver, debiased where it says so.
        status: SUCCESS, or why there is no answer.
        marginal_error: sum_j |sum_i P_ji - a_j| + sum_i |sum_j P_ji - w_i|.
        iterations: work of the solver: updates of both potentials, or pivots where they are known.
        gradient: derivative of the value in x_i per unit mass, tangent at x_i, shape (m, d): the derivative in x_i is
            w_i times it. A tracer gets the limit for small weights.
        source_potential: shape (n,); None where the solver has none.
        target_potential: shape (m,). Both are those of the plan, without the debiasing terms.
        weight_gradient: derivative of the value in the weights of the targets, shape (m,), shifted to sum 0, as is
            natural on the simplex; None where the solver has none.
        coupling: the plan where it has few entries; None for an entropic solver.
        self_transports: of the source and of the target, where the value is debiased by them.
        eps: strength of the entropy; 0 for an exact solver.
        detail: particulars of a failure.
    """

    problem: TransportProblem
    value: float
    status: Status
    marginal_error: float
    iterations: int
    gradient: Tensor
    source_potential: Tensor | None = None
    target_potential: Tensor | None = None
    weight_gradient: Tensor | None = None
    coupling: Coupling | None = None
    self_transports: tuple[SelfTransport, ...] = ()
    eps: float = 0.0
    detail: str = ""

    @staticmethod
    def failed(
        problem: TransportProblem, status: Status, marginal_error: float, iterations: int, detail: str
    ) -> TransportSolution:
        """Return a failure: no value, no gradient, no plan."""
        gradient = torch.full_like(problem.target.points, torch.nan)
        return TransportSolution(problem, float("nan"), status, marginal_error, iterations, gradient, detail=detail)

    def plan(self) -> Tensor:
        """Return the plan P as a matrix of shape (n, m), float64, formed on demand.

        Raises:
            InvalidInput: for a solution that failed: half a plan is no plan.
        """
        if not self.status.ok:
            raise InvalidInput(f"there is no plan: the transport ended with {self.status.name} ({self.detail})")
        source, target = self.problem.source, self.problem.target
        if self.coupling is not None:
            return self.coupling.dense(source.n, target.n)
        assert self.source_potential is not None
        assert self.target_potential is not None
        exponent = self.problem.cost().matrix().neg_()
        exponent.add_(self.source_potential[:, None]).add_(self.target_potential).div_(self.eps)
        a, w = (normalized(measure.weights) for measure in (source, target))
        return exponent.exp_().mul_(a[:, None]).mul_(w)


@final
@dataclass(frozen=True, slots=True, eq=False)
class CouplingProblem:
    """A step seen as a coupling: particle y_i went to x_i at cost b_i d^2(x_i, y_i) / (2 tau).

    Attributes:
        source: y, shape (n, d).
        target: x, shape (n, d).
        weights: w, shape (n,).
        mobility: b at the source particles, shape (n,).
        potential: first variation phi = s dE/du of the energy at the NEW measure, at its particles, shape (n,).
        tau: step size.
        manifold: the geometry of d.
        tolerance: relative accuracy to which the step was solved.
    """

    source: Tensor
    target: Tensor
    weights: Tensor
    mobility: Tensor
    potential: Tensor
    tau: float
    manifold: AbstractManifold
    tolerance: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class CouplingCertificate:
    """What was shown about the coupling of a step.

    Attributes:
        global_on_support: the potential test passed: no particle, nor part of one, would rather be at the place of
            another. It proves the coupling optimal.
        largest_gain: the largest decrease of the objective per unit mass that a particle would gain by moving to
            the place of another; at most rounding where the test passed.
        optimal: whether the coupling is optimal: True by the test, else decided by an exact transport; None where
            that was too large to decide.
        excess: relative excess of the coupling's cost over the optimal one, where an exact transport decided.
    """

    global_on_support: bool
    largest_gain: float
    optimal: bool | None
    excess: float = 0.0

    @property
    def detail(self) -> str:
        """One sentence on a certificate that was not given."""
        if self.global_on_support:
            return ""
        verdict = {True: "the coupling is optimal", False: "the coupling is NOT optimal", None: "coupling undecided"}
        return f"potential test: a particle would gain {self.largest_gain:.3g} elsewhere; {verdict[self.optimal]}"


class AbstractTransport(ABC):
    """Finds the coupling for a ground cost; members differ in what they can serve and in their plan."""

    __slots__ = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """Name for reports, with everything that changes the result."""

    @property
    @abstractmethod
    def entropic(self) -> bool:
        """Whether the value is an entropic one, smooth in the particles, without a coupling of few entries."""

    @property
    @abstractmethod
    def symmetric(self) -> bool:
        """Whether a mobility must enter symmetrically: with `target_mobility`."""

    @property
    @default
    def dense(self) -> bool:
        """Whether it forms arrays over all pairs, whatever their number."""
        return False

    def check_size(self, n: int, m: int, device: torch.device) -> None:
        """Raise InvalidInput when n sources and m targets ask for an array that memory cannot hold."""
        if self.dense:
            check_dense((n, m), device)

    @abstractmethod
    def solve(self, problem: TransportProblem, start: TransportSolution | None = None) -> TransportSolution:
        """Return the transport cost with its plan and derivatives, as a status where there is none.

        Args:
            problem: measures and cost.
            start: a solution of a nearby problem of the same sizes to start from; it changes the work, not the result.

        Raises:
            InvalidInput: for a problem that this member cannot serve.
        """

    @abstractmethod
    def certify(self, problem: CouplingProblem) -> CouplingCertificate:
        """Say what is known about the identity coupling that a finished step used."""


def normalized(weights: Tensor) -> Tensor:
    """Return weights in float64 that sum to 1 in float64: those of float32 do not."""
    w = weights.detach().to(torch.float64)
    return w / w.sum()


def _check_mobility(mobility: Tensor | None, name: str, n: int) -> None:
    if mobility is None:
        return
    if tuple(mobility.shape) != (n,):
        raise InvalidInput(f"{name} has shape {tuple(mobility.shape)}; it needs ({n},), one entry a particle")
    check_no_gradient(mobility, name)
    check_finite(mobility, name)
    bad = mobility <= 0
    if bool(bad.any()):
        index = first_bad_index(bad)
        raise InvalidInput(f"{name}{list(index)} = {float(mobility[index])}; a mobility is positive")
