"""Sums over pairs and heads."""

from jko.reductions.auto import Auto, reduction_or_auto
from jko.reductions.base import AbstractReduction, PairSums
from jko.reductions.blocked import Blocked
from jko.reductions.keops import KeOps
from jko.reductions.keops_probe import KeOpsProbe, keops_available
from jko.reductions.pairwise import AbstractPairs, pairs_by
from jko.reductions.shifted import ShiftedSums, shifted_sums, within_range

__all__ = [
    "AbstractPairs",
    "AbstractReduction",
    "Auto",
    "Blocked",
    "KeOps",
    "KeOpsProbe",
    "PairSums",
    "ShiftedSums",
    "keops_available",
    "pairs_by",
    "reduction_or_auto",
    "shifted_sums",
    "within_range",
]
