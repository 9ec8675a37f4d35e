"""What a kernel offers: sums over sources, for one block of targets at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from torch import Tensor

__all__ = ["AbstractKernel", "KernelSums"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class KernelSums:
    """Sums over all sources j for every target z_i.

    Attributes:
        value: sum_j w_j W(z_i, x_j), shape (m,).
        gradient: its gradient in z_i, shape (m, d); from order 1 on.
        curvature: its Hessian in z_i, shape (m, d, d); from order 2 on.
    """

    value: Tensor
    gradient: Tensor | None = None
    curvature: Tensor | None = None


class AbstractKernel(ABC):
    """A symmetric function W(x, y) of two points of R^d.

    A particle's pair with itself counts W(x, x), as in the double integral, unless the kernel is singular: then it is
    left out, and two different particles at one place have an infinite energy.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Name with its parameters, for run summaries."""

    @property
    @abstractmethod
    def singular(self) -> bool:
        """Whether W(x, x) is not finite, so that the pair of a particle with itself is left out."""

    @abstractmethod
    def check(self, points: Tensor) -> None:
        """Refuse points (n, d) for which the kernel makes no sense, before any work.

        Raises:
            InvalidInput: saying why.
        """

    @abstractmethod
    def sums(self, targets: Tensor, sources: Tensor, weights: Tensor, own: Tensor | None, order: int) -> KernelSums:
        """Return the sums over all sources with their derivatives in the targets up to `order` (0, 1 or 2).

        Args:
            targets: shape (m, d).
            sources: shape (n, d).
            weights: shape (n,), positive.
            own: for every target the index of the source that is the same particle, -1 where there is none, shape
                (m,); None where no target is a source.
            order: the highest derivative.
        """

    @abstractmethod
    def derivative(
        self,
        targets: Tensor,
        sources: Tensor,
        weights: Tensor,
        own: Tensor | None,
        moving_targets: Tensor,
        moving_sources: Tensor,
    ) -> Tensor:
        """Return the derivative of the gradient, shape (m, d), when targets and sources move along given directions."""
