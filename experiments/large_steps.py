"""How large may a step be? JKO at tau = 1 and 10 from the stiff start D_0 = Z + Z^T, three metrics, both signs.

Every step is judged by its own certificate: relative residual, descent (per head for the head-wise metric), |xi| < pi.
Prints a table, writes large_steps.json and a figure into the folder given by --out.

    python experiments/large_steps.py [--out large-steps]

JKO_SMALL=1 runs a small version.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import jko

SMALL = bool(os.environ.get("JKO_SMALL"))
N, STEPS, HEADS = (12, 2, (1, 4)) if SMALL else (40, 10, (1, 4, 30))
TAUS = (1.0, 10.0)
METRICS = (jko.Wasserstein2(), jko.WeightedWasserstein(), jko.HeadwiseWasserstein())


def steps(flow: jko.GradientFlow, tau: float) -> list[dict[str, object]]:
    """Take the steps one by one; a step that fails is reported and ends the series."""
    measure = jko.ParticleMeasure(jko.initial_tokens(N, 3, seed=0))
    scheme, rows = jko.JKO(tau), []
    for _ in range(STEPS):
        step = scheme.step(flow, measure)
        info = step.info
        rows.append(
            {
                "status": info.status.value,
                "residual": info.residual,
                "largest_displacement": info.largest_displacement,
                "passes": info.evaluations,
                "certified": info.certified,
                "detail": info.detail,
            }
        )
        if not info.status.ok:
            break
        after = info.head_energy if flow.metric.lifted else float(flow.energy.value(step.measure, 0.0))
        slack = 1e-12 * (abs(after) + abs(info.energy_previous))
        assert after + info.squared_distance / (2 * tau) <= info.energy_previous + slack
        assert info.residual <= 1e-8
        assert info.largest_displacement < math.pi
        measure = step.measure
    return rows


def draw(series: dict[str, list[dict[str, object]]], path: Path) -> None:
    """Passes per step, one panel per step size and sign."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    colors = dict(zip([metric.title for metric in METRICS], ("#0072B2", "#D55E00", "#009E73"), strict=True))
    styles = dict(zip(HEADS, ("-", "--", ":")[: len(HEADS)], strict=True))
    for (row, column), axis in np.ndenumerate(axes):
        tau, sign = TAUS[row], (1, -1)[column]
        for key, rows in series.items():
            heads, tau_, metric, sign_ = key.split("|")
            if float(tau_) == tau and int(sign_) == sign:
                passes = [max(1.0, float(entry["passes"])) for entry in rows]
                axis.semilogy(range(1, len(passes) + 1), passes, styles[int(heads)], color=colors[metric], marker=".")
        axis.set_title(f"tau = {tau:g}, sign = {sign:+d}")
        axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("step")
    for axis in axes[:, 0]:
        axis.set_ylabel("passes over the pairs")
    for metric, color in colors.items():
        axes[0, 1].plot([], [], color=color, label=metric.replace("W_{m,2}", "$W_{m,2}$").replace("W2", "$W_2$"))
    for heads, style in styles.items():
        axes[0, 1].plot([], [], style, color="0.3", label=f"H = {heads}")
    axes[0, 1].legend(fontsize="small", ncols=2)
    figure.suptitle("JKO steps far beyond the range of explicit schemes, stiff start")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the survey."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("large-steps"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    series: dict[str, list[dict[str, object]]] = {}
    print(f"{'H':>3} {'tau':>4} {'metric':>10} {'sign':>4}  solved  certified  passes per step (first, median)")
    for heads in HEADS:
        path = jko.ConstantHeads(jko.initial_heads(heads, 3, seed=0))
        for tau in TAUS:
            for metric in METRICS:
                for sign in (1, -1):
                    flow = jko.GradientFlow(jko.AttentionEnergy(path, sign=sign), metric)
                    rows = steps(flow, tau)
                    series[f"{heads}|{tau}|{metric.title}|{sign}"] = rows
                    solved = sum(row["status"] == "success" for row in rows)
                    certified = sum(row["certified"] == 1 for row in rows)
                    passes = [float(row["passes"]) for row in rows]
                    print(
                        f"{heads:>3} {tau:>4g} {metric.title:>10} {sign:>+4d}  {solved:>2} of {len(rows):<2}"
                        f"  {certified:>9}  {passes[0]:g}, {np.median(passes):g}",
                        flush=True,
                    )
    (out / "large_steps.json").write_text(json.dumps({"n": N, "series": series}, indent=2) + "\n")
    draw(series, out / "large_steps.png")
    total = [row["status"] == "success" for rows in series.values() for row in rows]
    print(f"{sum(total)} of {len(total)} steps solved; figure in {out / 'large_steps.png'}")


if __name__ == "__main__":
    main()
