"""Clouds on the circle and on spheres, seen from a fixed place; clouds can be moved for animations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["DrawnCloud", "Globe"]

_Array = NDArray[np.float64]
# Seen from between the first three axes, so that their ends lie in front.
_AZIMUTH, _ELEVATION = np.radians(35.0), np.radians(24.0)
_EDGE = "0.45"
_WIRE = "0.78"
_LIMIT = 1.08


@final
@dataclass(frozen=True, slots=True, eq=False)
class Globe:
    """An orthogonal view of S^(d-1): the circle, the sphere, or for d > 3 the first three principal axes of clouds.

    Attributes:
        axes: rows span what is seen: right, up and, for d >= 3, towards the eye; shape (2 or 3, d).
        note: what is seen, for d > 3.
    """

    axes: _Array
    note: str

    @staticmethod
    def of(clouds: Sequence[Tensor]) -> Globe:
        """Return the view of clouds (n, d) on one sphere."""
        values = np.concatenate([_numbers(cloud) for cloud in clouds])
        d = values.shape[1]
        if d == 2:
            return Globe(np.eye(2), "")
        if d == 3:
            return Globe(_camera(), "")
        principal = np.linalg.svd(values, full_matrices=False)[2][:3]
        return Globe(_camera() @ principal, f"the first three principal axes of $\\mathbb{{R}}^{{{d}}}$")

    def draw(self, panel: Axes, points: Tensor, color: str) -> DrawnCloud:
        """Draw the outline and a cloud; the far side is fainter."""
        panel.set_aspect("equal")
        panel.set_xlim(-_LIMIT, _LIMIT)
        panel.set_ylim(-_LIMIT, _LIMIT)
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
        globe: the view.
        far: the points on the far side.
        near: the points on the near side.
    """

    globe: Globe
    far: PathCollection
    near: PathCollection

    def move(self, points: Tensor) -> None:
        """Show another cloud (n, d) instead."""
        seen = _numbers(points) @ self.globe.axes.T
        front = seen[:, 2] >= 0 if seen.shape[1] == 3 else np.ones(len(seen), dtype=bool)
        self.far.set_offsets(seen[~front, :2])
        self.near.set_offsets(seen[front, :2])


def _numbers(points: Tensor) -> _Array:
    return np.asarray(points.detach().cpu().double().numpy(), dtype=np.float64)


def _camera() -> _Array:
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
