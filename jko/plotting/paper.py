"""Figures 1 to 3 of the paper: snapshots, G^2 against time and H, the ledgers of the energy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from jko.errors import InvalidInput
from jko.paper import SNAPSHOTS, Band, HeadsResult, Ledgers, PowerLaw, RegimeResult, Setting
from jko.plotting.animation import save_animation
from jko.plotting.style import COLORS, GRAY, new_figure, tidy
from jko.plotting.view import View

__all__ = ["animate_clouds", "paper_ledger_figure", "paper_slope_figure", "paper_snapshot_figure", "setting_title"]

# For H in increasing order; told apart in gray as well.
_COUNTS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_CLOUD = COLORS["W2"]
_STRIP = 0.01


def setting_title(setting: Setting, results: Sequence[RegimeResult] = ()) -> str:
    """Return sign, metric, scheme and sizes for a figure, and the number of paths where a result has several."""
    paths = max((setting.count_paths(result.regime) for result in results), default=1)
    many = f", {paths} paths of random heads" if paths > 1 else ""
    return (
        f"explicit Euler, head-wise metric, sign = {setting.sign:+d}, "
        f"n = {setting.n}, d = {setting.dimension}, $\\Delta t$ = {setting.dt:g}{many}"
    )


def paper_snapshot_figure(results: Sequence[RegimeResult]) -> Figure:
    """Return Figure 1: the cloud at t = 0 and near the end, one row per regime, at its largest H.

    Random heads show the mean cloud: each token averaged over the paths and normalized.

    Raises:
        InvalidInput: for no results.
    """
    entries = [_largest(result) for result in _some(results)]
    setting = results[0].setting
    view = View.on_sphere([entry.mean_clouds[k] for entry in entries for k in (0, -1)])
    figure = new_figure(2.5 * len(SNAPSHOTS) + 0.4, 2.6 * len(entries) + 0.9)
    grid = figure.subplots(len(entries), len(SNAPSHOTS), squeeze=False)
    for row, result, entry in zip(grid, results, entries, strict=True):
        for axes, fraction in zip(row, SNAPSHOTS, strict=True):
            k = int((entry.cloud_times - fraction * setting.t1).abs().argmin())
            view.draw(axes, entry.mean_clouds[k], _CLOUD)
            axes.set_title(f"$t$ = {float(entry.cloud_times[k]):g}", fontsize=10)
        paths = setting.count_paths(result.regime)
        label = f"{result.regime.title}\n$H$ = {entry.num_heads}" + (f", mean of {paths} paths" if paths > 1 else "")
        row[0].text(-0.08, 0.5, label, rotation=90, ha="right", va="center", fontsize=9.5, transform=row[0].transAxes)
    notes = [] if setting.dimension == 2 else ["faint: far side"]
    figure.supxlabel(", ".join([*notes, *([view.note] if view.note else [])]), fontsize=9, color="0.35")
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(h_pad=0.06)
    figure.suptitle(f"Token clouds: {setting_title(setting, results)}", fontsize=10.5)
    return figure


def paper_slope_figure(results: Sequence[RegimeResult]) -> Figure:
    """Return Figure 2: G^2 against time for every H, and its mean against H with the fit a H^b, one row per regime.

    Raises:
        InvalidInput: for no results.
    """
    _some(results)
    setting = results[0].setting
    figure = new_figure(9.4, 3.1 * len(results) + 0.5)
    grid = figure.subplots(len(results), 2, squeeze=False)
    for (series, means), result in zip(grid, results, strict=True):
        _draw_series(series, result)
        _draw_means(means, result)
    figure.suptitle(setting_title(setting, results), fontsize=10.5)
    return figure


def paper_ledger_figure(results: Sequence[RegimeResult]) -> Figure:
    """Return Figure 3: above the paper's balance (147), below the ledger that closes; one column per regime.

    Raises:
        InvalidInput: for no results.
    """
    entries = [_largest(result) for result in _some(results)]
    setting = results[0].setting
    figure = new_figure(4.3 * len(results) + 2.1, 7.0)
    grid = figure.subplots(2, len(results), squeeze=False, sharex="col")
    for (above, below), result, entry in zip(grid.T, results, entries, strict=True):
        ledgers = entry.ledgers
        _draw_balance(above, ledgers, _strip(result))
        _draw_closing(below, ledgers)
        left = ledgers.final_balance.mean
        above.set_title(
            f"{result.regime.title}, $H$ = {entry.num_heads}\nbalance (147), {left:.2g} left over at the end",
            fontsize=10,
        )
        gap = "0" if ledgers.gap == 0 else f"{ledgers.gap:.0e}"
        below.set_title(f"the ledger that closes\nremainder at most {gap} of the energy", fontsize=10)
        below.set_xlabel("time $t$")
    for row in grid:
        row[0].set_ylabel("$sE$ (energy)" if setting.sign < 0 else "energy")
        row[-1].legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.suptitle(setting_title(setting, results), fontsize=10.5)
    return figure


def animate_clouds(results: Sequence[RegimeResult], path: str | Path) -> str:
    """Write an animation of the clouds of Figure 1, all regimes side by side, and return the name of its file.

    Raises:
        InvalidInput, MissingDependency, RunFolderError: see `save_animation`.
    """
    entries = [_largest(result) for result in _some(results)]
    setting = results[0].setting
    view = View.on_sphere([entry.mean_clouds[k] for entry in entries for k in (0, -1)])
    figure = new_figure(max(3.6 * len(entries), 5.4), 4.3)
    panels = figure.subplots(1, len(entries), squeeze=False)[0]
    drawn = [view.draw(axes, entry.mean_clouds[0], _CLOUD) for axes, entry in zip(panels, entries, strict=True)]
    for axes, result, entry in zip(panels, results, entries, strict=True):
        axes.set_title(f"{result.regime.title}, $H$ = {entry.num_heads}", fontsize=10)
    clock = figure.supxlabel("$t$ = 00.00", fontsize=10)
    sizes = f"sign = {setting.sign:+d}, head-wise, n = {setting.n}, d = {setting.dimension}"
    figure.suptitle(f"{sizes}\n{view.note}" if view.note else sizes, fontsize=10.5)
    times = entries[0].cloud_times

    def update(k: int) -> None:
        for cloud, entry in zip(drawn, entries, strict=True):
            cloud.move(entry.mean_clouds[k])
        clock.set_text(f"$t$ = {float(times[k]):5.2f}")

    return save_animation(figure, update, len(times), path)


def _some(results: Sequence[RegimeResult]) -> Sequence[RegimeResult]:
    if not results:
        raise InvalidInput("a figure of the paper needs the results of at least one regime")
    return results


def _largest(result: RegimeResult) -> HeadsResult:
    return result.entries[-1]


def _shade(axes: Axes, entry_times: np.ndarray[tuple[int], np.dtype[np.float64]], band: Band, color: str) -> None:
    if band.deviation is not None:
        low, high = (band.mean - band.deviation).numpy(), (band.mean + band.deviation).numpy()
        axes.fill_between(entry_times, low, high, color=color, alpha=0.18, linewidth=0)


def _draw_series(axes: Axes, result: RegimeResult) -> None:
    tidy(axes)
    axes.set_yscale("log")
    many = result.setting.count_paths(result.regime) > 1
    for k, entry in enumerate(result.entries):
        color, times, band = _COUNTS[k % len(_COUNTS)], entry.times.numpy(), entry.slope2
        axes.plot(times, band.mean, color=color, linewidth=1.3, label=f"$H$ = {entry.num_heads}")
        logs = entry.log_slope2
        if logs.deviation is not None:
            # Of the logarithms: mean - sigma itself is negative where one path is far above the others.
            low, high = (logs.mean - logs.deviation).exp(), (logs.mean + logs.deviation).exp()
            axes.fill_between(times, low, high, color=color, alpha=0.18, linewidth=0)
    axes.axvline(result.setting.window, color=GRAY, linewidth=0.8, linestyle=":")
    axes.set_ylim(*_range(result))
    axes.set_xlim(0, result.setting.t1)
    axes.set_xlabel("time $t$")
    axes.set_ylabel(r"$\mathcal{G}_t^2$ (energy / time)")
    axes.set_title(
        result.regime.title + (r": mean, and $\pm 1\sigma$ of log $\mathcal{G}^2$" if many else ""), fontsize=10
    )
    axes.legend(frameon=False, fontsize=9, ncols=len(result.entries), loc="upper right")


def _range(result: RegimeResult) -> tuple[float, float]:
    """The paper's range 1e-3 to 1e1, wider by decades where the means after the start need it."""
    late = [entry.slope2.mean[entry.times >= result.setting.window] for entry in result.entries]
    low = min(float(values.min()) for values in late)
    high = max(float(values.max()) for values in late)
    low_power = min(-3, int(np.floor(np.log10(max(low, 1e-12)))))
    return 10.0 ** max(low_power, -8), 10.0 ** max(1, int(np.ceil(np.log10(max(high, 1e-12)))))


def _draw_means(axes: Axes, result: RegimeResult) -> None:
    tidy(axes)
    axes.set_xscale("log")
    axes.set_yscale("log")
    window = result.setting.window
    for k, entry in enumerate(result.entries):
        values = entry.averages[window]
        color = _COUNTS[k % len(_COUNTS)]
        if len(values) > 1:
            axes.plot([entry.num_heads] * len(values), values, ".", color=color, alpha=0.35, markersize=4)
        axes.plot([entry.num_heads], [float(values.mean())], "o", color=color, markersize=7)
    fits = result.fits(window)
    if fits is not None:
        counts = np.geomspace(result.entries[0].num_heads, result.entries[-1].num_heads, 50)
        for law, style, name in ((fits.nonlinear, "--", "non-linear"), (fits.logarithmic, ":", "log-log")):
            axes.plot(counts, [law(count) for count in counts], style, color=GRAY, label=f"{name}: {_law(law)}")
        axes.legend(
            frameon=False,
            fontsize=7.5,
            handlelength=1.6,
            title="fits $a H^b$ (95 % bands)",
            title_fontsize=8,
            loc="best",
        )
    means = [float(entry.averages[window].mean()) for entry in result.entries]
    axes.set_ylim(min(1e-3, min(means) / 3), max(10.0, 3 * max(means)))
    ticks = [entry.num_heads for entry in result.entries]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("number of heads $H$")
    axes.set_ylabel(f"mean $\\mathcal{{G}}^2$ over $t \\geq {window:g}$")
    correlation = result.correlations(window)["linear"] if len(result.entries) > 1 else None
    told = "" if correlation is None else f", Pearson $r$(1/$H$, mean) = {correlation:.2f}"
    axes.set_title(f"{result.regime.title}{told}", fontsize=10)


def _law(law: PowerLaw) -> str:
    def number(value: float, band: tuple[float, float] | None, form: str) -> str:
        return f"{value:{form}}" + ("" if band is None else f" [{band[0]:{form}}, {band[1]:{form}}]")

    return f"a = {number(law.a, law.a_band, '.3g')}, b = {number(law.b, law.b_band, '.3f')}"


def _strip(result: RegimeResult) -> float:
    """Half of the height of the gray strip of the authors' figure: the fitted a over 100."""
    fits = result.fits(result.setting.window)
    return _STRIP * (fits.nonlinear.a if fits is not None else 0.45)


def _draw_balance(axes: Axes, ledgers: Ledgers, strip: float) -> None:
    tidy(axes)
    times = ledgers.times.numpy()
    axes.axhspan(-strip, strip, color="0.75", alpha=0.6, linewidth=0, label=rf"$\pm a/100$ = {strip:.2g}")
    curves = (
        (ledgers.change, _COUNTS[0], "-", r"$\Delta E$"),
        (ledgers.slope2, _COUNTS[1], "-", r"$\int \mathcal{G}^2\, ds$"),
        (ledgers.explicit, _COUNTS[2], "--", r"$\int \partial_s E\, ds$ (drift + Itô)"),
        (ledgers.martingale, _COUNTS[3], "-.", "$M_t$ (martingale)"),
        (ledgers.balance, "#000000", "-", "balance"),
    )
    for band, color, style, label in curves:
        axes.plot(times, band.mean, style, color=color, linewidth=1.6, label=label)
        _shade(axes, times, band, color)


def _draw_closing(axes: Axes, ledgers: Ledgers) -> None:
    tidy(axes)
    times = ledgers.times.numpy()
    rest = ledgers.change.mean - ledgers.motion.mean - ledgers.time.mean
    curves = (
        (ledgers.change, _COUNTS[0], "-", r"$\Delta E$"),
        (ledgers.motion, _COUNTS[1], "-", "motion part"),
        (ledgers.time, _COUNTS[2], "--", "time part"),
    )
    for band, color, style, label in curves:
        axes.plot(times, band.mean, style, color=color, linewidth=1.6, label=label)
        _shade(axes, times, band, color)
    axes.plot(times, -ledgers.dissipation.mean, ":", color=GRAY, linewidth=1.6, label=r"$-\int$ dissipation $ds$")
    axes.plot(times, rest, "-", color="#000000", label="remainder")
