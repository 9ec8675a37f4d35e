"""Diagnostics of finished runs and of runs against each other."""

from jko.diagnostics.common_times import common_intervals
from jko.diagnostics.compare import compare
from jko.diagnostics.comparison import Check, Comparison, Gap, MetricComparison, Pair
from jko.diagnostics.run import Run

__all__ = ["Check", "Comparison", "Gap", "MetricComparison", "Pair", "Run", "common_intervals", "compare"]
