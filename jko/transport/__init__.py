"""Couplings and their costs."""

from jko.transport.base import AbstractTransport, CouplingCertificate, CouplingProblem
from jko.transport.exact import ground_cost, optimal_cost, squared_wasserstein
from jko.transport.matched import Matched
from jko.transport.potential import PotentialTest, potential_test

__all__ = [
    "AbstractTransport",
    "CouplingCertificate",
    "CouplingProblem",
    "Matched",
    "PotentialTest",
    "ground_cost",
    "optimal_cost",
    "potential_test",
    "squared_wasserstein",
]
