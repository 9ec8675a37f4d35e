"""The figure of a finding of a verification."""

from __future__ import annotations

import io
import math
import re

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullFormatter, NullLocator

from jko.errors import InvalidInput
from jko.plotting.style import COLORS, GRAY, math_title, new_figure, tidy
from jko.verify import Curve, Finding, Verdict

__all__ = ["finding_figure", "finding_png"]

# Where a curve belongs to no metric.
_OTHERS = (*COLORS.values(), "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_MARKERS = "osD^vP*X"
_GUIDES = (":", "--", "-.", (0, (5, 1)), (0, (1, 1)))
_VERDICT_COLORS = {
    Verdict.HOLDS: "#00734F",
    Verdict.RESTRICTED: "#A86400",
    Verdict.FAILS: "#A61B00",
    Verdict.NOT_APPLICABLE: GRAY,
    Verdict.NOT_TESTABLE: GRAY,
}
# With more points than this a line is drawn without markers.
_FEW = 25
_LEGEND_INSIDE = 5
_TICKS = 6


def finding_figure(finding: Finding) -> Figure:
    """Return the figure of a finding: measured numbers beside bounds and theory, and the verdict.

    Raises:
        InvalidInput: for a finding without anything to draw.
    """
    content = finding.figure
    if content is None or not any(curve.x for curve in content.curves):
        raise InvalidInput(f"the finding {finding.key!r} holds nothing to draw")
    crowded = len(content.curves) > _LEGEND_INSIDE
    figure = new_figure(8.2 if crowded else 6.4, 4.6)
    axes = figure.subplots()
    tidy(axes)
    # Scales come first: what is drawn on them decides their limits.
    if content.x_log:
        axes.set_xscale("log")
    if content.y_log:
        axes.set_yscale("log", nonpositive="mask")
    measured = [curve for curve in content.curves if not curve.reference]
    guides = [curve for curve in content.curves if curve.reference]
    for k, (curve, look) in enumerate(zip(measured, _looks(measured), strict=True)):
        _draw(axes, curve, k, *look)
    for k, curve in enumerate(guides):
        axes.plot(
            curve.x, curve.y, linestyle=_GUIDES[k % len(_GUIDES)], color=GRAY, linewidth=1.3, label=_math(curve.label)
        )
    if content.x_log:
        _tick(axes, measured)
    elif all(value == round(value) for curve in measured for value in curve.x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(_math(content.x_label))
    axes.set_ylabel(_math(content.y_label))
    figure.suptitle(finding.statement, fontsize=13, fontweight="bold", x=0.02, ha="left")
    axes.set_title(_math(content.title), fontsize=11, loc="left")
    figure.text(
        0.98, 0.985, finding.verdict.value, ha="right", va="top", fontsize=10, color=_VERDICT_COLORS[finding.verdict]
    )
    if crowded:
        figure.legend(loc="outside right center", frameon=False, fontsize=9)
    else:
        axes.legend(frameon=False, fontsize=9)
    return figure


def finding_png(finding: Finding, *, dpi: int = 130) -> bytes:
    """Return the figure of a finding as a PNG file.

    Raises:
        InvalidInput: for a finding without anything to draw.
    """
    buffer = io.BytesIO()
    finding_figure(finding).savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def _draw(axes: Axes, curve: Curve, position: int, line: str, color: str) -> None:
    few = len(curve.x) <= _FEW
    axes.plot(
        curve.x,
        [value if math.isfinite(value) else math.nan for value in curve.y],
        linestyle=line if curve.joined else "none",
        linewidth=1.8,
        marker=_MARKERS[position % len(_MARKERS)] if few or not curve.joined else None,
        markersize=6 if few else 3.5,
        # Hollow where the energy is maximized: signs are told apart in every color.
        markerfacecolor="white" if "sign = -1" in curve.label else color,
        alpha=0.9,
        color=color,
        label=_math(curve.label),
    )


def _looks(curves: list[Curve]) -> list[tuple[str, str]]:
    """Line style and color of every curve: the color of its metric, where the label names one."""
    looks: list[tuple[str, str]] = []
    colors = iter(_OTHERS * len(curves))
    for curve in curves:
        named = [color for title, color in COLORS.items() if title in curve.label]
        color = named[0] if named else next(colors)
        looks.append((_LINES[sum(used == color for _, used in looks) % len(_LINES)], color))
    return looks


def _tick(axes: Axes, curves: list[Curve]) -> None:
    """Mark the abscissas themselves where they are few: step sizes are read off, not estimated."""
    values = sorted({value for curve in curves if curve.joined for value in curve.x if value > 0})
    if 0 < len(values) <= _TICKS:
        axes.xaxis.set_major_locator(FixedLocator(values))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{value:.3g}" for value in values]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())


def _math(text: str) -> str:
    """Set distances and step sizes as mathematics, outside of what is mathematics already."""
    parts = text.split("$")
    for k in range(0, len(parts), 2):
        plain = math_title(re.sub(r"\bW_2\b", "W2", parts[k]))
        parts[k] = re.sub(r"\btau\b(\*?)", lambda found: f"$\\tau{'^*' if found[1] else ''}$", plain)
    return "$".join(parts)
