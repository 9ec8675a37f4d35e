"""Snapshots of particle clouds: on the circle, on the sphere, in R^d."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from jko.errors import InvalidInput
from jko.manifolds import AbstractManifold, Sphere
from jko.plotting.style import COLORS, new_figure
from jko.solution import Solution

__all__ = ["snapshot_figure"]

_Array = NDArray[np.float64]
# Seen from between the first three axes, so that their ends lie in front.
_AZIMUTH, _ELEVATION = np.radians(35.0), np.radians(24.0)
_EDGE = "0.45"
_WIRE = "0.78"


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
    view = _View.of(list(solutions.values()), manifold)
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
    if view.wire or view.axes.shape[0] == 3:
        figure.supxlabel("faint: far side", fontsize=9, color="0.35")
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(h_pad=0.12)
    figure.suptitle(title if not view.note else f"{title}\n{view.note}", fontsize=12)
    return figure


@final
@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """A map from R^d to the page and a depth, and the frame around the picture."""

    axes: _Array
    round: bool
    wire: bool
    limit: tuple[float, float, float, float]
    note: str

    @staticmethod
    def of(solutions: list[Solution], manifold: AbstractManifold) -> _View:
        cloud = torch.cat([solution.points[[0, -1]].flatten(0, -2) for solution in solutions])
        values = cloud.to("cpu", torch.float64).numpy()
        d = values.shape[1]
        sphere = isinstance(manifold, Sphere)
        wanted = min(d, 3) if sphere else min(d, 2)
        axes, note = np.eye(d)[:wanted], ""
        if d > wanted:
            centered = values if sphere else values - values.mean(0)
            axes = np.linalg.svd(centered, full_matrices=False)[2][:wanted]
            note = f"the first {wanted} principal axes of $\\mathbb{{R}}^{{{d}}}$"
        if wanted == 3:
            axes = _camera() @ axes
        if sphere:
            return _View(axes, True, d == 3, (-1.08, 1.08, -1.08, 1.08), note)
        flat = torch.cat([solution.points.flatten(0, -2) for solution in solutions]).to("cpu", torch.float64).numpy()
        page = _page(flat @ axes.T)
        low, high = page.min(0), page.max(0)
        margin = 0.06 * max(float((high - low).max()), 1e-12)
        return _View(axes, False, False, (low[0] - margin, high[0] + margin, low[1] - margin, high[1] + margin), note)

    def draw(self, panel: Axes, points: torch.Tensor, color: str) -> None:
        panel.set_aspect("equal")
        panel.set_xlim(self.limit[:2])
        panel.set_ylim(self.limit[2:])
        seen = points.to("cpu", torch.float64).numpy() @ self.axes.T
        page = _page(seen)
        front = seen[:, 2] >= 0 if seen.shape[1] == 3 else np.ones(len(seen), dtype=bool)
        if self.round:
            panel.set_axis_off()
            turn = np.linspace(0, 2 * np.pi, 361)
            panel.plot(np.cos(turn), np.sin(turn), color=_EDGE, linewidth=1.0, zorder=3)
        if self.wire:
            _draw_wire(panel)
        for side, size, alpha, order in ((~front, 9, 0.22, 2), (front, 11, 0.75, 4)):
            panel.scatter(page[side, 0], page[side, 1], s=size, alpha=alpha, zorder=order, color=color, linewidths=0)


def _page(seen: _Array) -> _Array:
    """The two coordinates on the page; points of the line are drawn on a line."""
    return seen[:, :2] if seen.shape[1] > 1 else np.concatenate([seen, np.zeros_like(seen)], axis=1)


def _camera() -> _Array:
    """Rows: right, up, towards the eye."""
    eye = np.array(
        [
            np.cos(_ELEVATION) * np.cos(_AZIMUTH),
            np.cos(_ELEVATION) * np.sin(_AZIMUTH),
            np.sin(_ELEVATION),
        ]
    )
    right = np.array([-np.sin(_AZIMUTH), np.cos(_AZIMUTH), 0.0])
    return np.stack([right, np.cross(eye, right), eye])


def _draw_wire(panel: Axes) -> None:
    """Three parallels and four meridian circles, those behind the sphere fainter."""
    turn = np.linspace(0, 2 * np.pi, 241)
    circles = [
        np.stack([np.cos(h) * np.cos(turn), np.cos(h) * np.sin(turn), np.full_like(turn, np.sin(h))], axis=1)
        for h in np.radians([-45.0, 0.0, 45.0])
    ]
    circles += [
        np.stack([np.cos(a) * np.cos(turn), np.sin(a) * np.cos(turn), np.sin(turn)], axis=1)
        for a in np.radians([0.0, 45.0, 90.0, 135.0])
    ]
    for circle in circles:
        seen = circle @ _camera().T
        for side, alpha in ((seen[:, 2] >= 0, 0.9), (seen[:, 2] < 0, 0.35)):
            part = np.where(side[:, None], seen[:, :2], np.nan)
            panel.plot(part[:, 0], part[:, 1], color=_WIRE, linewidth=0.6, alpha=alpha, zorder=1)
