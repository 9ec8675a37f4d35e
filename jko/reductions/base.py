"""Pair sums: the only hot loop of the toolkit, behind one contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

__all__ = ["AbstractReduction", "PairSums", "default_block_bytes"]

_CPU_BLOCK_BYTES = 1_600_000
_DEVICE_BLOCK_BYTES = 256_000_000


@final
@dataclass(frozen=True, slots=True, eq=False)
class PairSums:
    """Sums over all sources j for every head h and target i, with K = exp<x_i, D_h x_j>.

    Attributes:
        mass: sum_j w_j K_h(x_i, x_j), shape (H, n).
        first: sum_j w_j K_h(x_i, x_j) x_j, shape (H, d, n); None when only the mass was asked for.
        mass_transposed: sum_j w_j K_h(x_j, x_i), shape (H, n); the same tensor as `mass` for symmetric D.
        first_transposed: sum_j w_j K_h(x_j, x_i) x_j, shape (H, d, n).
        second: sum_j w_j K_h(x_i, x_j) x_j x_j^T, its entries a <= b row by row, shape (H, d (d + 1) / 2, n); on
            request only.
        second_transposed: sum_j w_j K_h(x_j, x_i) x_j x_j^T, likewise.
    """

    mass: Tensor
    first: Tensor | None
    mass_transposed: Tensor
    first_transposed: Tensor | None
    second: Tensor | None = None
    second_transposed: Tensor | None = None

    @staticmethod
    def of(out: Tensor, transposed: Tensor, d: int) -> PairSums:
        """Name the rows of sums (H, r, n) and of their other side, the same tensor for symmetric D."""
        parts = _moments(out, d)
        sides = parts if transposed is out else _moments(transposed, d)
        return PairSums(parts[0], parts[1], sides[0], sides[1], parts[2], sides[2])

    @property
    def symmetric(self) -> bool:
        """Whether both sides are one and the same sum (every D_h symmetric)."""
        return self.mass_transposed is self.mass


class AbstractReduction(ABC):
    """How sums over pairs and heads are formed; members differ in speed and memory only, never in the result.

    `points` has shape (n, d), or (H, n, d) where each head has its own cloud; `weights` (n,); `D` (H, d, d).
    """

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the method for run summaries."""

    @abstractmethod
    def exponential_sums(
        self, points: Tensor, weights: Tensor, D: Tensor, *, first: bool = True, second: bool = False
    ) -> PairSums:
        """Return everything that a step needs from exp<x_i, D_h x_j> in one pass over the pairs.

        `second` asks for the second moments as well, which needs `first`.
        """

    @abstractmethod
    def directional_sums(self, points: Tensor, weights: Tensor, D: Tensor, direction: Tensor) -> PairSums:
        """Return the derivative of `exponential_sums` when every point moves along `direction` (shape of points)."""

    @abstractmethod
    def cross_mass(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> Tensor:
        """Return sum_j w_j exp<z_i, D_h x_j> at other targets z of shape (m, d); shape (H, m)."""

    @abstractmethod
    def cross_sums(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> PairSums:
        """Return masses and first moments at other targets z, shape (m, d) or (H, m, d).

        `mass` sums exp<z_i, D_h x_j>, `mass_transposed` exp<x_j, D_h z_i>; shapes (H, m) and (H, d, m).
        """

    @abstractmethod
    def largest_exponent(self, points: Tensor, D: Tensor) -> float:
        """Return the largest exponent <x_i, D_h x_j> over all pairs and heads: what overflows first."""


def default_block_bytes(device: torch.device) -> int:
    """Size of a buffer that suits a device: the second-level cache of two cores, or plenty on a GPU."""
    return _CPU_BLOCK_BYTES if device.type == "cpu" else _DEVICE_BLOCK_BYTES


def _moments(out: Tensor, d: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Masses, first and second moments, None where the rows were not asked for."""
    rows = out.shape[1]
    return out[:, 0], out[:, 1 : 1 + d] if rows > 1 else None, out[:, 1 + d :] if rows > 1 + d else None
