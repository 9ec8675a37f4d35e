"""Powers of the distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from jko.checks import check_finite_number
from jko.errors import InvalidInput
from jko.kernels.radial import AbstractRadialKernel

__all__ = ["PowerKernel"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class PowerKernel(AbstractRadialKernel):
    """W(x, y) = |x - y|^p, p positive or negative (Riesz kernels; the sign comes from scaling the energy).

    For p < 0 it is singular: a particle does not act on itself, and two particles at one place have an infinite
    energy. For 0 < p < 4, p not 2, two particles at one place do not act on each other: the limit for p > 1, the
    symmetric choice for p <= 1.

    Args:
        exponent: p, not 0.
    """

    exponent: float

    def __init__(self, exponent: float) -> None:
        exponent = check_finite_number(exponent, "exponent")
        if exponent == 0:
            raise InvalidInput("exponent must not be 0, where the kernel is constant; its limit is LogarithmicKernel()")
        object.__setattr__(self, "exponent", exponent)

    @property
    def name(self) -> str:
        return f"|x - y|^{self.exponent:g}"

    @property
    def singular(self) -> bool:
        return self.exponent < 0

    @property
    def kinked(self) -> bool:
        return 0 < self.exponent < 4 and self.exponent != 2

    def profile(self, q: Any, order: int) -> tuple[Any, ...]:
        half, factor, parts = self.exponent / 2, 1.0, []
        for k in range(order + 1):
            parts.append(_power(q, half - k) * factor if factor else q - q)
            factor *= half - k
        return tuple(parts)


def _power(q: Any, exponent: float) -> Any:
    if exponent == int(exponent):
        return q ** int(exponent)
    # The powers of KeOps are formed in single precision.
    return q**exponent if isinstance(q, Tensor) else (q.log() * exponent).exp()
