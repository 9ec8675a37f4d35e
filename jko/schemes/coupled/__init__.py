"""Steps whose coupling is found by a transport solver."""

from jko.schemes.coupled.bias import EntropicBias
from jko.schemes.coupled.inputs import check_coupled, check_guess
from jko.schemes.coupled.step import CoupledOutcome, CoupledStep

__all__ = ["CoupledOutcome", "CoupledStep", "EntropicBias", "check_coupled", "check_guess"]
