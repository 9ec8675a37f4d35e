"""The Gaussian kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from jko.checks import check_positive
from jko.kernels.radial import AbstractRadialKernel

__all__ = ["GaussianKernel"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class GaussianKernel(AbstractRadialKernel):
    """W(x, y) = exp(-|x - y|^2 / (2 scale^2)): smooth, W(x, x) = 1.

    Args:
        scale: standard deviation, positive.
    """

    scale: float

    def __init__(self, scale: float = 1.0) -> None:
        object.__setattr__(self, "scale", check_positive(scale, "scale"))

    @property
    def name(self) -> str:
        return f"Gaussian of scale {self.scale:g}"

    @property
    def singular(self) -> bool:
        return False

    @property
    def kinked(self) -> bool:
        return False

    def profile(self, q: Any, order: int) -> tuple[Any, ...]:
        rate = -0.5 / self.scale**2
        value = (q * rate).exp()
        return tuple(value * rate**k for k in range(order + 1))
