"""Tables and notes of the results."""

from __future__ import annotations

import math

from rich.table import Table

from jko.diagnostics import Comparison, MetricComparison, Pair
from jko.solution import Solution, versions

__all__ = ["comparison_notes", "comparison_tables", "solution_table"]


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return one table per metric, at most 100 columns wide."""
    return [_metric_table(comparison, entry) for entry in comparison.metrics]


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return the sentences below the tables; every number in them was measured in this comparison."""
    notes = [*_order_notes(comparison), *_gap_notes(comparison)]
    failed = [check for check in comparison.checks if not check.held]
    held = len(comparison.checks) - len(failed)
    notes += [f"FAILED: {check.statement} ({check.detail})" for check in failed]
    notes.append(f"{held} of {len(comparison.checks)} checked statements hold (listed in summary.json).")
    found = ", ".join(f"{name} {number}" for name, number in versions().items())
    notes.append(f"Energy: {comparison.energy}. Versions: {found}.")
    return notes


def solution_table(solution: Solution) -> Table:
    """Return the table of a single run: states at the start and the end, steps in between."""
    table = Table(title=solution.title, title_justify="left")
    table.add_column("quantity")
    table.add_column("start", justify="right")
    table.add_column("end", justify="right")
    for name, column in solution.states.numeric().items():
        table.add_row(name, f"{float(column[0]):.6g}", f"{float(column[-1]):.6g}")
    table.add_section()
    for name, value in _step_rows(solution):
        table.add_row(name, "", value)
    return table


def _step_rows(solution: Solution) -> list[tuple[str, str]]:
    rows = [("status", solution.status.name), ("steps", str(solution.steps))]
    records = solution.records
    if not solution.steps:
        return rows
    rows.append(("passes per step", f"{float(records.evaluations.mean()):.2f}"))
    rows.append(("largest displacement", f"{float(records.largest_displacement.max()):.4g}"))
    if "residual" in records:
        rows.append(("worst residual", f"{float(records.residual.max()):.2e}"))
        rows.append(("certified", f"{100 * float(records.certified.mean()):.1f} %"))
    return rows


def _metric_table(comparison: Comparison, entry: MetricComparison) -> Table:
    table = Table(title=f"{entry.title}, sign = {comparison.sign:+d}, H = {comparison.num_heads}", title_justify="left")
    for head in (
        "tau",
        "sup W_2 JKO-\nexplicit",
        "observed\norder",
        "largest\n|xi|",
        "motion part\nJKO/explicit",
        "time part\nJKO/explicit",
        "worst res.\ncertified",
        "passes\n/step",
        "ms/step JKO\nexplicit",
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for pair in entry.pairs:
        table.add_row(*_cells(pair))
        if not pair.complete:
            table.add_row("", *(f"{pair.status.name}" if k == 0 else "" for k in range(8)))
    return table


def _cells(pair: Pair) -> list[str]:
    jko, explicit = pair.jko, pair.explicit
    certified = jko.certified
    return [
        f"{pair.tau:g}",
        f"{pair.supremum:.3e}",
        "" if pair.order is None else f"{pair.order:.2f}",
        _number(jko.largest_displacement, "{:.3f}"),
        f"{jko.motion_part:.4f}\n{explicit.motion_part:.4f}",
        f"{jko.time_part:.4f}\n{explicit.time_part:.4f}",
        f"{_number(jko.worst_residual, '{:.1e}')}\n{_number(certified, '{:.1%}')}",
        f"{_number(jko.passes_per_step, '{:.1f}')}\n{_number(explicit.passes_per_step, '{:.1f}')}",
        f"{_milliseconds(jko.seconds_per_step)}\n{_milliseconds(explicit.seconds_per_step)}",
    ]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.1f}"


def _order_notes(comparison: Comparison) -> list[str]:
    notes = []
    for entry in comparison.metrics:
        for pair in entry.pairs:
            if not pair.complete:
                which = pair.jko if not pair.jko.solution.status.ok else pair.explicit
                notes.append(f"{which.solution.title}, tau = {pair.tau:g}: {which.solution.failure}")
            elif pair.order is not None and not 0.9 <= pair.order <= 1.1:
                notes.append(
                    f"{entry.title}: observed order {pair.order:.2f} at tau = {pair.tau:g} is not yet the asymptotic 1; "
                    f"the largest |xi| of a step is {_number(pair.jko.largest_displacement, '{:.2f}')}."
                )
    return notes


def _gap_notes(comparison: Comparison) -> list[str]:
    notes = [
        f"Gap at tau = {gap.tau:g}: sup W_2({gap.first}; {gap.second}) = {gap.supremum:.4f}." for gap in comparison.gaps
    ]
    crossing = [gap for gap in comparison.gaps if gap.second.startswith("explicit")]
    defects = [
        float(entry.finest.jko.solution.states.covariance_defect.max())
        for entry in comparison.metrics
        if entry.title == "W_{m,2}" and "covariance_defect" in entry.finest.jko.solution.states
    ]
    if crossing and comparison.num_heads >= 2:
        gap = crossing[0]
        defect = f" The covariance defect on that path is at most {max(defects):.4f}." if defects else ""
        notes.append(
            f"With H = {comparison.num_heads} heads JKO in W_{{m,2}} does NOT approach the head-wise explicit flow: their "
            f"distance reaches {gap.supremum:.4f} at tau = {gap.tau:g}, {_against(comparison, gap.supremum)}"
            f"It is a difference of the metrics, not of the schemes.{defect}"
        )
    return notes


def _against(comparison: Comparison, gap: float) -> str:
    own = [entry.finest.supremum for entry in comparison.metrics if entry.title == "W_{m,2}"]
    if not own or own[0] == 0 or not math.isfinite(gap / own[0]):
        return ""
    return f"{gap / own[0]:.0f} times the distance to the explicit flow of its own metric. "
