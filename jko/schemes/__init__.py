"""Time-discrete schemes: minimizing movements and their explicit peers."""

from jko.schemes.base import AbstractScheme, Step, StepInfo, StepState
from jko.schemes.explicit import ExplicitEuler
from jko.schemes.jko_step import JKO
from jko.schemes.minimizers import AbstractMinimizer, Anderson, Minimization, TrustNewton

__all__ = [
    "JKO",
    "AbstractMinimizer",
    "AbstractScheme",
    "Anderson",
    "ExplicitEuler",
    "Minimization",
    "Step",
    "StepInfo",
    "StepState",
    "TrustNewton",
]
