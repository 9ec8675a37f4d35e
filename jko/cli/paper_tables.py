"""Tables of `jko paper`, 100 columns wide."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from jko.diagnostics import Check
from jko.paper import Estimate, FlowsResult, PowerLaw, Regime, RegimeResult

__all__ = ["PRINTED", "check_notes", "flow_tables", "regime_tables"]

PRINTED = {
    "oscillating": {"a": 0.373, "a_band": [0.27, 0.54], "b": 0.005, "b_band": [-0.06, 0.07], "pearson": -0.33},
    "ou": {"b": -1.0},
}
"""What the paper prints of its fits; the fitted a and b of its OU experiment are lost."""


def regime_tables(results: Sequence[RegimeResult]) -> list[Table]:
    """Return G^2 and the ledgers for every H, and the fits."""
    return [_number_table(results), *([_fit_table(results)] if any(len(r.entries) > 1 for r in results) else [])]


def flow_tables(result: FlowsResult) -> list[Table]:
    """Return mean G^2 of all flows and the distances between JKO and explicit."""
    setting = result.setting
    title = (
        f"JKO and explicit, sign = {setting.sign:+d}, n = {setting.n}, d = {setting.dimension}, "
        f"tau = {setting.dt:g}, T = {setting.t1:g}"
    )
    table = _table(f"{title}\nmean G^2 over t >= {setting.window:g}; sup over time of W_2(JKO, explicit)")
    for head in (
        "heads",
        "H",
        "metric",
        "JKO\nmean G^2",
        "explicit\nmean G^2",
        "sup W_2",
        "passes\n/step",
        "certified",
    ):
        table.add_column(
            head, justify="left" if head in ("heads", "metric") else "right", vertical="bottom", no_wrap=True
        )
    for entry in result.entries:
        table.add_section()
        rows: dict[str, list[str]] = {}
        for movement in entry.movements:
            row = rows.setdefault(movement.geometry.metric.title, ["", "", "", "", ""])
            row[0 if movement.minimizing else 1] = f"{movement.mean_slope2:.3e}"
            if movement.minimizing:
                row[3] = f"{movement.passes:.2f}"
                row[4] = "" if movement.certified is None else f"{movement.certified:.1%}"
        for distance in entry.same_metric:
            rows[distance.first.partition(", ")[2]][2] = f"{distance.supremum:.3e}"
        first = True
        for metric, row in rows.items():
            table.add_row(_short(entry.regime) if first else "", str(entry.num_heads) if first else "", metric, *row)
            first = False
        if entry.crossing is not None:
            table.add_row("", "", "JKO W_{m,2}, expl. head-wise", "", "", f"{entry.crossing.supremum:.3e}", "", "")
    return [table]


def check_notes(checks: Sequence[Check]) -> list[str]:
    """Return one line per statement that failed, and how many hold."""
    failed = [check for check in checks if not check.held]
    notes = [f"FAILED: {check.statement} ({check.detail})" for check in failed]
    notes.append(f"{len(checks) - len(failed)} of {len(checks)} checked statements hold (listed in summary.json).")
    return notes


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def _number_table(results: Sequence[RegimeResult]) -> Table:
    setting = results[0].setting if results else None
    sizes = (
        "no regime is complete"
        if setting is None
        else f"sign = {setting.sign:+d}, n = {setting.n}, d = {setting.dimension}, dt = {setting.dt:g}, "
        f"T = {setting.t1:g}, {setting.paths} paths of OU heads"
    )
    table = _table(f"Explicit head-wise flow, {sizes}")
    window = 0.0 if setting is None else setting.window
    for head in (
        "heads",
        "H",
        f"mean G^2\nt >= {window:g}",
        "E change",
        "M_T",
        "(147)\nleft over",
        "motion\npart",
        "time\npart",
    ):
        table.add_column(head, justify="left" if head == "heads" else "right", vertical="bottom", no_wrap=True)
    for result in results:
        table.add_section()
        for k, entry in enumerate(result.entries):
            ledgers = entry.ledgers
            table.add_row(
                "" if k else _short(result.regime),
                str(entry.num_heads),
                _estimate(entry.estimate(window)),
                f"{float(ledgers.change.mean[-1]):.3f}",
                _estimate(ledgers.final_martingale) if result.regime.random else "0",
                f"{ledgers.final_balance.mean:.3f}",
                f"{float(ledgers.motion.mean[-1]):.3f}",
                f"{float(ledgers.time.mean[-1]):.3f}",
            )
    return table


def _fit_table(results: Sequence[RegimeResult]) -> Table:
    setting = results[0].setting
    table = _table(f"Fits a H^b to the mean of G^2 over t >= {setting.window:g}, with 95 % bands")
    for head in ("heads", "fit", "a", "b", "Pearson r\n(1/H, mean)"):
        table.add_column(head, justify="left" if head in ("heads", "fit") else "right", vertical="bottom", no_wrap=True)
    for result in results:
        fits = result.fits(setting.window)
        if fits is None:
            continue
        table.add_section()
        correlation = result.correlations(setting.window)["linear"]
        told = "" if correlation is None else f"{correlation:.3f}"
        table.add_row(_short(result.regime), "non-linear", *_law(fits.nonlinear), told)
        table.add_row("", "log-log", *_law(fits.logarithmic), "")
        if fits.resampled is not None:
            table.add_row("", "log-log, resampled paths", *_law(fits.resampled), "")
        if result.regime is Regime.OSCILLATING_SHARED and setting.dimension == 3:
            table.add_row("", "printed", "0.373 [0.27, 0.54]", "0.005 [-0.06, 0.07]", "-0.33")
    return table


def _short(regime: Regime) -> str:
    return {Regime.OU: "OU", Regime.OSCILLATING_SHARED: "osc., shared", Regime.OSCILLATING_SPREAD: "osc., spread"}[
        regime
    ]


def _estimate(estimate: Estimate) -> str:
    if estimate.error is None:
        return f"{estimate.mean:.3g}"
    return f"{estimate.mean:.3g} +- {estimate.error:.1g}"


def _law(law: PowerLaw) -> tuple[str, str]:
    def number(value: float, band: tuple[float, float] | None) -> str:
        return f"{value:.3g}" + ("" if band is None else f" [{band[0]:.3g}, {band[1]:.3g}]")

    return number(law.a, law.a_band), number(law.b, law.b_band)
