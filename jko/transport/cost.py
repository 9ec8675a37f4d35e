"""Ground costs (alpha_i + beta_j) d^2(x_i, y_j) between two clouds: values and gradients, in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.manifolds import AbstractManifold, Euclidean, Sphere
from jko.memory import check_fits
from jko.numerics import row_sum

__all__ = ["GroundCost", "check_dense"]

_CPU_BLOCK = 1 << 19
_DEVICE_BLOCK = 1 << 24
# Closer to the antipode than this, directions are formed pair by pair: theta / sin theta amplifies rounding there.
_NEAR_ANTIPODE = 1e-6


@final
@dataclass(frozen=True, slots=True, eq=False)
class GroundCost:
    """c_ji = (beta_j + alpha_i) d^2(y_j, x_i) for sources y and targets x, in float64; rows are sources.

    beta = b(y) without alpha is the cost of a mobility that is frozen at the sources, beta = b(y) / 2 and
    alpha = b(x) / 2 the symmetric one; without both it is d^2.

    Attributes:
        source: y, shape (n, d).
        target: x, shape (m, d).
        manifold: the geometry of d.
        source_factor: beta, shape (n,); None is absent.
        target_factor: alpha, shape (m,); None is absent.
        source_factor_gradient: ambient gradient of beta as a function of position, shape (n, d); None holds it fixed.
        target_factor_gradient: ambient gradient of alpha as a function of position, shape (m, d); None holds it fixed.
    """

    source: Tensor
    target: Tensor
    manifold: AbstractManifold
    source_factor: Tensor | None = None
    target_factor: Tensor | None = None
    source_factor_gradient: Tensor | None = None
    target_factor_gradient: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(n, m): sources, targets."""
        return self.source.shape[0], self.target.shape[0]

    def swapped(self) -> GroundCost:
        """Return the same cost with sources and targets exchanged: its matrix is the transposed one."""
        return GroundCost(
            self.target,
            self.source,
            self.manifold,
            self.target_factor,
            self.source_factor,
            self.target_factor_gradient,
            self.source_factor_gradient,
        )

    def among_sources(self) -> GroundCost:
        """Return the symmetric cost (beta_j + beta_k) d^2(y_j, y_k); d^2 without factors."""
        y, beta, gradient = self.source, self.source_factor, self.source_factor_gradient
        return GroundCost(y, y, self.manifold, beta, beta, gradient, gradient)

    def among_targets(self) -> GroundCost:
        """Return the symmetric cost (alpha_i + alpha_k) d^2(x_i, x_k); d^2 without factors."""
        return self.swapped().among_sources()

    def restricted(self, sources: Tensor, targets: Tensor) -> GroundCost:
        """Return the cost between chosen sources and targets (boolean or index tensors)."""

        def part(values: Tensor | None, chosen: Tensor) -> Tensor | None:
            return None if values is None else values[chosen]

        return GroundCost(
            self.source[sources],
            self.target[targets],
            self.manifold,
            part(self.source_factor, sources),
            part(self.target_factor, targets),
            part(self.source_factor_gradient, sources),
            part(self.target_factor_gradient, targets),
        )

    def blocks(self, entries: int | None = None) -> Iterator[slice]:
        """Yield slices of rows with about `entries` entries each; None is what suits the device."""
        n, m = self.shape
        if entries is None:
            entries = _CPU_BLOCK if self.source.device.type == "cpu" else _DEVICE_BLOCK
        step = max(1, entries // m)
        for start in range(0, n, step):
            yield slice(start, min(n, start + step))

    def squares(self, rows: slice) -> Tensor:
        """Return d^2(y_j, x_i) for a slice of rows, shape (k, m); a new tensor."""
        y, x = self.source[rows], self.target
        if isinstance(self.manifold, Euclidean):
            return _distances(y, x).square_()
        if isinstance(self.manifold, Sphere):
            # Twice the angle whose tangent is |x - y| / |x + y|: right to rounding from coincident to antipodal pairs.
            chord = _distances(y, x)
            return torch.atan2(chord, _distances(y, -x), out=chord).square_().mul_(4)
        return self.manifold.squared_distance(y[:, None], x[None])

    def scaled(self, squares: Tensor, rows: slice) -> Tensor:
        """Multiply what belongs to a slice of rows, shape (k, m), by the factors, in place."""
        beta, alpha = self.source_factor, self.target_factor
        if beta is not None:
            column = beta[rows, None]
            return squares.mul_(column if alpha is None else column + alpha)
        return squares if alpha is None else squares.mul_(alpha)

    def block(self, rows: slice) -> Tensor:
        """Return the cost of a slice of rows, shape (k, m); a new tensor."""
        return self.scaled(self.squares(rows), rows)

    def matrix(self) -> Tensor:
        """Return the whole cost, shape (n, m).

        Raises:
            InvalidInput: where memory cannot hold it twice, as the solvers of dense problems do.
        """
        check_dense(self.shape, self.source.device)
        out = torch.empty(self.shape, dtype=torch.float64, device=self.source.device)
        for rows in self.blocks():
            out[rows] = self.block(rows)
        return out

    def largest(self) -> float:
        """Return a bound of the cost by the extent of the clouds, for scales only: on other manifolds by chords."""
        y, x = self.source, self.target
        center = x.mean(0)
        reach = sum(float(row_sum((points - center).square()).amax()) ** 0.5 for points in (x, y))
        # An angle is at most pi / 2 times its chord.
        square = (torch.pi / 2 * min(reach, 2.0)) ** 2 if isinstance(self.manifold, Sphere) else reach**2
        factors = [float(part.amax()) for part in (self.source_factor, self.target_factor) if part is not None]
        return square * (sum(factors) if factors else 1.0)

    def pairs(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the cost of single pairs (j, i), shape (k,)."""
        squares = self.manifold.squared_distance(self.target[columns], self.source[rows])
        return self._pair_factor(rows, columns) * squares

    def pair_gradients(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the gradient in y_j of the cost of single pairs (j, i), tangent at y_j, shape (k, d).

        Exactly 0 at coincident pairs, finite at antipodal ones.
        """
        y, x = self.source[rows], self.target[columns]
        with torch.enable_grad():
            moving = y.detach().requires_grad_()
            squares = self.manifold.squared_distance(moving, x)
            (gradient,) = torch.autograd.grad(squares.sum(), moving)
        gradient = self._pair_factor(rows, columns)[:, None] * gradient
        if self.source_factor_gradient is not None:
            gradient = gradient + squares.detach()[:, None] * self.source_factor_gradient[rows]
        return self.manifold.project_vector(y, gradient)

    def gradient(self, rows: slice, plan: Tensor, squares: Tensor) -> Tensor:
        """Return sum_i P_ji grad_{y_j} c_ji for a slice of rows, tangent at y_j, shape (k, d).

        Args:
            rows: the sources.
            plan: weights P of the pairs, shape (k, m); overwritten.
            squares: their squared distances, shape (k, m); overwritten.
        """
        y = self.source[rows]
        slope = torch.zeros_like(y)
        if self.source_factor_gradient is not None:
            slope = torch.einsum("km,km->k", plan, squares)[:, None] * self.source_factor_gradient[rows]
        weights = self.scaled(plan, rows)
        if isinstance(self.manifold, Euclidean):
            return slope + self._differences(y, weights)
        if isinstance(self.manifold, Sphere):
            angle = squares.sqrt_()
            slope = slope + self._near_antipodes(y, weights, angle)
            # -grad_y theta^2 / 2 = theta / sin theta P_y x.
            weights.mul_(angle.div(angle.sin()).masked_fill_(angle == 0, 1.0))
            return self.manifold.project_vector(y, slope + self._differences(y, weights))
        with torch.enable_grad():
            moving = y.detach().requires_grad_()
            total = (weights * self.manifold.squared_distance(moving[:, None], self.target[None])).sum()
            (gradient,) = torch.autograd.grad(total, moving)
        return self.manifold.project_vector(y, slope + gradient)

    def _differences(self, y: Tensor, weights: Tensor) -> Tensor:
        """2 sum_i W_ji (y_j - x_i): exactly 0 on the sphere too where all of the mass stays, which P_y x is not."""
        center = y[:1]
        return 2 * (weights.sum(1, keepdim=True) * (y - center) - weights @ (self.target - center))

    def _near_antipodes(self, y: Tensor, weights: Tensor, angle: Tensor) -> Tensor:
        """The part of pairs at almost pi, where the direction is formed from y + x; their weights are cleared."""
        part = torch.zeros_like(y)
        near = angle > torch.pi - _NEAR_ANTIPODE
        if not bool(near.any()):
            return part
        j, i = near.nonzero(as_tuple=True)
        across = self.manifold.project_vector(y[j], y[j] + self.target[i])
        length = torch.linalg.vector_norm(across, dim=-1)
        size = -2 * weights[j, i] * angle[j, i] / length.masked_fill(length == 0, torch.inf)
        weights.masked_fill_(near, 0.0)
        angle.masked_fill_(near, 0.0)
        return part.index_add_(0, j, size[:, None] * across)

    def _pair_factor(self, rows: Tensor, columns: Tensor) -> Tensor:
        beta, alpha = self.source_factor, self.target_factor
        if beta is not None:
            return beta[rows] if alpha is None else beta[rows] + alpha[columns]
        if alpha is not None:
            return alpha[columns]
        return torch.ones(rows.shape, dtype=torch.float64, device=self.source.device)


def check_dense(shape: tuple[int, int], device: torch.device) -> None:
    """Refuse a matrix over all pairs that memory cannot hold, together with a kernel or a copy of the same size."""
    way_out = "take fewer particles, or Sinkhorn(eps, lazy=True), which forms it block by block"
    check_fits("the matrices over all pairs", shape, torch.float64, device, way_out, copies=2)


def _distances(y: Tensor, x: Tensor) -> Tensor:
    # By differences: |x|^2 + |y|^2 - 2 <x, y> cancels for close points far from the origin.
    return torch.cdist(y, x, compute_mode="donot_use_mm_for_euclid_dist")
