"""Clouds of particles seen from a fixed place: on the circle, on spheres, in R^d; they can be moved for animations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["DrawnCloud", "View"]

_Array = NDArray[np.float64]
# Seen from between the first three axes, so that their ends lie in front.
_AZIMUTH, _ELEVATION = np.radians(35.0), np.radians(24.0)
_EDGE = "0.45"
_WIRE = "0.78"
_ROUND = (-1.08, 1.08, -1.08, 1.08)
_MARGIN = 0.06


@final
@dataclass(frozen=True, slots=True, eq=False)
class View:
    """An orthogonal view: of S^(d-1) whole, or of that part of R^d where clouds are.

    More coordinates than the eye has, three on a sphere and two in R^d, are seen along the first principal axes.

    Attributes:
        axes: rows span what is seen: right, up, and towards the eye, as many as there are; shape (1, 2 or 3, d).
        limits: left, right, lower and upper end of the panel.
        outline: whether the unit circle is drawn, the edge of a sphere.
        note: what is seen, where it is not everything.
    """

    axes: _Array
    limits: tuple[float, float, float, float]
    outline: bool
    note: str

    @staticmethod
    def on_sphere(clouds: Sequence[Tensor]) -> View:
        """Return the view of clouds (n, d) on the unit sphere."""
        values = np.concatenate([_numbers(cloud) for cloud in clouds])
        axes, note = _principal(values, 3)
        return View(_camera() @ axes if len(axes) == 3 else axes, _ROUND, True, note)

    @staticmethod
    def in_space(clouds: Sequence[Tensor]) -> View:
        """Return the view that holds all clouds (n, d)."""
        values = np.concatenate([_numbers(cloud) for cloud in clouds])
        axes, note = _principal(values - values.mean(0), 2)
        page = _page(values @ axes.T)
        low, high = page.min(0), page.max(0)
        margin = _MARGIN * max(float((high - low).max()), 1e-12)
        limits = (low[0] - margin, high[0] + margin, low[1] - margin, high[1] + margin)
        return View(axes, limits, False, note)

    @property
    def deep(self) -> bool:
        """Whether there is a far side."""
        return len(self.axes) == 3

    def draw(self, panel: Axes, points: Tensor, color: str) -> DrawnCloud:
        """Draw the outline and a cloud; the far side is fainter."""
        panel.set_aspect("equal")
        panel.set_xlim(self.limits[:2])
        panel.set_ylim(self.limits[2:])
        if self.outline:
            panel.set_axis_off()
            turn = np.linspace(0, 2 * np.pi, 361)
            panel.plot(np.cos(turn), np.sin(turn), color=_EDGE, linewidth=1.0, zorder=3)
        if self.axes.shape == (3, 3):
            _draw_wire(panel)
        far, near = (
            panel.scatter([], [], s=size, alpha=alpha, zorder=order, color=color, linewidths=0)
            for size, alpha, order in ((9, 0.22, 2), (11, 0.75, 4))
        )
        drawn = DrawnCloud(self, far, near)
        drawn.move(points)
        return drawn


@final
@dataclass(frozen=True, slots=True, eq=False)
class DrawnCloud:
    """A cloud in a panel.

    Attributes:
        view: how it is seen.
        far: the points on the far side.
        near: the points on the near side.
    """

    view: View
    far: PathCollection
    near: PathCollection

    def move(self, points: Tensor) -> None:
        """Show another cloud (n, d) instead."""
        seen = _numbers(points) @ self.view.axes.T
        page = _page(seen)
        front = seen[:, 2] >= 0 if self.view.deep else np.ones(len(seen), dtype=bool)
        self.far.set_offsets(page[~front])
        self.near.set_offsets(page[front])


def _numbers(points: Tensor) -> _Array:
    return np.asarray(points.detach().cpu().double().numpy(), dtype=np.float64)


def _principal(values: _Array, wanted: int) -> tuple[_Array, str]:
    """As many axes as can be seen, rows of an orthonormal matrix, and a note where that is not all of them."""
    d = values.shape[1]
    if d <= wanted:
        return np.eye(d), ""
    axes = np.linalg.svd(values, full_matrices=False)[2][:wanted]
    return axes, f"the first {wanted} principal axes of $\\mathbb{{R}}^{{{d}}}$"


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
    level = [
        (np.cos(h) * np.cos(turn), np.cos(h) * np.sin(turn), np.full_like(turn, np.sin(h)))
        for h in np.radians([-45.0, 0.0, 45.0])
    ]
    upright = [
        (np.cos(a) * np.cos(turn), np.sin(a) * np.cos(turn), np.sin(turn)) for a in np.radians([0.0, 45.0, 90.0, 135.0])
    ]
    for circle in (*level, *upright):
        seen = np.stack(circle, axis=1) @ _camera().T
        for side, alpha in ((seen[:, 2] >= 0, 0.9), (seen[:, 2] < 0, 0.35)):
            part = np.where(side[:, None], seen[:, :2], np.nan)
            panel.plot(part[:, 0], part[:, 1], color=_WIRE, linewidth=0.6, alpha=alpha, zorder=1)
