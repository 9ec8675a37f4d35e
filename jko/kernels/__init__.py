"""Kernels W(x, y) of interaction energies."""

from jko.kernels.base import AbstractKernel, KernelSums
from jko.kernels.function import FunctionKernel
from jko.kernels.gaussian import GaussianKernel
from jko.kernels.logarithmic import LogarithmicKernel
from jko.kernels.power import PowerKernel
from jko.kernels.radial import AbstractRadialKernel

__all__ = [
    "AbstractKernel",
    "AbstractRadialKernel",
    "FunctionKernel",
    "GaussianKernel",
    "KernelSums",
    "LogarithmicKernel",
    "PowerKernel",
]
