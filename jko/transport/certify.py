"""The certificate of the identity coupling: by the potential test, else by an exact transport."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jko.transport.base import CouplingCertificate, CouplingProblem
from jko.transport.exact import ground_cost, optimal_cost
from jko.transport.potential import PotentialTest, potential_test, potential_tests

__all__ = ["certify_identity", "weakest_certificate"]

_RELATIVE_EXCESS = 1e-9


def certify_identity(problem: CouplingProblem, *, largest: int | None) -> CouplingCertificate:
    """Test the identity coupling; where the test fails, decide by an exact transport of at most `largest` particles."""
    return _decided(problem, potential_test(problem), largest)


def weakest_certificate(problems: Sequence[CouplingProblem], *, largest: int | None) -> CouplingCertificate:
    """Certify the identity couplings of several steps of one measure; a statement holds where it holds for all."""
    tests = potential_tests(problems)
    certificates = [_decided(problem, test, largest) for problem, test in zip(problems, tests, strict=True)]
    verdicts = {certificate.optimal for certificate in certificates}
    return CouplingCertificate(
        global_on_support=all(certificate.global_on_support for certificate in certificates),
        largest_gain=max(certificate.largest_gain for certificate in certificates),
        optimal=False if False in verdicts else None if None in verdicts else True,
        excess=max(certificate.excess for certificate in certificates),
    )


def _decided(problem: CouplingProblem, test: PotentialTest, largest: int | None) -> CouplingCertificate:
    if test.passed:
        return CouplingCertificate(True, test.largest_gain, True)
    if largest is not None and problem.source.shape[0] > largest:
        return CouplingCertificate(False, test.largest_gain, None)
    cost = ground_cost(problem.source, problem.target, problem.manifold, problem.mobility)
    identity = float(problem.weights.to("cpu", torch.float64) @ cost.diagonal())
    best = optimal_cost(cost, problem.weights, problem.weights)
    excess = max(0.0, identity - best) / identity if identity > 0 else 0.0
    return CouplingCertificate(False, test.largest_gain, excess <= _RELATIVE_EXCESS, excess)
