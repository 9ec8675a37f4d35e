"""Energies of particle measures."""

from jko.energies.algebra import Scaled, Sum
from jko.energies.attention import AttentionEnergy
from jko.energies.base import AbstractEnergy, AbstractHeadAverage, Evaluation, HeadEvaluation, PotentialField
from jko.energies.function import FunctionEnergy
from jko.energies.interaction import InteractionEnergy
from jko.energies.moments import PairMoments
from jko.energies.potential import PotentialEnergy
from jko.energies.shifted import ShiftedHeads, magnified

__all__ = [
    "AbstractEnergy",
    "AbstractHeadAverage",
    "AttentionEnergy",
    "Evaluation",
    "FunctionEnergy",
    "HeadEvaluation",
    "InteractionEnergy",
    "PairMoments",
    "PotentialEnergy",
    "PotentialField",
    "Scaled",
    "ShiftedHeads",
    "Sum",
    "magnified",
]
