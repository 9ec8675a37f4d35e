"""The logarithmic kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from jko.kernels.radial import AbstractRadialKernel

__all__ = ["LogarithmicKernel"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class LogarithmicKernel(AbstractRadialKernel):
    """W(x, y) = log|x - y|: singular, a particle does not act on itself.

    In the plane `(chi / (2 pi)) * InteractionEnergy(LogarithmicKernel())` is the attraction of Keller and Segel
    (1970); its negative is the repulsion of charges. The energy of two particles at one place is not finite.
    """

    @property
    def name(self) -> str:
        return "log|x - y|"

    @property
    def singular(self) -> bool:
        return True

    @property
    def kinked(self) -> bool:
        return False

    def profile(self, q: Any, order: int) -> tuple[Any, ...]:
        parts = [q.log() * 0.5]
        if order >= 1:
            parts.append(0.5 / q)
        if order >= 2:
            parts.append(-0.5 / (q * q))
        return tuple(parts)
