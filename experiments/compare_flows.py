"""JKO against the explicit flow from the same measure on the same head path: what `jko compare` does, on public names.

JKO_SMALL=1 runs a small version in seconds.
"""

from __future__ import annotations

import os
from pathlib import Path

import jko
from jko.diagnostics import compare
from jko.plotting import distance_figure, energy_figure, gap_figure, save_figure, snapshot_figure

SMALL = os.environ.get("JKO_SMALL") == "1"
N, T1, TAUS = (40, 0.2, (0.01, 0.005)) if SMALL else (300, 1.0, (0.01, 0.005, 0.0025))
HEADS, DIMENSION, SEED, SIGN = 4, 3, 0, +1
FOLDER = Path("compare-flows")


def main() -> None:
    measure = jko.ParticleMeasure(jko.initial_tokens(N, DIMENSION, SEED))
    heads = jko.OrnsteinUhlenbeckHeads(jko.initial_heads(HEADS, DIMENSION, SEED), dt=min(TAUS), t1=T1, seed=SEED)
    comparison = compare(measure, heads, t1=T1, taus=TAUS, sign=SIGN)
    print(f"{'metric':>10} {'tau':>7} {'sup W_2':>10} {'order':>6}   sign = {SIGN:+d}, H = {HEADS}")
    for entry in comparison.metrics:
        for pair in entry.pairs:
            order = "" if pair.order is None else f"{pair.order:.2f}"
            print(f"{entry.title:>10} {pair.tau:7g} {pair.supremum:10.3e} {order:>6}   {pair.status.name}")
    for gap in comparison.gaps:
        print(f"{gap.first} against {gap.second}: sup W_2 = {gap.supremum:.4f}")
    save_figure(distance_figure(comparison), FOLDER / "distance")
    save_figure(energy_figure(comparison), FOLDER / "energy")
    save_figure(gap_figure(comparison), FOLDER / "gap")
    for entry in comparison.metrics:
        rows = {"JKO": entry.finest.jko.solution, "explicit Euler": entry.finest.explicit.solution}
        figure = snapshot_figure(rows, manifold=jko.Sphere(), title=f"{entry.title}, sign = {SIGN:+d}")
        save_figure(figure, FOLDER / f"snapshots-{type(entry.metric).__name__}")
    assert all(check.held for check in comparison.checks), [check for check in comparison.checks if not check.held]


if __name__ == "__main__":
    main()
