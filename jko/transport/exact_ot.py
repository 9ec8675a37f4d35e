"""Exact optimal transport: the coupling of smallest cost, with the potentials that prove it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from jko.checks import check_integer
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
from jko.transport.certify import certify_identity
from jko.transport.derivative import coupling_gradient
from jko.transport.network import assignment, is_assignment, network_simplex

__all__ = ["ExactOT"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ExactOT(AbstractTransport):
    """min <P, C> over couplings P, on the CPU in float64, for any sizes and weights.

    Particles of equal weight that are few, or mostly at home, are assigned; everything else goes to the network simplex
    of POT. Potentials satisfy u_j + v_i <= c_ji, with equality on the plan up to rounding. The value is smooth in the
    particles only while the plan stays.

    Args:
        max_pivots: limit of the network simplex, which a number forces in every case; None is 10 million.
    """

    max_pivots: int | None = None

    def __post_init__(self) -> None:
        if self.max_pivots is not None:
            check_integer(self.max_pivots, "max_pivots", least=1)

    @property
    def title(self) -> str:
        return "exact"

    @property
    def entropic(self) -> bool:
        return False

    @property
    def symmetric(self) -> bool:
        return False

    @property
    def dense(self) -> bool:
        return True

    def solve(self, problem: TransportProblem, start: TransportSolution | None = None) -> TransportSolution:
        cost = problem.cost()
        matrix = cost.matrix()
        a, w = normalized(problem.source.weights), normalized(problem.target.weights)
        if not bool(torch.isfinite(matrix).all()):
            return TransportSolution.failed(problem, Status.NON_FINITE, math.nan, 0, "a squared distance overflows")
        numbers = matrix.cpu().numpy()
        left, right = a.cpu().numpy(), w.cpu().numpy()
        if self.max_pivots is None and is_assignment(numbers, left, right):
            plan = assignment(numbers)
        else:
            plan = network_simplex(numbers, left, right, self.max_pivots)
        sums = np.bincount(plan.rows, plan.masses, left.size), np.bincount(plan.columns, plan.masses, right.size)
        error = float(np.abs(sums[0] - left).sum() + np.abs(sums[1] - right).sum())
        if plan.failure:
            detail = f"{left.size} sources and {right.size} targets: {plan.failure}"
            return TransportSolution.failed(problem, Status.NOT_CONVERGED, error, 0, detail)
        rows, columns, masses, u, v = (
            torch.from_numpy(part).to(matrix.device) for part in (plan.rows, plan.columns, plan.masses, plan.u, plan.v)
        )
        coupling = Coupling(rows, columns, masses)
        swapped = Coupling(columns, rows, masses)
        gradient = coupling_gradient(cost.swapped(), swapped, w, u)
        return TransportSolution(
            problem,
            float(masses @ matrix[rows, columns]),
            Status.SUCCESS,
            error,
            0,
            gradient.to(problem.target.dtype),
            u,
            v,
            (v - v.mean()).to(problem.target.dtype),
            coupling,
        )

    def certify(self, problem: CouplingProblem) -> CouplingCertificate:
        return certify_identity(problem, largest=None)
