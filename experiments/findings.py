"""The two findings of the project, in figures.

1. For several heads the W_{m,2} step follows v_B and not the transformer v_T: two tokens whose energy rises along v_T,
   and the covariance over heads of 1/m_h and DK_h, the difference of the two velocities, against the number of heads.
2. Along oscillating heads G^2 stays up for shared phases, as in the published figure, and falls for the phases
   2 pi h / H of the formula.

Prints the numbers and writes findings.json and two figures into the folder given by --out.

    python experiments/findings.py [--out findings] [--small]

--small, or JKO_SMALL=1, runs a small version.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import jko
from jko import weighted

BLUE, ORANGE, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "0.35"
PAIRS = ((1.0, 3.0), (3.99, -1.97))
PUBLISHED = 0.373


def scalar_heads(betas: tuple[float, ...]) -> jko.ConstantHeads:
    return jko.ConstantHeads(torch.stack([beta * torch.eye(2, dtype=torch.float64) for beta in betas]))


def two_tokens(betas: tuple[float, ...], *, small: bool) -> dict[str, object]:
    """E and the inner product of x = e1, e2 along v_T and v_B, and the numbers at the start."""
    measure = jko.ParticleMeasure(torch.eye(2, dtype=torch.float64))
    energy = jko.AttentionEnergy(scalar_heads(betas))
    found: dict[str, object] = {"betas": betas}
    for name, metric in (("v_T", jko.HeadwiseWasserstein()), ("v_B", jko.WeightedWasserstein())):
        flow = jko.GradientFlow(energy, metric)
        run = jko.solve(flow, measure, jko.RK4(0.1 if small else 0.02), t1=3.0)
        start = {key: float(run.states[key][0]) for key in ("slope2", "dissipation", "paper_slope2")}
        inner = (run.points[:, 0] * run.points[:, 1]).sum(-1)
        found[name] = {
            "start": start,
            "velocity": [row.tolist() for row in flow.velocity(measure, 0.0)],
            "t": run.states.t.tolist(),
            "energy": run.states.energy.tolist(),
            "inner": inner.tolist(),
        }
    heads = energy.evaluate(measure, 0.0).heads
    found["b"] = float(weighted.effective_mobility(heads.mobility)[0])
    return found


def covariance(counts: tuple[int, ...], draws: int) -> dict[str, list[float]]:
    """(sum w b |v_B - v_T|^2)^(1/2) against G over random heads Z + Z^T, quartiles over the draws."""
    measure = jko.ParticleMeasure(jko.initial_tokens(40, 3, seed=0))
    rows: dict[str, list[float]] = {"H": list(counts), "low": [], "median": [], "high": []}
    for count in counts:
        ratios = []
        for seed in range(draws):
            heads = jko.ConstantHeads(jko.initial_heads(count, 3, seed=seed))
            flow = jko.GradientFlow(jko.AttentionEnergy(heads), jko.HeadwiseWasserstein())
            columns = flow.state(measure, 0.0).columns
            ratios.append(columns["covariance_defect"] / columns["paper_slope2"] ** 0.5)
        for name, share in (("low", 0.25), ("median", 0.5), ("high", 0.75)):
            rows[name].append(float(np.quantile(ratios, share)))
    return rows


def oscillating(counts: tuple[int, ...], *, small: bool) -> dict[str, dict[str, object]]:
    """G^2 over time along oscillating heads, and its mean over the second half."""
    dt, t1, n = (0.1, 12.0, 12) if small else (0.01, 20.0, 60)
    measure = jko.ParticleMeasure(jko.initial_tokens(n, 3, seed=0))
    found: dict[str, dict[str, object]] = {}
    for phases in ("shared", "spread"):
        for count in counts:
            heads = jko.OscillatingHeads(jko.initial_heads(count, 3, seed=0), dt=dt, t1=t1, phases=phases)
            flow = jko.GradientFlow(jko.AttentionEnergy(heads), jko.HeadwiseWasserstein())
            run = jko.solve(flow, measure, jko.ExplicitEuler(dt), t1=t1, save=jko.Save(every=10**6))
            G2 = run.states.paper_slope2
            found[f"{phases}, H = {count}"] = {
                "phases": phases,
                "H": count,
                "t": run.states.t.tolist(),
                "G2": G2.tolist(),
                "mean": float(G2[len(G2) // 2 :].mean()),
            }
    return found


def tidy(axis: object) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)


def draw_first(pairs: list[dict[str, object]], rows: dict[str, list[float]], path: Path) -> None:
    figure = Figure(figsize=(13.5, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for axis in (left, middle, right):
        tidy(axis)
    rising = pairs[1]
    for name, color, label in (("v_T", GREEN, "transformer $v_T$"), ("v_B", ORANGE, "$W_{m,2}$ limit $v_B$")):
        left.plot(rising[name]["t"], rising[name]["energy"], color=color, linewidth=2, label=label)
        middle.plot(rising[name]["t"], rising[name]["inner"], color=color, linewidth=2, label=label)
    left.set_xlabel("time")
    left.set_ylabel("energy $E$")
    left.set_title("Two tokens, $D = (3.99\\,I, -1.97\\,I)$: $E$ rises along $v_T$", loc="left", fontsize=10)
    left.legend(frameon=False)
    middle.axhline(0.785554, color=GREEN, linestyle=":", linewidth=1.2)
    middle.axhline(-0.118416, color=ORANGE, linestyle=":", linewidth=1.2)
    middle.text(3.0, 0.80, "$v_T = 0$", color=GREEN, ha="right", va="bottom", fontsize=9)
    middle.text(3.0, -0.105, "$\\nabla E = 0$", color=ORANGE, ha="right", va="bottom", fontsize=9)
    middle.set_xlabel("time")
    middle.set_ylabel("inner product of the tokens")
    middle.set_title("The two rest at different places", loc="left", fontsize=10)
    right.fill_between(rows["H"], rows["low"], rows["high"], color=BLUE, alpha=0.2, linewidth=0, label="quartiles")
    right.plot(rows["H"], rows["median"], color=BLUE, marker="o", linewidth=2, label="median over draws")
    right.set_xscale("log")
    right.set_xticks(rows["H"], [f"{count}" for count in rows["H"]], minor=False)
    right.minorticks_off()
    right.set_xlabel("number of heads $H$")
    right.set_ylabel("$\\|v_B - v_T\\|_b \\, / \\, G$")
    right.set_ylim(bottom=0)
    right.set_title("$v_B - v_T$ = covariance over heads, $D = Z + Z^T$", loc="left", fontsize=10)
    right.legend(frameon=False)
    title = "Finding 1: for several heads $W_{m,2}$ steps do not follow the transformer (sign = +1)"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.savefig(path, dpi=150)


def draw_second(found: dict[str, dict[str, object]], counts: tuple[int, ...], path: Path) -> None:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.4, 1))
    colors = dict(zip(counts, (BLUE, ORANGE, GREEN, "#CC79A7"), strict=False))
    for axis in (left, right):
        tidy(axis)
        axis.set_yscale("log")
    for row in found.values():
        style = "-" if row["phases"] == "shared" else "--"
        if row["H"] > 1 or row["phases"] == "shared":
            left.plot(row["t"], row["G2"], style, color=colors[row["H"]], linewidth=1.3)
    for count in counts:
        left.plot([], [], color=colors[count], label=f"H = {count}")
    left.plot([], [], "-", color=GRAY, label="phases shared")
    left.plot([], [], "--", color=GRAY, label="phases $2\\pi h/H$")
    left.set_xlabel("time")
    left.set_ylabel("$G^2$ (energy / time)")
    left.legend(frameon=False, fontsize=9, ncols=2, loc="lower left")
    for phases, style, marker in (("shared", "-", "o"), ("spread", "--", "s")):
        means = [found[f"{phases}, H = {count}"]["mean"] for count in counts]
        label = "phases shared (published figure)" if phases == "shared" else "phases $2\\pi h/H$ (formula)"
        right.plot(counts, means, style, marker=marker, color=GRAY, linewidth=1.8, label=label)
    right.axhline(PUBLISHED, color=ORANGE, linestyle=":", linewidth=1.3, label=f"published fit {PUBLISHED}")
    right.set_xscale("log")
    right.set_xticks(counts, [f"{count}" for count in counts], minor=False)
    right.minorticks_off()
    right.set_xlabel("number of heads $H$")
    right.set_ylabel("mean $G^2$, second half")
    right.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    figure.suptitle("Finding 2: oscillating heads, transformer flow, sign = +1", x=0.01, ha="left", fontweight="bold")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("findings"))
    parser.add_argument("--small", action="store_true", default=bool(os.environ.get("JKO_SMALL")))
    arguments = parser.parse_args()
    small, out = arguments.small, arguments.out
    out.mkdir(parents=True, exist_ok=True)

    pairs = [two_tokens(betas, small=small) for betas in PAIRS]
    for pair in pairs:
        transformer, steepest = pair["v_T"]["start"], pair["v_B"]["start"]
        print(
            f"D = ({pair['betas'][0]:g} I, {pair['betas'][1]:g} I): b = {pair['b']:.6f}, paper G^2 = "
            f"{transformer['paper_slope2']:.6f}, true dissipation {transformer['dissipation']:.6f}, weighted slope^2 "
            f"{steepest['slope2']:.6f}"
        )
    rows = covariance((1, 2, 4, 10) if small else (1, 2, 4, 10, 30, 100), 5 if small else 40)
    for count, median in zip(rows["H"], rows["median"], strict=True):
        print(f"H = {count:>3}: covariance defect / G = {median:.3f} (median)")
    counts = (1, 10) if small else (1, 10, 30)
    found = oscillating(counts, small=small)
    for name, row in found.items():
        print(f"phases {name:>15}: mean G^2 = {row['mean']:.3g}")

    (out / "findings.json").write_text(
        json.dumps({"two_tokens": pairs, "covariance": rows, "oscillating": found}, indent=1) + "\n"
    )
    draw_first(pairs, rows, out / "finding_1.png")
    draw_second(found, counts, out / "finding_2.png")
    assert pairs[1]["v_T"]["energy"][1] > pairs[1]["v_T"]["energy"][0]
    assert found["spread, H = 10"]["mean"] < 0.02 * found["shared, H = 10"]["mean"]
    print(f"figures in {out}")


if __name__ == "__main__":
    main()
