"""Snapshots of particle clouds: on the circle, on the sphere, in R^d."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from jko.errors import InvalidInput
from jko.manifolds import AbstractManifold, Sphere
from jko.plotting.style import COLORS, new_figure
from jko.plotting.view import View
from jko.solution import Solution

__all__ = ["snapshot_figure"]


def snapshot_figure(
    solutions: Mapping[str, Solution],
    *,
    manifold: AbstractManifold,
    title: str,
    fractions: tuple[float, ...] = (0.0, 0.25, 1.0),
    color: str = COLORS["W2"],
    last_note: str = "",
) -> Figure:
    """Return one row of panels per solution, one column per fraction of the final time.

    Args:
        solutions: row title -> solution.
        manifold: where the particles live.
        title: title of the figure; it should say metric and sign.
        fractions: which of the saved times, as fractions of the time that was reached.
        color: of the particles.
        last_note: below the panels of the last column, for instance the distance between the rows there.

    Raises:
        InvalidInput: when there is nothing to draw.
    """
    if not solutions or not fractions:
        raise InvalidInput("a snapshot figure needs at least one solution and one fraction of its time")
    view = _view(list(solutions.values()), manifold)
    figure = new_figure(2.9 * len(fractions), 2.9 * len(solutions) + 0.7)
    grid = figure.subplots(len(solutions), len(fractions), squeeze=False)
    for row, (name, solution) in zip(grid, solutions.items(), strict=True):
        for axes, fraction in zip(row, fractions, strict=True):
            start, end = float(solution.times[0]), float(solution.times[-1])
            k = int((solution.times - (start + fraction * (end - start))).abs().argmin())
            view.draw(axes, solution.points[k], color)
            axes.set_title(f"{name}, t = {float(solution.times[k]):.4g}", fontsize=10)
        if last_note:
            row[-1].text(0.5, -0.02, last_note, ha="center", va="top", fontsize=9, transform=row[-1].transAxes)
    if view.deep:
        figure.supxlabel("faint: far side", fontsize=9, color="0.35")
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(h_pad=0.12)
    figure.suptitle(title if not view.note else f"{title}\n{view.note}", fontsize=12)
    return figure


def _view(solutions: list[Solution], manifold: AbstractManifold) -> View:
    if isinstance(manifold, Sphere):
        return View.on_sphere([solution.points[k] for solution in solutions for k in (0, -1)])
    return View.in_space([cloud for solution in solutions for cloud in solution.points])
