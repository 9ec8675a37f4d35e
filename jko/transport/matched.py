"""The identity coupling: exact for equal weights, and it proves itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from jko.transport.base import AbstractTransport, CouplingCertificate, CouplingProblem
from jko.transport.exact import ground_cost, optimal_cost
from jko.transport.potential import potential_test

__all__ = ["Matched"]

_LARGEST_ASSIGNMENT = 1000
_RELATIVE_EXCESS = 1e-9


@final
@dataclass(frozen=True, slots=True, eq=False)
class Matched(AbstractTransport):
    """Particle i of the new measure comes from particle i of the old one; the cost is O(n d).

    Among n particles of equal weight this loses nothing: the energy does not see labels, so minimizing over
    positions and over permutations is minimizing over positions. For unequal weights it is an upper bound that is
    exact for small steps. Every step is certified by the potential test; where that fails, an exact transport of up
    to 1000 particles decides whether the coupling is optimal all the same.
    """

    def certify(self, problem: CouplingProblem) -> CouplingCertificate:
        test = potential_test(problem)
        if test.passed:
            return CouplingCertificate(True, test.largest_gain, True)
        if problem.source.shape[0] > _LARGEST_ASSIGNMENT:
            return CouplingCertificate(False, test.largest_gain, None)
        cost = ground_cost(problem.source, problem.target, problem.manifold, problem.mobility)
        identity = float(problem.weights.to("cpu", torch.float64) @ cost.diagonal())
        best = optimal_cost(cost, problem.weights, problem.weights)
        excess = max(0.0, identity - best) / identity if identity > 0 else 0.0
        return CouplingCertificate(False, test.largest_gain, excess <= _RELATIVE_EXCESS, excess)
