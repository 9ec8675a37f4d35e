"""Figures of runs and comparisons. Nothing here touches the global state of matplotlib."""

from jko.plotting.comparison import comparison_title, distance_figure, energy_figure, gap_figure
from jko.plotting.single import run_figure
from jko.plotting.snapshots import snapshot_figure
from jko.plotting.style import color_of, math_title, new_figure, save_figure
from jko.plotting.verification import finding_figure

__all__ = [
    "color_of",
    "comparison_title",
    "distance_figure",
    "energy_figure",
    "finding_figure",
    "gap_figure",
    "math_title",
    "new_figure",
    "run_figure",
    "save_figure",
    "snapshot_figure",
]
