"""The identity coupling: exact for equal weights, and it proves itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from jko.errors import InvalidInput
from jko.status import Status
from jko.transport.base import (
    AbstractTransport,
    Coupling,
    CouplingCertificate,
    CouplingProblem,
    TransportProblem,
    TransportSolution,
    normalized,
)
from jko.transport.certify import certify_identity, weakest_certificate

__all__ = ["Matched"]

_LARGEST_ASSIGNMENT = 1000


@final
@dataclass(frozen=True, slots=True, eq=False)
class Matched(AbstractTransport):
    """Particle i of the new measure comes from particle i of the old one; the cost is O(n d).

    Among n particles of equal weight this loses nothing: the energy does not see labels, so minimizing over
    positions and over permutations is minimizing over positions. For unequal weights it is an upper bound that is
    exact for small steps. Every step is certified by the potential test; where that fails, an exact transport of up
    to 1000 particles decides whether the coupling is optimal all the same.
    """

    @property
    def title(self) -> str:
        return "matched"

    @property
    def entropic(self) -> bool:
        return False

    @property
    def symmetric(self) -> bool:
        return False

    def solve(self, problem: TransportProblem, start: TransportSolution | None = None) -> TransportSolution:
        a, w = problem.source.weights, problem.target.weights
        if a.shape != w.shape or not torch.equal(a, w):
            raise InvalidInput(
                f"Matched() sends particle i to particle i, so both measures need the same weights; got {a.shape[0]} "
                f"and {w.shape[0]} particles"
                + (" with different weights" if a.shape == w.shape else "")
                + "; use ExactOT() or Sinkhorn(eps)"
            )
        every = torch.arange(a.shape[0], device=a.device)
        cost = problem.cost()
        value = float(normalized(w) @ cost.pairs(every, every))
        gradient = cost.swapped().pair_gradients(every, every).to(problem.target.dtype)
        return TransportSolution(problem, value, Status.SUCCESS, 0.0, 0, gradient, coupling=Coupling.identity(w))

    def certify(self, problem: CouplingProblem) -> CouplingCertificate:
        return certify_identity(problem, largest=_LARGEST_ASSIGNMENT)

    def certify_all(self, problems: Sequence[CouplingProblem]) -> CouplingCertificate:
        """Return the weakest certificate of steps of one measure (source, weights, tau, manifold): of its heads."""
        return weakest_certificate(problems, largest=_LARGEST_ASSIGNMENT)
