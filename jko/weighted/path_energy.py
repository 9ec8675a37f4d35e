"""The energy of a path of particle measures in the weighted metric, and its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.averages import harmonic_mean
from jko.manifolds import AbstractManifold
from jko.numerics import row_sum

__all__ = ["PathEnergy", "PathValue"]

# Entries of the array (segments, H, n, n) that are formed at a time: 16 MiB in float64.
_BLOCK = 2**21
# Mobilities beyond it or its inverse leave the range of floats as far as squares are concerned.
_LARGEST = 1e150


@final
@dataclass(frozen=True, slots=True, eq=False)
class PathValue:
    """The energy at one path.

    Attributes:
        value: the energy.
        gradient: its ambient gradient in the inner points, shape (S - 1, n, d).
        mobility: b at the middle of every segment, shape (S, n).
        longest: length of the longest segment of a particle.
    """

    value: float
    gradient: Tensor
    mobility: Tensor
    longest: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class PathEnergy:
    """S sum_k sum_i w_i b_k(y_i^k) d^2(x_i^k, x_i^{k+1}) of a path x^0 ... x^S, the midpoint rule for eq. (29).

    y^k is the middle of segment k, and b_k = 1 / mean_h(1 / m_h) the effective mobility (36) of the measure
    sum_i w_i delta_{y_i^k} in the heads of that segment.

    Attributes:
        weights: positive masses, shape (n,).
        D: head matrices, shape (S, H, d, d), or (1, H, d, d) where they do not move.
        head_weights: positive weights of the heads, shape (H,).
        manifold: where the particles live.
    """

    weights: Tensor
    D: Tensor
    head_weights: Tensor
    manifold: AbstractManifold

    def evaluate(self, path: Tensor) -> PathValue:
        """Return the energy and its gradient at a path of shape (S + 1, n, d), block by block of segments.

        Raises:
            InvalidInput: when two consecutive points of a particle are antipodal.
        """
        segments, n = path.shape[0] - 1, path.shape[1]
        edge = max(1, _BLOCK // (self.D.shape[1] * n * n))
        gradient, mobility = torch.zeros_like(path), torch.empty_like(path[1:, :, 0])
        total, longest = 0.0, 0.0
        for first in range(0, segments, edge):
            part = slice(first, min(first + edge, segments))
            ends = slice(part.start + 1, part.stop + 1)
            D = self.D if self.D.shape[0] == 1 else self.D[part]
            b, squared, at_start, at_end = self._segments(path[part], path[ends], D, float(segments))
            total += segments * float((self.weights * b * squared).sum())
            longest = max(longest, float(squared.amax()))
            mobility[part] = b
            gradient[part] += at_start
            gradient[ends] += at_end
        return PathValue(total, gradient[1:-1], mobility, math.sqrt(longest))

    def _segments(self, start: Tensor, end: Tensor, D: Tensor, speed: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mobilities and squared lengths (k, n) of some segments (k, n, d), and the gradients in both ends."""
        w, theta = self.weights, self.head_weights[:, None]
        out, back = self.manifold.log(start, end), self.manifold.log(end, start)
        squared = row_sum(out.square())
        with torch.enable_grad():
            x, z = start.detach().requires_grad_(), end.detach().requires_grad_()
            # The geodesic midpoint on the sphere and in R^d; elsewhere it is up to the fourth order in the length.
            middle = self.manifold.project_point((x + z) / 2)
        y = middle.detach()[:, None]
        kernel = (y @ D @ y.mT).exp_()
        mass = kernel @ w
        # One head that overflows would leave b finite and its derivative NaN: all or nothing.
        mass = torch.where(((mass > 1 / _LARGEST) & (mass < _LARGEST)).all(), mass, torch.inf)
        b = harmonic_mean(mass, self.head_weights)
        # db = mean_h((b / m_h)^2 dm_h), and m_h depends on y_i as its argument and as an atom of the measure.
        factor = theta * (b[:, None] / mass).square() * (speed * w * squared)[:, None]
        pull = factor[..., None] * ((kernel @ (w[:, None] * y)) @ D.mT)
        pull += w[:, None] * ((kernel.mT @ (factor[..., None] * y)) @ D)
        at_start, at_end = torch.autograd.grad(middle, (x, z), pull.sum(1))
        along = (2 * speed * w * b)[..., None]
        return b, squared, at_start - along * out, at_end - along * back
