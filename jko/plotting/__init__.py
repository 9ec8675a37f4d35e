"""Figures of runs and comparisons. Nothing here touches the global state of matplotlib."""

from jko.plotting.animation import check_animation, save_animation
from jko.plotting.comparison import comparison_title, distance_figure, energy_figure, gap_figure
from jko.plotting.paper import animate_clouds, paper_ledger_figure, paper_slope_figure, paper_snapshot_figure
from jko.plotting.paper_comparison import flows_distance_figure, flows_figure, phases_figure
from jko.plotting.single import run_figure
from jko.plotting.snapshots import snapshot_figure
from jko.plotting.style import color_of, math_title, new_figure, save_figure
from jko.plotting.verification import finding_figure

__all__ = [
    "animate_clouds",
    "check_animation",
    "color_of",
    "comparison_title",
    "distance_figure",
    "energy_figure",
    "finding_figure",
    "flows_distance_figure",
    "flows_figure",
    "gap_figure",
    "math_title",
    "new_figure",
    "paper_ledger_figure",
    "paper_slope_figure",
    "paper_snapshot_figure",
    "phases_figure",
    "run_figure",
    "save_animation",
    "save_figure",
    "snapshot_figure",
]
