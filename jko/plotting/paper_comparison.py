"""Figures of the comparison at paper size: JKO and explicit in three metrics, for every regime and number of heads."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from jko.errors import InvalidInput
from jko.paper import Distance, FlowsEntry, FlowsResult, Geometry, Movement, Regime
from jko.plotting.style import GRAY, color_of, math_title, new_figure, tidy

__all__ = ["flows_distance_figure", "flows_figure", "phases_figure"]

_WIDE, _PALE, _THIN = 2.4, 0.45, 1.2
_LABELS = {
    "paper_slope2": (r"$\mathcal{G}_t^2$ (energy / time)", r"$\mathcal{G}^2$ of the paper"),
    "energy": ("$sE$ (energy)", "Energy"),
    "dissipation": ("dissipation (energy / time)", r"Dissipation $-\langle \nabla sE, v\rangle$"),
}
_LOGARITHMIC = ("paper_slope2", "dissipation")


def flows_figure(result: FlowsResult, column: str) -> Figure:
    """Return a state column against time, one row per regime, one panel per H: JKO pale and wide, explicit dashed.

    Args:
        result: the comparison.
        column: "paper_slope2", "energy" or "dissipation".

    Raises:
        InvalidInput: for another column.
    """
    if column not in _LABELS:
        raise InvalidInput(f"column must be one of {', '.join(_LABELS)}, got {column!r}")
    label, title = _LABELS[column]
    figure, grid = _grid(result, title)
    # Only the first panel of a row keeps its label, which speaks for all of them.
    masked = {
        entry.regime
        for entry in result.entries
        if column in _LOGARITHMIC and any(bool((m.states[column] < 0).any()) for m in entry.movements)
    }
    for entry, axes in grid:
        if column in _LOGARITHMIC:
            axes.set_yscale("log", nonpositive="mask")
        for movement in entry.movements:
            axes.plot(movement.states["t"], movement.states[column], **_look(movement))
        axes.set_ylabel(label + ("\nwhere positive" if entry.regime in masked else ""))
        axes.label_outer()
    figure.legend(handles=_handles(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def flows_distance_figure(result: FlowsResult) -> Figure:
    """Return W_2 between JKO and explicit against time: in the same metric, and from W_{m,2} to the transformer."""
    figure, grid = _grid(result, "$W_2$ between JKO and explicit")
    for entry, axes in grid:
        axes.set_yscale("log", nonpositive="mask")
        for distance in entry.same_metric:
            metric = distance.second.partition(", ")[2]
            # The first distance is 0: both start from the same cloud.
            axes.plot(distance.times[1:], distance.values[1:], "-", color=color_of(metric), linewidth=1.6)
        if entry.crossing is not None:
            _draw_crossing(axes, entry.crossing)
        axes.set_ylabel("$W_2$")
        axes.label_outer()
    handles = [
        Line2D([], [], color=color_of(geometry.metric.title), label=f"both {math_title(geometry.metric.title)}")
        for geometry in Geometry
    ]
    handles.append(Line2D([], [], color="#000000", linestyle=":", label="JKO $W_{m,2}$ – explicit head-wise"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def phases_figure(result: FlowsResult) -> Figure:
    """Return the mean of G^2 against H for every regime: with shared phases it stays, with spread ones it falls."""
    figure = new_figure(3.4 * len(result.regimes) + 0.4, 4.1)
    panels = figure.subplots(1, len(result.regimes), squeeze=False, sharey=True)[0]
    for axes, regime in zip(panels, result.regimes, strict=True):
        tidy(axes)
        axes.set_xscale("log")
        axes.set_yscale("log")
        entries = [entry for entry in result.entries if entry.regime is regime]
        for geometry in Geometry:
            for minimizing in (True, False):
                _draw_means(axes, entries, geometry, minimizing)
        ticks = [entry.num_heads for entry in entries]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("number of heads $H$")
        axes.set_title(regime.title, fontsize=10)
    panels[0].set_ylabel(f"mean $\\mathcal{{G}}^2$ over $t \\geq {result.setting.window:g}$")
    figure.suptitle(_title(result, r"Mean $\mathcal{G}^2$ against $H$"), fontsize=10.5)
    figure.legend(handles=_handles(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _grid(result: FlowsResult, title: str) -> tuple[Figure, list[tuple[FlowsEntry, Axes]]]:
    regimes, heads = result.regimes, result.setting.heads
    figure = new_figure(3.3 * len(heads) + 0.5, 2.5 * len(regimes) + 1.0)
    axes = figure.subplots(len(regimes), len(heads), squeeze=False, sharex=True, sharey="row")
    found = []
    for row, regime in enumerate(regimes):
        for column, count in enumerate(heads):
            panel = axes[row, column]
            tidy(panel)
            panel.set_title(f"{_short(regime)}, $H$ = {count}", fontsize=10)
            panel.set_xlabel("time $t$")
            entry = next(e for e in result.entries if e.regime is regime and e.num_heads == count)
            found.append((entry, panel))
    figure.suptitle(_title(result, title), fontsize=10.5)
    return figure, found


def _title(result: FlowsResult, title: str) -> str:
    setting = result.setting
    return (
        f"{title}: sign = {setting.sign:+d}, n = {setting.n}, d = {setting.dimension}, "
        f"$\\tau$ = {setting.dt:g}, one path of the heads"
    )


def _short(regime: Regime) -> str:
    return "OU" if regime is Regime.OU else regime.title


def _look(movement: Movement) -> dict[str, Any]:
    color = color_of(movement.geometry.metric.title)
    if movement.minimizing:
        return {"color": color, "linestyle": "-", "linewidth": _WIDE, "alpha": _PALE}
    return {"color": color, "linestyle": "--", "linewidth": _THIN}


def _handles() -> list[Line2D | Patch]:
    metrics: list[Line2D | Patch] = [
        Patch(color=color_of(geometry.metric.title), label=math_title(geometry.metric.title)) for geometry in Geometry
    ]
    return [
        *metrics,
        Line2D([], [], color=GRAY, linestyle="-", linewidth=_WIDE, alpha=_PALE, label="JKO"),
        Line2D([], [], color=GRAY, linestyle="--", linewidth=_THIN, label="explicit"),
    ]


def _draw_crossing(axes: Axes, distance: Distance) -> None:
    if float(distance.values.max()) > 0:
        axes.plot(distance.times[1:], distance.values[1:], ":", color="#000000", linewidth=1.6)


def _draw_means(axes: Axes, entries: list[FlowsEntry], geometry: Geometry, minimizing: bool) -> None:
    points = [(entry.num_heads, entry.movement(geometry, minimizing)) for entry in entries]
    known = [(count, movement.mean_slope2) for count, movement in points if movement is not None]
    if known:
        counts, means = zip(*known, strict=True)
        look: dict[str, Any] = (
            {"linestyle": "-", "linewidth": _WIDE, "alpha": _PALE} if minimizing else {"linestyle": "--"}
        )
        axes.plot(
            counts,
            means,
            color=color_of(geometry.metric.title),
            marker="o" if minimizing else "x",
            markersize=6,
            **look,
        )
