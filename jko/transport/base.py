"""The contract of a transport term: which coupling the cost of a step uses, and what is known about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from torch import Tensor

from jko.manifolds import AbstractManifold

__all__ = ["AbstractTransport", "CouplingCertificate", "CouplingProblem"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class CouplingProblem:
    """A step seen as a coupling: particle y_i went to x_i at cost b_i d^2(x_i, y_i) / (2 tau).

    Attributes:
        source: y, shape (n, d).
        target: x, shape (n, d).
        weights: w, shape (n,).
        mobility: b at the source particles, shape (n,).
        potential: first variation phi = s dE/du of the energy at the NEW measure, at its particles, shape (n,).
        tau: step size.
        manifold: the geometry of d.
        tolerance: relative accuracy to which the step was solved.
    """

    source: Tensor
    target: Tensor
    weights: Tensor
    mobility: Tensor
    potential: Tensor
    tau: float
    manifold: AbstractManifold
    tolerance: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class CouplingCertificate:
    """What was shown about the coupling of a step.

    Attributes:
        global_on_support: the potential test passed: no particle, nor part of one, would rather be at the place of
            another. It proves the coupling optimal.
        largest_gain: the largest decrease of the objective per unit mass that a particle would gain by moving to
            the place of another; at most rounding where the test passed.
        optimal: whether the coupling is optimal: True by the test, else decided by an exact transport; None where
            that was too large to decide.
        excess: relative excess of the coupling's cost over the optimal one, where an exact transport decided.
    """

    global_on_support: bool
    largest_gain: float
    optimal: bool | None
    excess: float = 0.0

    @property
    def detail(self) -> str:
        """One sentence on a certificate that was not given."""
        if self.global_on_support:
            return ""
        verdict = {True: "the coupling is optimal", False: "the coupling is NOT optimal", None: "coupling undecided"}
        return f"potential test: a particle would gain {self.largest_gain:.3g} elsewhere; {verdict[self.optimal]}"


class AbstractTransport(ABC):
    """Finds the coupling for the ground cost b(y_j) d^2(x, y_j)."""

    @abstractmethod
    def certify(self, problem: CouplingProblem) -> CouplingCertificate:
        """Say what is known about the coupling that a finished step used."""
