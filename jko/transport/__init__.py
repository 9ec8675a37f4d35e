"""Couplings and their costs."""

from jko.transport.autograd import transport_cost
from jko.transport.base import (
    AbstractTransport,
    Coupling,
    CouplingCertificate,
    CouplingProblem,
    TransportProblem,
    TransportSolution,
)
from jko.transport.cost import GroundCost
from jko.transport.exact import ground_cost, optimal_cost, squared_wasserstein
from jko.transport.exact_ot import ExactOT
from jko.transport.matched import Matched
from jko.transport.potential import PotentialTest, potential_test
from jko.transport.sinkhorn import Sinkhorn

__all__ = [
    "AbstractTransport",
    "Coupling",
    "CouplingCertificate",
    "CouplingProblem",
    "ExactOT",
    "GroundCost",
    "Matched",
    "PotentialTest",
    "Sinkhorn",
    "TransportProblem",
    "TransportSolution",
    "ground_cost",
    "optimal_cost",
    "potential_test",
    "squared_wasserstein",
    "transport_cost",
]
