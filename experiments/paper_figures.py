"""The numerical section of the paper on public names: what `jko paper all` does, with both variants of the phases.

Writes Figures 1 to 3 and the numbers into the folder given by --out; finished runs are kept there, so that the script
goes on where it stopped.

    python experiments/paper_figures.py [--out paper-figures] [--sign -1]

JKO_SMALL=1 runs a small version in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from jko.paper import Regime, Setting, collect, execute, paper_jobs
from jko.plotting import paper_ledger_figure, paper_slope_figure, paper_snapshot_figure, save_figure

SMALL = os.environ.get("JKO_SMALL") == "1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("paper-figures"))
    parser.add_argument("--sign", type=int, choices=(1, -1), default=1)
    options = parser.parse_args()
    out, sign = options.out, options.sign
    setting = Setting.small(sign=sign) if SMALL else Setting.as_printed(sign=sign)

    execution = execute(paper_jobs(setting, list(Regime), setting.heads), out / "jobs")
    assert not execution.failed, [failed.detail for failed in execution.failed]
    results = [collect(out / "jobs", setting, regime, setting.heads) for regime in Regime]

    for name, make in (
        ("fig1", paper_snapshot_figure),
        ("fig2", paper_slope_figure),
        ("fig3", paper_ledger_figure),
    ):
        save_figure(make(results), out / name, dpi=200)
    (out / "numbers.json").write_text(json.dumps([result.as_data() for result in results], indent=2) + "\n")

    print(
        f"mean G^2 over t >= {setting.window:g}, sign = {sign:+d}, n = {setting.n}, {setting.paths} paths of OU heads"
    )
    for result in results:
        for entry in result.entries:
            mean = entry.estimate(setting.window)
            error = "" if mean.error is None else f" +- {mean.error:.1g}"
            print(f"{result.regime.title:>28}, H = {entry.num_heads:>3}: {mean.mean:.3g}{error}")
        fits = result.fits(setting.window)
        if fits is not None:
            print(f"{result.regime.title:>28}: a = {fits.logarithmic.a:.3g}, b = {fits.logarithmic.b:.3g} (log-log)")
    broken = [check for result in results for check in result.checks if not check.held]
    assert not broken, broken


if __name__ == "__main__":
    main()
