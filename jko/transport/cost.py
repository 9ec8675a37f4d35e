"""Ground costs (alpha_i + beta_j) d^2(x_i, y_j) between two clouds: values and gradients, in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from jko.manifolds import AbstractManifold, Euclidean, Sphere
from jko.numerics import row_sum

__all__ = ["GroundCost", "SupportGradient"]

_BLOCK_ENTRIES = 1 << 17
# Closer to the antipode than this, directions are formed pair by pair: theta / sin theta amplifies rounding there.
_NEAR_ANTIPODE = 1e-6


@final
@dataclass(frozen=True, slots=True, eq=False)
class GroundCost:
    """c_ji = (beta_j + alpha_i) d^2(y_j, x_i) for sources y and targets x, float64 on their device; rows are sources.

    beta = b(y) and alpha = None is the cost of a frozen mobility at the sources, beta = b(y) / 2 and alpha = b(x) / 2
    the symmetric one; both None is d^2.

    Attributes:
        source: y, shape (n, d).
        target: x, shape (m, d).
        manifold: the geometry of d.
        source_factor: beta, shape (n,); None where alpha alone is the factor, or where both are None: d^2.
        target_factor: alpha, shape (m,).
        target_factor_gradient: ambient gradient of alpha as a function of position at x, shape (m, d); None where
            alpha is held fixed.
    """

    source: Tensor
    target: Tensor
    manifold: AbstractManifold
    source_factor: Tensor | None = None
    target_factor: Tensor | None = None
    target_factor_gradient: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(n, m): sources, targets."""
        return self.source.shape[0], self.target.shape[0]

    def swapped(self) -> GroundCost:
        """Return the same cost with sources and targets exchanged; what was a function of position is held fixed."""
        return GroundCost(self.target, self.source, self.manifold, self.target_factor, self.source_factor)

    def among_sources(self) -> GroundCost:
        """Return the symmetric cost (beta_j + beta_k) d^2(y_j, y_k) among the sources, d^2 without factors."""
        return GroundCost(self.source, self.source, self.manifold, self.source_factor, self.source_factor)

    def among_targets(self) -> GroundCost:
        """Return the symmetric cost (alpha_i + alpha_k) d^2(x_i, x_k) among the targets, d^2 without factors."""
        gradient, alpha = self.target_factor_gradient, self.target_factor
        return GroundCost(self.target, self.target, self.manifold, alpha, alpha, gradient)

    def restricted(self, sources: Tensor, targets: Tensor) -> GroundCost:
        """Return the cost between the chosen sources and targets (boolean or index tensors)."""
        beta, alpha, gradient = self.source_factor, self.target_factor, self.target_factor_gradient
        return replace(
            self,
            source=self.source[sources],
            target=self.target[targets],
            source_factor=None if beta is None else beta[sources],
            target_factor=None if alpha is None else alpha[targets],
            target_factor_gradient=None if gradient is None else gradient[targets],
        )

    def blocks(self, entries: int = _BLOCK_ENTRIES) -> Iterator[slice]:
        """Yield slices of rows with about `entries` entries each."""
        n, m = self.shape
        step = max(1, entries // m)
        for start in range(0, n, step):
            yield slice(start, min(n, start + step))

    def squares(self, rows: slice) -> Tensor:
        """Return d^2(y_j, x_i) for a slice of rows, shape (k, m)."""
        y, x = self.source[rows], self.target
        if isinstance(self.manifold, Euclidean):
            return _sum_of_squares(y, x, sign=-1)
        if isinstance(self.manifold, Sphere):
            chord = _sum_of_squares(y, x, sign=-1).sqrt_()
            # Twice the angle whose tangent is |x - y| / |x + y|: right to rounding from coincident to antipodal pairs.
            return torch.atan2(chord, _sum_of_squares(y, x, sign=1).sqrt_(), out=chord).square_().mul_(4)
        return self.manifold.squared_distance(x[None], y[:, None])

    def scaled(self, squares: Tensor, rows: slice) -> Tensor:
        """Multiply squared distances of a slice of rows by their factors, in place."""
        beta, alpha = self.source_factor, self.target_factor
        if beta is not None and alpha is not None:
            return squares.mul_(beta[rows, None] + alpha)
        if beta is not None:
            return squares.mul_(beta[rows, None])
        return squares if alpha is None else squares.mul_(alpha)

    def block(self, rows: slice) -> Tensor:
        """Return the cost of a slice of rows, shape (k, m)."""
        return self.scaled(self.squares(rows), rows)

    def matrix(self) -> Tensor:
        """Return the whole cost, shape (n, m)."""
        out = torch.empty(self.shape, dtype=torch.float64, device=self.source.device)
        for rows in self.blocks():
            out[rows] = self.block(rows)
        return out

    def factor(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return beta_j + alpha_i for pairs of a source and a target."""
        beta, alpha = self.source_factor, self.target_factor
        if beta is not None:
            return beta[rows] if alpha is None else beta[rows] + alpha[columns]
        if alpha is not None:
            return alpha[columns]
        return torch.ones(rows.shape, dtype=torch.float64, device=self.source.device)

    def pairs(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the cost of pairs of a source and a target, shape of the indices."""
        y, x = self.source[rows], self.target[columns]
        return self.factor(rows, columns) * self.manifold.squared_distance(x, y)

    def pair_gradients(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the gradient in x_i of the cost of pairs (j, i), tangent at x_i, shape (k, d).

        Exactly 0 at coincident pairs, finite at antipodal ones.
        """
        x, y = self.target[columns], self.source[rows]
        with torch.enable_grad():
            moving = x.detach().requires_grad_()
            squares = self.manifold.squared_distance(moving, y)
            (gradient,) = torch.autograd.grad(squares.sum(), moving)
        gradient = self.factor(rows, columns)[:, None] * gradient
        if self.target_factor_gradient is not None:
            gradient = gradient + squares.detach()[:, None] * self.target_factor_gradient[columns]
        return self.manifold.project_vector(x, gradient)

    def largest(self) -> float:
        """Return an upper bound of the cost, within a factor of about 4 where the factors are alike."""
        y, x = self.source, self.target
        center = x.mean(0)
        reach = sum(float(row_sum((points - center).square()).amax()) ** 0.5 for points in (x, y))
        square = min(reach, 2.0) ** 2 * (torch.pi / 2) ** 2 if isinstance(self.manifold, Sphere) else reach**2
        beta, alpha = self.source_factor, self.target_factor
        factors = [float(factor.amax()) for factor in (beta, alpha) if factor is not None]
        return square * (sum(factors) if factors else 1.0)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SupportGradient:
    """sum_j P_ji grad_{x_i} c_ji, gathered block by block of rows.

    Attributes:
        cost: the ground cost.
        moment: sums of weighted sources, shape (m, d).
        mass: sums of the weights, shape (m,).
        squares: sum_j P_ji d^2(y_j, x_i), shape (m,); filled only where alpha moves with x.
    """

    cost: GroundCost
    moment: Tensor
    mass: Tensor
    squares: Tensor

    @staticmethod
    def of(cost: GroundCost) -> SupportGradient:
        """Return the empty sum."""
        x = cost.target
        return SupportGradient(cost, torch.zeros_like(x), torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0]))

    def add(self, rows: slice, plan: Tensor, squares: Tensor) -> None:
        """Add a block of rows of the plan, shape (k, m), with its squared distances; both are overwritten."""
        cost = self.cost
        if cost.target_factor_gradient is not None:
            self.squares.add_(torch.einsum("km,km->m", plan, squares))
        weights = cost.scaled(plan, rows)
        if isinstance(cost.manifold, Euclidean):
            self._add_differences(rows, weights)
        elif isinstance(cost.manifold, Sphere):
            angle = squares.sqrt_()
            self._add_near_antipodes(rows, weights, angle)
            # -grad_x theta^2 / 2 = theta / sin theta P_x y.
            ratio = angle.div(angle.sin()).masked_fill_(angle == 0, 1.0)
            self._add_differences(rows, weights.mul_(ratio))
        else:
            self._add_by_autograd(rows, weights)

    def result(self) -> Tensor:
        """Return the gradient, ambient and tangent at x, shape (m, d)."""
        cost, x = self.cost, self.cost.target
        # P_x (y - x), not P_x y: exactly 0 where all of the mass stays.
        gradient = 2 * (self.mass[:, None] * x - self.moment)
        if cost.target_factor_gradient is not None:
            gradient = gradient + self.squares[:, None] * cost.target_factor_gradient
        return cost.manifold.project_vector(x, gradient)

    def _add_differences(self, rows: slice, weights: Tensor) -> None:
        self.moment.addmm_(weights.mT, self.cost.source[rows])
        self.mass.add_(weights.sum(0))

    def _add_near_antipodes(self, rows: slice, weights: Tensor, angle: Tensor) -> None:
        near = angle > torch.pi - _NEAR_ANTIPODE
        if not bool(near.any()):
            return
        k, i = near.nonzero(as_tuple=True)
        x, across = self.cost.target[i], self.cost.source[rows][k] + self.cost.target[i]
        tangent = self.cost.manifold.project_vector(x, across)
        length = torch.linalg.vector_norm(tangent, dim=-1)
        scale = weights[k, i] * angle[k, i] / length.masked_fill(length == 0, torch.inf)
        self.moment.index_add_(0, i, scale[:, None] * tangent)
        weights.masked_fill_(near, 0.0)
        angle.masked_fill_(near, 0.0)

    def _add_by_autograd(self, rows: slice, weights: Tensor) -> None:
        with torch.enable_grad():
            x = self.cost.target.detach().requires_grad_()
            total = (weights * self.cost.manifold.squared_distance(x[None], self.cost.source[rows, None])).sum()
            (gradient,) = torch.autograd.grad(total, x)
        self.moment.sub_(gradient / 2)


def _sum_of_squares(y: Tensor, x: Tensor, sign: int) -> Tensor:
    """|y_j + sign x_i|^2 of all pairs, one coordinate at a time: nothing cancels, and nothing has d entries a pair."""
    total = torch.zeros(y.shape[0], x.shape[0], dtype=x.dtype, device=x.device)
    buffer = torch.empty_like(total)
    for k in range(x.shape[1]):
        torch.add(y[:, k, None], x[:, k], alpha=sign, out=buffer)
        total.addcmul_(buffer, buffer)
    return total
