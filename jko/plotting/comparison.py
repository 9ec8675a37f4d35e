"""Figures of a comparison: distances against tau, energies, and the gap between the metrics."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

from jko.diagnostics import Comparison, Gap, MetricComparison, Pair
from jko.plotting.style import GRAY, color_of, math_title, new_figure, scale_dissipation, tidy

__all__ = ["comparison_title", "distance_figure", "energy_figure", "gap_figure"]

_WIDE, _PALE, _THIN = 2.4, 0.45, 1.2
_SCHEMES = (
    Line2D([], [], color=GRAY, linestyle="-", linewidth=_WIDE, alpha=_PALE, label="JKO"),
    Line2D([], [], color=GRAY, linestyle="--", linewidth=_THIN, label="explicit"),
)
_SAME_METRIC = "JKO – explicit, same metric"


def comparison_title(comparison: Comparison, entry: MetricComparison) -> str:
    """Return metric, sign, number of heads and the finest tau, for a figure of one metric."""
    return (
        f"{math_title(entry.title)}, sign = {comparison.sign:+d}, H = {comparison.num_heads}, "
        f"$\\tau$ = {entry.finest.tau:g}"
    )


def distance_figure(comparison: Comparison) -> Figure:
    """Return sup_t W_2(JKO, explicit) against tau, log-log, with a line of slope 1."""
    figure = new_figure(5.6, 4.2)
    axes = figure.subplots()
    tidy(axes)
    taus: set[float] = set()
    for k, entry in enumerate(comparison.metrics):
        pairs = [pair for pair in entry.pairs if pair.complete and pair.supremum > 0]
        if not pairs:
            continue
        taus |= {pair.tau for pair in pairs}
        axes.loglog(
            [pair.tau for pair in pairs],
            [pair.supremum for pair in pairs],
            "osD^"[k % 4] + "-",
            color=color_of(entry.title, k),
            markersize=6,
            label=math_title(entry.title) + _order(pairs[-1]),
        )
    suprema = [
        pair.supremum
        for entry in comparison.metrics
        for pair in entry.pairs
        if pair.complete and pair.supremum > 0 and pair.tau == min(taus)
    ]
    if taus and suprema:
        low, high = min(taus), max(taus)
        # Through the finest point of the lowest curve: its departure from slope 1 is what the eye then sees.
        anchor = min(suprema) / low
        if low < high:
            axes.loglog([low, high], [anchor * low, anchor * high], ":", color=GRAY, label="slope 1")
        axes.xaxis.set_major_locator(FixedLocator(sorted(taus)))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{tau:g}" for tau in sorted(taus)]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(r"step size $\tau$")
    axes.set_ylabel(r"$\mathrm{sup}_t\ W_2$(JKO, explicit)")
    axes.set_title(
        f"Distance between JKO and explicit Euler, sign = {comparison.sign:+d}\n"
        f"n = {comparison.n}, H = {comparison.num_heads}, $t_1$ = {comparison.t1:g}",
        fontsize=11,
    )
    if taus:
        axes.legend(frameon=False)
    else:
        axes.text(0.5, 0.5, "no two complete runs differ", ha="center", transform=axes.transAxes)
    return figure


def energy_figure(comparison: Comparison) -> Figure:
    """Return energy and dissipation against time at the finest tau: JKO solid, explicit dashed."""
    figure = new_figure(9.0, 3.9)
    panels = figure.subplots(1, 2)
    for axes, column in zip(panels, ("energy", "dissipation"), strict=True):
        tidy(axes)
        for k, entry in enumerate(comparison.metrics):
            color = color_of(entry.title, k)
            jko, explicit = entry.finest.jko.solution.states, entry.finest.explicit.solution.states
            axes.plot(jko.t, jko[column], "-", color=color, linewidth=_WIDE, alpha=_PALE)
            axes.plot(explicit.t, explicit[column], "--", color=color, linewidth=_THIN)
        axes.set_xlabel("time $t$")
    energy, dissipation = panels
    energy.set_ylabel(f"energy ${'-' if comparison.sign < 0 else ''}E(u_t, t)$")
    dissipation.set_ylabel(r"dissipation $-\langle \nabla sE, v\rangle$ (energy / time)")
    scale_dissipation(dissipation, [entry.finest.jko.solution for entry in comparison.metrics])
    metrics = [
        Patch(color=color_of(entry.title, k), label=math_title(entry.title))
        for k, entry in enumerate(comparison.metrics)
    ]
    energy.legend(handles=[*metrics, *_SCHEMES], frameon=False, fontsize=9, handlelength=2.6)
    tau = min(entry.finest.tau for entry in comparison.metrics)
    figure.suptitle(
        f"Energy and dissipation, sign = {comparison.sign:+d}, H = {comparison.num_heads}, $\\tau$ = {tau:g}",
        fontsize=11,
    )
    return figure


def gap_figure(comparison: Comparison) -> Figure:
    """Return the distances between runs of different metrics, and the covariance defect, against time."""
    figure = new_figure(9.0, 3.9)
    distance, defect = figure.subplots(1, 2)
    tidy(distance)
    tidy(defect)
    gray = False
    for k, gap in enumerate(comparison.gaps):
        color, style = _look(gap, k)
        distance.plot(gap.times, gap.distances, style, color=color, linewidth=1.8, label=_label(gap))
    for k, entry in enumerate(comparison.metrics):
        states = entry.finest.jko.solution.states
        if "covariance_defect" in states:
            defect.plot(
                states.t, states["covariance_defect"], color=color_of(entry.title, k), label=math_title(entry.title)
            )
    for entry in comparison.metrics:
        pair = entry.finest
        if pair.complete:
            distance.plot(
                pair.times, pair.distances, "-", color="0.6", linewidth=1.0, label=None if gray else _SAME_METRIC
            )
            gray = True
    distance.set_ylabel("$W_2$ between the clouds")
    distance.set_ylim(bottom=0)
    if distance.lines:
        distance.legend(frameon=False, fontsize=8)
    defect.set_ylabel(r"covariance defect $(\Sigma_i\, w_i b\, |C_i|^2)^{1/2}$")
    defect.set_ylim(bottom=0)
    if defect.lines:
        defect.legend(frameon=False, fontsize=9, title="along JKO in")
    for axes in (distance, defect):
        axes.set_xlabel("time $t$")
    tau = min(entry.finest.tau for entry in comparison.metrics)
    figure.suptitle(
        f"Gap between the metrics, sign = {comparison.sign:+d}, H = {comparison.num_heads}, $\\tau$ = {tau:g}",
        fontsize=11,
    )
    return figure


def _order(pair: Pair) -> str:
    return "" if pair.order is None else f", last order {pair.order:.2f}"


def _look(gap: Gap, position: int) -> tuple[str, str]:
    colors = ("#56B4E9", "#CC79A7", "#E69F00", "#000000")
    return (colors[3], ":") if gap.second.startswith("explicit") else (colors[position % 3], "-")


def _label(gap: Gap) -> str:
    def pretty(name: str) -> str:
        scheme, _, metric = name.partition(", ")
        return f"{scheme} {math_title(metric)}"

    return f"{pretty(gap.first)} – {pretty(gap.second)}"
