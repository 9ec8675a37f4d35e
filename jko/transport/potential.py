"""The potential test: a proof of optimality of the identity coupling without a transport solver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.numerics import row_sum
from jko.transport.base import CouplingProblem

__all__ = ["PotentialTest", "potential_test", "potential_tests"]

_ROWS = 2048
# Entries of the screen at a time: what fits the second-level cache of two cores, and 256 MB on a GPU.
_CPU_ENTRIES = 200_000
_DEVICE_ENTRIES = 32_000_000
# Particles of all groups that are prepared together.
_PARTICLES = 100_000


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
    return potential_tests([problem])[0]


def potential_tests(problems: Sequence[CouplingProblem]) -> list[PotentialTest]:
    """Return `potential_test` of each: steps of one measure (source, weights, tau, manifold), tested side by side."""
    size = max(1, _PARTICLES // problems[0].source.shape[0])
    return [test for k in range(0, len(problems), size) for test in _Screens.of(problems[k : k + size]).tests()]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Screens:
    """The tests of G groups: the screen of a group is offset + left @ right, above the gain of every move.

    Attributes:
        problem: what the groups have in common.
        x: new places of the particles that have mass, shape (G, n, d), float64 like all others.
        y: old places, shape (n, d).
        phi: potential, shape (G, n).
        factor: b / (2 tau), shape (G, n).
        own: cost of each particle's own move, shape (G, n).
        left: shape (G, n, d + 2).
        right: shape (G, d + 2, n).
        offset: shape (G, n, 1).
    """

    problem: CouplingProblem
    x: Tensor
    y: Tensor
    phi: Tensor
    factor: Tensor
    own: Tensor
    left: Tensor
    right: Tensor
    offset: Tensor

    @staticmethod
    def of(problems: Sequence[CouplingProblem]) -> _Screens:
        common = problems[0]
        y, x = common.source, torch.stack([problem.target for problem in problems])
        phi, mobility = (
            torch.stack(rows)
            for rows in zip(*((problem.potential, problem.mobility) for problem in problems), strict=True)
        )
        if not bool(common.weights.all()):
            massive = common.weights > 0
            y, x, phi, mobility = y[massive], x[:, massive], phi[:, massive], mobility[:, massive]
        y, x, phi, mobility = (part.to(torch.float64) for part in (y, x, phi, mobility))
        factor = mobility / (2 * common.tau)
        own = factor * common.manifold.squared_distance(x, y)
        center = y.mean(0)
        u, v = x - center, y - center
        square_u, square_v = row_sum(u.square()), row_sum(v.square())
        ones = torch.ones_like(factor)[..., None]
        left = torch.cat([2 * factor[..., None] * v, -factor[..., None], -ones], -1)
        right = torch.cat([u.mT, square_u[:, None], phi[:, None]], 1)
        offset = phi + own - factor * square_v + _chord_rounding(factor, square_v, square_u, phi)
        return _Screens(common, x, y, phi, factor, own, left, right, offset[..., None])

    def tests(self) -> list[PotentialTest]:
        """The outcome of each group."""
        # v - v is 0 for finite v, else NaN.
        rest = ((self.left - self.left).mT + (self.right - self.right)).sum((1, 2))
        finite, suspects = (rest == 0).tolist(), self._suspects()
        return [
            self._exact(group, suspects[group]) if finite[group] else PotentialTest(False, math.inf)
            for group in range(len(finite))
        ]

    def _suspects(self) -> list[list[int]]:
        """For each group the first rows of the blocks where the screen lets a move pass."""
        groups, n = self.phi.shape
        entries = _CPU_ENTRIES if self.x.device.type == "cpu" else _DEVICE_ENTRIES
        size = max(1, entries // (min(_ROWS, n) * n))
        starts = range(0, n, _ROWS)
        blocks = [(slice(k, k + size), start) for start in starts for k in range(0, groups, size)]
        peaks = torch.cat([self._screen(k, start).amax((1, 2)) for k, start in blocks]).tolist()
        return [
            [start for start, peak in zip(starts, peaks[g::groups], strict=True) if not peak <= 0]
            for g in range(groups)
        ]

    def _exact(self, group: int, starts: list[int]) -> PotentialTest:
        """Compare the moves that the screen lets pass by exact distances."""
        largest, passed = 0.0, True
        for start in starts:
            x, phi, factor, own = (part[group] for part in (self.x, self.phi, self.factor, self.own))
            rows, columns = (self._screen(slice(group, group + 1), start)[0] > 0).nonzero(as_tuple=True)
            rows = rows + start
            slack = _slack(self.problem, x, self.y, phi, factor, own)
            exact = factor[rows] * self.problem.manifold.squared_distance(x[columns], self.y[rows])
            gain = phi[rows] - phi[columns] + own[rows] - exact
            if gain.numel():
                largest = max(largest, float(gain.max()))
                passed = passed and not bool((gain > slack[rows]).any())
        return PotentialTest(passed, largest)

    def _screen(self, k: slice, start: int) -> Tensor:
        """Upper bounds of the gains of particles from `start` on in the places of all, shape (g, rows, n)."""
        i = slice(start, start + _ROWS)
        screen = torch.baddbmm(self.offset[k, i], self.left[k, i], self.right[k])
        # A particle gains nothing by staying; what is left is usually nothing at all.
        screen.diagonal(start, 1, 2).fill_(-math.inf)
        return screen


def _slack(problem: CouplingProblem, x: Tensor, y: Tensor, phi: Tensor, factor: Tensor, own: Tensor) -> Tensor:
    """Gain per particle that rounding and the accuracy of the step explain: never a real improvement."""
    eps = float(torch.finfo(problem.target.dtype).eps)
    reach = torch.maximum(x.abs().amax(), y.abs().amax())
    distances = factor * reach * own.div(factor).sqrt()
    return 8 * (eps * (phi.abs().amax() + distances) + problem.tolerance * own)


def _chord_rounding(factor: Tensor, square_v: Tensor, square_u: Tensor, phi: Tensor) -> Tensor:
    """Bound of the rounding in the screen, so that no pair with a gain is screened out."""
    eps = torch.finfo(torch.float64).eps
    return 16 * eps * (factor * (square_v + square_u.amax(-1, True)) + phi.abs().amax(-1, True) + 1e-300)
