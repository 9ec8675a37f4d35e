"""Mobilities and gradients of heads with their exponents apart, where the exponentials leave the range of floats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from jko.averages import head_average
from jko.reductions import shifted_sums

__all__ = ["ShiftedHeads", "magnified"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ShiftedHeads:
    """m_h = e^s mobility and DK_h = e^r gradient for the heads that have weight, all float64; the sign is applied.

    Attributes:
        mobility: m_h e^{-s}, between the smallest positive weight of a particle and 1, shape (*batch, H, n).
        mobility_exponent: s, shape (*batch, H, n).
        gradient: ambient DK_h e^{-r}, shape (*batch, H, n, d).
        gradient_exponent: r, shape (*batch, H, n); not s where D_h is not symmetric.
        head_weights: positive weights of these heads; None means 1/H.
    """

    mobility: Tensor
    mobility_exponent: Tensor
    gradient: Tensor
    gradient_exponent: Tensor
    head_weights: Tensor | None

    @staticmethod
    def of(points: Tensor, weights: Tensor, D: Tensor, sign: int, head_weights: Tensor | None) -> ShiftedHeads:
        """Form mobilities and gradients of attention heads (H, d, d) at points (n, d), each half by its own exponents.

        DK_h = sign/2 (D_h S_h + D_h^T S_h^T) with the moments S_h = sum_j w_j exp<x_i, D_h x_j> x_j, S_h^T those of
        exp<x_j, D_h x_i>.
        """
        heads = D.to(torch.float64)
        sums = shifted_sums(points, weights, heads)
        gradient, r = heads @ sums.first, sums.exponent
        if not torch.equal(heads, heads.mT):
            back = shifted_sums(points, weights, heads.mT)
            r = torch.maximum(r, back.exponent)
            own, other = ((part.exponent - r).exp()[:, None] / 2 for part in (sums, back))
            gradient = own * gradient + other * (heads.mT @ back.first)
        return ShiftedHeads(sums.mass, sums.exponent, sign * gradient.mT, r, head_weights)

    def scaled(self, c: float) -> ShiftedHeads:
        """Return the heads of c times the energy; mobilities are not scaled."""
        return replace(self, gradient=c * self.gradient)

    def shifted_by(self, gradient: Tensor) -> ShiftedHeads:
        """Return the heads with another gradient (*batch, n, d) added to each, that of a part they share."""
        r = self.gradient_exponent.clamp(min=0.0)
        own = (self.gradient_exponent - r).exp()[..., None] * self.gradient
        return replace(self, gradient=own + (-r).exp()[..., None] * gradient[..., None, :, :], gradient_exponent=r)

    def mean_gradient(self) -> tuple[Tensor, Tensor]:
        """Return v and q with mean_h DK_h = e^q v, shapes (*batch, n, d) and (*batch, n)."""
        return self._mean(self.gradient, self.gradient_exponent)

    def normalized_gradient(self) -> tuple[Tensor, Tensor]:
        """Return v and q with mean_h(DK_h / m_h) = e^q v."""
        return self._mean(self.gradient / self.mobility[..., None], self.gradient_exponent - self.mobility_exponent)

    def effective_mobility(self) -> tuple[Tensor, Tensor]:
        """Return b and q with 1 / mean_h(1 / m_h) = e^q b, eq. (36), both of shape (*batch, n)."""
        q = self.mobility_exponent.amin(-2)
        inverse = (q[..., None, :] - self.mobility_exponent).exp() / self.mobility
        return head_average(inverse, self.head_weights).reciprocal(), q

    def squared_slopes(self, tangent: Tensor) -> tuple[Tensor, Tensor]:
        """Return a and q with mean_h(|DK_h|^2 / m_h) = e^q a, from the tangent parts of `gradient`."""
        squares = (tangent.square().sum(-1) / self.mobility)[..., None]
        a, q = self._mean(squares, 2 * self.gradient_exponent - self.mobility_exponent)
        return a[..., 0], q

    def _mean(self, vectors: Tensor, exponents: Tensor) -> tuple[Tensor, Tensor]:
        """The pair v, q with mean_h(e^{exponents} vectors) = e^q v, q the largest of the exponents."""
        q = exponents.amax(-2)
        return head_average((exponents - q[..., None, :]).exp()[..., None] * vectors, self.head_weights, axis=-3), q


def magnified(exponent: Tensor, values: Tensor) -> Tensor:
    """Return e^exponent values: inf where that overflows, but 0 where the values are 0."""
    return torch.where(values == 0, 0.0, exponent.exp() * values)
