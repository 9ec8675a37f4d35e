"""Kernels of the distance: W(x, y) = phi(|x - y|^2)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from jko.kernels.base import AbstractKernel, KernelSums

__all__ = ["AbstractRadialKernel"]


class AbstractRadialKernel(AbstractKernel):
    """W(x, y) = phi(q), q = |x - y|^2 from differences, which do not cancel for close points far from the origin."""

    __slots__ = ()

    @property
    @abstractmethod
    def kinked(self) -> bool:
        """Whether phi(0) = 0 without two derivatives in x there.

        Two particles at one place then do not act on each other: their pair adds nothing to any derivative.
        """

    @abstractmethod
    def profile(self, q: Any, order: int) -> tuple[Any, ...]:
        """Return phi and its derivatives in q up to `order`, by operations that tensors and KeOps share."""

    def check(self, points: Tensor) -> None:
        """Accept all points."""

    def sums(self, targets: Tensor, sources: Tensor, weights: Tensor, own: Tensor | None, order: int) -> KernelSums:
        difference = _differences(targets, sources)
        factors = self._factors(_squares(difference), own, order)
        value = factors[0] @ weights
        if order == 0:
            return KernelSums(value)
        first = factors[1].mul_(2 * weights)
        gradient = (difference @ first[..., None])[..., 0]
        if order == 1:
            return KernelSums(value, gradient)
        curvature = (difference * factors[2].mul_(4 * weights)[:, None]) @ difference.mT
        curvature.diagonal(dim1=-2, dim2=-1).add_(first.sum(-1, keepdim=True))
        return KernelSums(value, gradient, curvature)

    def derivative(
        self,
        targets: Tensor,
        sources: Tensor,
        weights: Tensor,
        own: Tensor | None,
        moving_targets: Tensor,
        moving_sources: Tensor,
    ) -> Tensor:
        difference = _differences(targets, sources)
        moving = _differences(moving_targets, moving_sources)
        _, first, second = self._factors(_squares(difference), own, 2)
        along = difference[:, 0] * moving[:, 0]
        for k in range(1, difference.shape[1]):
            along.addcmul_(difference[:, k], moving[:, k])
        along.mul_(second.mul_(4 * weights))
        return (moving @ first.mul_(2 * weights)[..., None] + difference @ along[..., None])[..., 0]

    def _factors(self, q: Tensor, own: Tensor | None, order: int) -> tuple[Tensor, ...]:
        """The profile at q, which may be overwritten, with nothing in the pairs that do not count."""
        if self.kinked:
            together = q == 0
            return tuple(
                part.masked_fill_(together, 0.0) for part in self.profile(q.masked_fill_(together, 1.0), order)
            )
        if not self.singular or own is None:
            return self.profile(q, order)
        rows = (own >= 0).nonzero()[:, 0]
        self_pairs = (rows, own[rows])
        q[self_pairs] = 1.0
        factors = self.profile(q, order)
        for part in factors:
            part[self_pairs] = 0.0
        return factors


def _differences(targets: Tensor, sources: Tensor) -> Tensor:
    """z_i - x_j, shape (m, d, n)."""
    return targets[:, :, None] - sources.mT.contiguous()


def _squares(difference: Tensor) -> Tensor:
    """|z_i - x_j|^2, shape (m, n); several times faster than a reduction over the short axis in the middle."""
    q = difference[:, 0].square()
    for k in range(1, difference.shape[1]):
        q.addcmul_(difference[:, k], difference[:, k])
    return q
