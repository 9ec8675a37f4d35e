"""Energies of particle measures."""

from jko.energies.algebra import Scaled, Sum
from jko.energies.attention import AttentionEnergy
from jko.energies.base import AbstractEnergy, Evaluation, HeadEvaluation, PotentialField
from jko.energies.moments import PairMoments

__all__ = [
    "AbstractEnergy",
    "AttentionEnergy",
    "Evaluation",
    "HeadEvaluation",
    "PairMoments",
    "PotentialField",
    "Scaled",
    "Sum",
]
