"""Minimizers of the step objective, all run by one loop and judged by the same residual."""

from jko.schemes.minimizers.anderson import Anderson
from jko.schemes.minimizers.base import AbstractMinimizer, Minimization, minimize
from jko.schemes.minimizers.judge import judge, reported_residual
from jko.schemes.minimizers.newton_blocks import check_blocks
from jko.schemes.minimizers.torch_optimizer import TorchOptimizer
from jko.schemes.minimizers.trust_newton import TrustNewton

__all__ = [
    "AbstractMinimizer",
    "Anderson",
    "Minimization",
    "TorchOptimizer",
    "TrustNewton",
    "check_blocks",
    "judge",
    "minimize",
    "reported_residual",
]
