"""Minimizers of the step objective, all judged by the same residual."""

from jko.schemes.minimizers.anderson import Anderson
from jko.schemes.minimizers.base import AbstractMinimizer, Minimization, Secants, reported_residual
from jko.schemes.minimizers.torch_optimizer import TorchOptimizer
from jko.schemes.minimizers.trust_newton import TrustNewton

__all__ = [
    "AbstractMinimizer",
    "Anderson",
    "Minimization",
    "Secants",
    "TorchOptimizer",
    "TrustNewton",
    "reported_residual",
]
