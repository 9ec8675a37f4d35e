"""The figure of a single run: energy and dissipation against time."""

from __future__ import annotations

from matplotlib.figure import Figure

from jko.plotting.style import COLORS, math_title, new_figure, scale_dissipation, tidy
from jko.solution import Solution

__all__ = ["run_figure"]


def run_figure(solution: Solution) -> Figure:
    """Return energy and dissipation of a run against time."""
    figure = new_figure(9.0, 3.9)
    states = solution.states
    columns = [name for name in ("energy", "dissipation") if name in states]
    for axes, name in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
        tidy(axes)
        axes.plot(states.t, states[name], color=COLORS["W2"])
        axes.set_xlabel("time $t$")
        axes.set_ylabel({"energy": "energy $sE(u_t, t)$", "dissipation": "dissipation (energy / time)"}[name])
        if name == "dissipation":
            scale_dissipation(axes, [solution])
    figure.suptitle(math_title(solution.title), fontsize=11)
    return figure
