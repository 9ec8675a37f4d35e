"""The certificate of the identity coupling: by the potential test, else by an exact transport."""

from __future__ import annotations

import torch

from jko.transport.base import CouplingCertificate, CouplingProblem
from jko.transport.exact import ground_cost, optimal_cost
from jko.transport.potential import potential_test

__all__ = ["certify_identity"]

_RELATIVE_EXCESS = 1e-9


def certify_identity(problem: CouplingProblem, *, largest: int | None) -> CouplingCertificate:
    """Test the identity coupling; where the test fails, decide by an exact transport of at most `largest` particles."""
    test = potential_test(problem)
    if test.passed:
        return CouplingCertificate(True, test.largest_gain, True)
    if largest is not None and problem.source.shape[0] > largest:
        return CouplingCertificate(False, test.largest_gain, None)
    cost = ground_cost(problem.source, problem.target, problem.manifold, problem.mobility)
    identity = float(problem.weights.to("cpu", torch.float64) @ cost.diagonal())
    best = optimal_cost(cost, problem.weights, problem.weights)
    excess = max(0.0, identity - best) / identity if identity > 0 else 0.0
    return CouplingCertificate(False, test.largest_gain, excess <= _RELATIVE_EXCESS, excess)
