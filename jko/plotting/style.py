"""Colors, sizes and files that all figures share."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jko.solution import Solution
from jko.storage import write_bytes

__all__ = ["COLORS", "GRAY", "color_of", "math_title", "new_figure", "save_figure", "scale_dissipation", "tidy"]

# Okabe and Ito's palette: told apart with every common color blindness, and in gray.
COLORS = {"W2": "#0072B2", "W_{m,2}": "#D55E00", "head-wise": "#009E73"}
GRAY = "#555555"
_MORE = ("#CC79A7", "#E69F00", "#56B4E9")


def color_of(metric: str, position: int = 0) -> str:
    """Return the color of a metric by its title; others take the remaining colors in turn."""
    return COLORS.get(metric, _MORE[position % len(_MORE)])


def math_title(title: str) -> str:
    """Return the title of a metric, or one that holds it, as matplotlib sets it."""
    return re.sub(r"\bW2\b", "$W_2$", title.replace("W_{m,2}", "$W_{m,2}$"))


def new_figure(width: float, height: float) -> Figure:
    """Return a figure in inches, with a canvas of its own: it needs no display and is in no global list."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Axes) -> None:
    """Take away what is not data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)


def scale_dissipation(axes: Axes, solutions: Sequence[Solution]) -> None:
    """Scale the vertical axis logarithmically; linearly near 0 where a dissipation is not positive throughout.

    The dissipation falls over decades, and that of the head-wise flow may be negative.
    """
    columns = [solution.states.dissipation for solution in solutions]
    largest = max(float(column.abs().max()) for column in columns)
    if not (math.isfinite(largest) and largest > 0):
        return
    if min(float(column.min()) for column in columns) > 0:
        axes.set_yscale("log")
        return
    exponent = math.floor(math.log10(largest) - 2.5)
    axes.set_yscale("symlog", linthresh=10.0**exponent)
    lowest = min(float(column.min()) for column in columns)
    axes.set_yticks(_symlog_ticks(exponent, lowest, largest))
    axes.set_ylabel(f"{axes.get_ylabel()}\nlinear between $\\pm 10^{{{exponent}}}$")
    axes.axhline(0.0, color=GRAY, linewidth=0.8)


def _symlog_ticks(exponent: int, lowest: float, largest: float) -> list[float]:
    """Powers of ten on both sides of 0: matplotlib's own choice leaves the short negative side bare."""
    powers = [10.0**k for k in range(exponent, math.floor(math.log10(largest)) + 1)]
    # At least one below 0, where something is.
    negative = [-power for power in powers if power <= max(-lowest, powers[0])] if lowest < 0 else []
    return [*reversed(negative), 0.0, *powers]


def save_figure(figure: Figure, stem: str | Path, *, dpi: int = 130) -> list[str]:
    """Write a figure as PNG and as PDF, each atomically, and return the names of the files.

    Raises:
        RunFolderError: when the folder cannot be written.
    """
    path = Path(stem)
    names = []
    for suffix, settings in (("png", {"dpi": dpi}), ("pdf", {"metadata": {"CreationDate": None}})):
        buffer = io.BytesIO()
        keywords: dict[str, Any] = dict(settings)
        figure.savefig(buffer, format=suffix, **keywords)
        # The first file has laid the figure out; doing it again for the second costs as much as drawing it.
        figure.set_layout_engine("none")
        target = path.with_name(f"{path.name}.{suffix}")
        write_bytes(target, buffer.getvalue())
        names.append(target.name)
    return names
