"""Time-discrete schemes: minimizing movements and their explicit peers."""

from jko.schemes.base import AbstractScheme, Step, StepInfo, StepState
from jko.schemes.checks import DeGiorgi, LocalMinimality, Splitting, Uniqueness
from jko.schemes.explicit import ExplicitEuler
from jko.schemes.exponential import ExponentialEuler
from jko.schemes.jko_step import JKO
from jko.schemes.minimizers import AbstractMinimizer, Anderson, Minimization, TorchOptimizer, TrustNewton
from jko.schemes.runge_kutta import RK4

__all__ = [
    "JKO",
    "RK4",
    "AbstractMinimizer",
    "AbstractScheme",
    "Anderson",
    "DeGiorgi",
    "ExplicitEuler",
    "ExponentialEuler",
    "LocalMinimality",
    "Minimization",
    "Splitting",
    "Step",
    "StepInfo",
    "StepState",
    "TorchOptimizer",
    "TrustNewton",
    "Uniqueness",
]
