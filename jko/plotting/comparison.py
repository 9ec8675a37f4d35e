"""Figures of a comparison: distances against tau, energies, and the gap between the metrics."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

from jko.diagnostics import Comparison, Gap
from jko.plotting.style import GRAY, color_of, math_title, new_figure, tidy

__all__ = ["distance_figure", "energy_figure", "gap_figure"]

_SCHEMES = (
    Line2D([], [], color=GRAY, linestyle="-", linewidth=2.4, alpha=0.45, label="JKO"),
    Line2D([], [], color=GRAY, linestyle="--", linewidth=1.2, label="explicit"),
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
            label=math_title(entry.title),
        )
    suprema = [pair.supremum for entry in comparison.metrics for pair in entry.pairs if pair.supremum > 0]
    if taus and suprema:
        low, high = min(taus), max(taus)
        anchor = 0.6 * min(suprema) / low
        axes.loglog([low, high], [anchor * low, anchor * high], ":", color=GRAY, label="slope 1")
        axes.xaxis.set_major_locator(FixedLocator(sorted(taus)))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{tau:g}" for tau in sorted(taus)]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(r"step size $\tau$")
    axes.set_ylabel(r"$\sup_t\, W_2(\mathrm{JKO}, \mathrm{explicit})$")
    axes.set_title(f"Distance between JKO and explicit Euler, sign = {comparison.sign:+d}", fontsize=11)
    axes.legend(frameon=False)
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
            axes.plot(jko.t, jko[column], "-", color=color, linewidth=2.4, alpha=0.45)
            axes.plot(explicit.t, explicit[column], "--", color=color, linewidth=1.2)
        axes.set_xlabel("time $t$")
    energy, dissipation = panels
    energy.set_ylabel(f"energy ${'-' if comparison.sign < 0 else ''}E(u_t, t)$")
    dissipation.set_ylabel(r"dissipation $-\langle \nabla sE, v\rangle$ (energy / time)")
    lowest = min(float(entry.finest.jko.solution.states.dissipation.min()) for entry in comparison.metrics)
    if lowest > 0:
        dissipation.set_yscale("log")
    metrics = [
        Line2D([], [], color=color_of(entry.title, k), linewidth=3, label=math_title(entry.title))
        for k, entry in enumerate(comparison.metrics)
    ]
    energy.legend(handles=[*metrics, *_SCHEMES], frameon=False, fontsize=9)
    tau = min(entry.finest.tau for entry in comparison.metrics)
    figure.suptitle(
        f"Energy and dissipation, sign = {comparison.sign:+d}, H = {comparison.num_heads}, tau = {tau:g}", fontsize=11
    )
    return figure


def gap_figure(comparison: Comparison) -> Figure:
    """Return the distances between runs of different metrics, and the covariance defect, against time."""
    figure = new_figure(9.0, 3.9)
    distance, defect = figure.subplots(1, 2)
    tidy(distance)
    tidy(defect)
    for k, gap in enumerate(comparison.gaps):
        color, style = _look(gap, k)
        distance.plot(gap.times, gap.distances, style, color=color, linewidth=1.8, label=_label(gap))
    for k, entry in enumerate(comparison.metrics):
        states = entry.finest.jko.solution.states
        if "covariance_defect" in states:
            defect.plot(
                states.t, states["covariance_defect"], color=color_of(entry.title, k), label=math_title(entry.title)
            )
    distance.set_ylabel("$W_2$ between the clouds")
    distance.set_ylim(bottom=0)
    distance.legend(frameon=False, fontsize=8)
    defect.set_ylabel(r"covariance defect $(\sum_i w_i b |C|^2)^{1/2}$")
    defect.set_ylim(bottom=0)
    defect.legend(frameon=False, fontsize=9, title="along JKO in")
    for axes in (distance, defect):
        axes.set_xlabel("time $t$")
    figure.suptitle(f"Gap between the metrics, sign = {comparison.sign:+d}, H = {comparison.num_heads}", fontsize=11)
    return figure


def _look(gap: Gap, position: int) -> tuple[str, str]:
    colors = ("#56B4E9", "#CC79A7", "#E69F00", "#000000")
    return (colors[3], ":") if gap.second.startswith("explicit") else (colors[position % 3], "-")


def _label(gap: Gap) -> str:
    def pretty(name: str) -> str:
        scheme, _, metric = name.partition(", ")
        return f"{scheme} {math_title(metric)}"

    return f"{pretty(gap.first)} – {pretty(gap.second)}"
