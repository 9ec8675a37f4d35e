"""Sums over pairs and heads."""

from jko.reductions.auto import Auto
from jko.reductions.base import AbstractReduction, PairSums
from jko.reductions.blocked import Blocked

__all__ = ["AbstractReduction", "Auto", "Blocked", "PairSums"]
