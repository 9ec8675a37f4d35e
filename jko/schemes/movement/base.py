"""What a step pays for moving: a quadratic in the tangent spaces at some base points, and what exceeds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.typing import default

__all__ = ["AbstractMovement", "Excess", "MatchedMovement"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Excess:
    """T(x) - sum_i w_i b_i |xi_i|^2 at a trial: what the quadratic leaves of the squared cost T of moving.

    Attributes:
        value: of each group, G numbers; NaN where a transport did not converge.
        gradient: ambient, per unit mass, shape (G, n, d): the derivative in x_i is w_i times it; 0 for tracers.
    """

    value: list[float]
    gradient: Tensor


class AbstractMovement(ABC):
    """The term T(x) / (2 tau) of a step, for G groups of particles side by side.

    Group g moves n particles from the base points z = `base` by tangent vectors xi, to x = Exp_z(xi), and pays
    T = sum_i w_i b_i |xi_i|^2 + excess(x).

    Attributes:
        base: base points z of the tangent spaces, shape (n, d), or (G, n, d) where each group has its own.
        mobility: b in the quadratic, shape (G, n), frozen over the step.
        weights: weights w of the particles, shape (n,).
        drift: gradient of T per unit mass at the old measure, (G, n, d), where T pushes even that one; else None.
        noise: relative accuracy of the forces where it is worse than rounding: that of a transport solver.
    """

    __slots__ = ()
    base: Tensor
    mobility: Tensor
    weights: Tensor
    drift: Tensor | None
    noise: float

    @abstractmethod
    def members(self, groups: list[int]) -> AbstractMovement:
        """Return the movement of these groups alone."""

    @default
    def excess(self, points: Tensor) -> Excess | None:
        """Return what T exceeds the quadratic by at particles (G, n, d); None where the quadratic is all of T."""
        return None

    @default
    def excess_product(self, points: Tensor, direction: Tensor) -> Tensor:
        """Return the derivative of the excess gradient when the particles move along `direction`, shape (G, n, d)."""
        return torch.zeros_like(direction)


@final
@dataclass(frozen=True, slots=True, eq=False)
class MatchedMovement(AbstractMovement):
    """Particle i comes from base point i: T = sum_i w_i b_i d^2(x_i, z_i) is the quadratic itself."""

    base: Tensor
    mobility: Tensor
    weights: Tensor
    drift: None = None
    noise: float = 0.0

    def members(self, groups: list[int]) -> MatchedMovement:
        base = self.base if self.base.ndim == 2 else self.base[groups]
        return MatchedMovement(base, self.mobility[groups], self.weights)
