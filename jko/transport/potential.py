"""The potential test: a proof of optimality of the identity coupling without a transport solver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.numerics import all_finite, row_sum
from jko.transport.base import CouplingProblem

__all__ = ["PotentialTest", "potential_test"]

_ROWS = 2048


@final
@dataclass(frozen=True, slots=True)
class PotentialTest:
    """Outcome of `potential_test`: whether it passed, and the largest gain per unit mass over all moves."""

    passed: bool
    largest_gain: float


def potential_test(problem: CouplingProblem) -> PotentialTest:
    """Test phi(x_i) + b_i d^2(x_i, y_i)/(2 tau) <= phi(x_k) + b_i d^2(x_k, y_i)/(2 tau) for all i, k.

    With phi the first variation of the energy at the new measure, it is the Kantorovich potential of an optimal
    step, so the inequality proves the identity coupling optimal, for any weights and with duplicates; it is also
    necessary for global minimality on the support of x. Chords, which are at most geodesics, screen out almost all
    pairs in one matrix product; the few left are compared with exact distances, by differences that do not cancel.
    Values that are not finite prove nothing: the test fails.
    Time O(n^2 d), memory O(n) rows at a time.
    """
    parts = [problem.target, problem.source, problem.potential, problem.mobility]
    if not bool(problem.weights.all()):
        massive = problem.weights > 0
        parts = [part[massive] for part in parts]
    x, y, phi, mobility = (part.to(torch.float64) for part in parts)
    factor = mobility / (2 * problem.tau)
    own = factor * problem.manifold.squared_distance(x, y)
    center = y.mean(0)
    u, v = x - center, y - center
    square_u, square_v = row_sum(u.square()), row_sum(v.square())
    ones = torch.ones_like(factor)[:, None]
    left = torch.cat([2 * factor[:, None] * v, -factor[:, None], -ones], 1)
    right = torch.cat([u.T, square_u[None], phi[None]])
    if not (all_finite(left) and all_finite(right)):
        return PotentialTest(False, math.inf)
    offset = phi + own - factor * square_v + _chord_rounding(factor, square_v, square_u, phi)
    largest, passed = 0.0, True
    for start in range(0, y.shape[0], _ROWS):
        i = slice(start, start + _ROWS)
        screen = torch.addmm(offset[i, None], left[i], right)
        # A particle gains nothing by staying; what is left is usually nothing at all.
        screen.diagonal(start).fill_(-math.inf)
        if float(screen.amax()) <= 0:
            continue
        rows, columns = (screen > 0).nonzero(as_tuple=True)
        rows = rows + start
        slack = _slack(problem, x, y, phi, factor, own)
        exact = factor[rows] * problem.manifold.squared_distance(x[columns], y[rows])
        gain = phi[rows] - phi[columns] + own[rows] - exact
        if gain.numel():
            largest = max(largest, float(gain.max()))
            passed = passed and not bool((gain > slack[rows]).any())
    return PotentialTest(passed, largest)


def _slack(problem: CouplingProblem, x: Tensor, y: Tensor, phi: Tensor, factor: Tensor, own: Tensor) -> Tensor:
    """Gain per particle that rounding and the accuracy of the step explain: never a real improvement."""
    eps = float(torch.finfo(problem.target.dtype).eps)
    reach = torch.maximum(x.abs().amax(), y.abs().amax())
    distances = factor * reach * own.div(factor).sqrt()
    return 8 * (eps * (phi.abs().amax() + distances) + problem.tolerance * own)


def _chord_rounding(factor: Tensor, square_v: Tensor, square_u: Tensor, phi: Tensor) -> Tensor:
    """Bound of the rounding in the screen, so that no pair with a gain is screened out."""
    eps = torch.finfo(torch.float64).eps
    return 16 * eps * (factor * (square_v + square_u.amax()) + phi.abs().amax() + 1e-300)
