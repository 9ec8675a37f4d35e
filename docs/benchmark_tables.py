"""Writes the tables of the benchmark page from the kept measurements, so that no number is copied by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
BENCH = DOCS.parent / "experiments" / "bench"
PAGES = {
    BENCH / "results.json": DOCS / "generated" / "benchmark_tables.md",
    BENCH / "transport.json": DOCS / "generated" / "transport_tables.md",
}

COLUMNS = {
    "step_over_floor": "step / exponentials",
    "plain_over_step": "plain formula / step",
    "floor_ms": "exponentials (ms)",
    "step_ms": "step (ms)",
    "passes_per_step": "passes per step",
    "most_passes": "most passes",
    "worst_residual": "worst residual",
    "jko_ms_per_step": "JKO step (ms)",
    "jko_over_explicit": "JKO / explicit",
    "eps_over_diameter2": "eps / diameter^2",
    "our_error": "our marginal error",
    "pot_error": "POT's marginal error",
    "our_iterations": "our iterations",
    "our_ms": "ours (ms)",
    "plain_ms": "POT plain (ms)",
    "ours_over_plain": "ours / POT plain",
    "log_over_ours": "POT log / ours",
    "logsumexp_ms": "two logsumexp (ms)",
    "ours_over_logsumexp": "ours / two logsumexp",
    "its_error": "its marginal error",
    "its_ms": "GeomLoss (ms)",
    "ours_over_it": "ours / GeomLoss",
    "marginal_error": "marginal error",
    "assignment_over_pot": "assignment / POT",
    "simplex_over_pot": "simplex / POT",
    "blocked_ns_per_pair": "blocked (ns a pair)",
    "keops_over_blocked": "KeOps / blocked",
}


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def tables(results: dict[str, Any]) -> str:
    """Return Markdown: the setting, then one table per kind of row."""
    setting = ", ".join(f"{name} = {value}" for name, value in results["setting"].items())
    lines = [f"Setting: {setting}.", ""]
    kinds = list(dict.fromkeys(row["what"] for row in results["rows"]))
    for kind in kinds:
        rows = [row for row in results["rows"] if row["what"] == kind]
        names = [name for name in rows[0] if name != "what"]
        lines += [f"## {kind[0].upper()}{kind[1:]}", ""]
        lines += ["| " + " | ".join(COLUMNS.get(name, name) for name in names) + " |", "|" + "---|" * len(names)]
        lines += ["| " + " | ".join(_cell(row[name]) for name in names) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def write() -> None:
    """Write the tables where the page includes them."""
    for results, page in PAGES.items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(tables(json.loads(results.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    write()
