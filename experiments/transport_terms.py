"""Which transport term? Bias, cost and accuracy of matched, exact and entropic steps, measured on attention flows.

1. Accuracy: one step with the debiased and with the plain entropic term against the exact step, for several eps.
2. Bias: a flow without energy, which should rest, under the plain term: variance against the law eps / (2 b) per step.
3. Cost: time of one step against the number of particles.
4. Weights: exact steps of a cloud with unequal weights, and its quantization by fewer particles.

Prints tables, writes transport_terms.json and a figure into the folder given by --out.

    python experiments/transport_terms.py [--out transport-terms]

JKO_SMALL=1 runs a small version.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import jko

SMALL = bool(os.environ.get("JKO_SMALL"))
TAU = 0.02
N = 20 if SMALL else 40
EPS = (0.3, 0.03) if SMALL else (0.1, 0.03, 0.01, 0.003)
SIZES = (20, 40) if SMALL else (25, 50, 100)
STEPS = 2 if SMALL else 4
# Without energy the plain term hardly sees apart what is closer than sqrt(eps): a coarse tolerance must do there.
LBFGS = jko.TorchOptimizer(torch.optim.LBFGS, max_steps=60, rtol=1e-4, line_search_fn="strong_wolfe")
COLORS = {"matched": "#000000", "exact": "#0072B2", "debiased": "#009E73", "plain": "#D55E00"}


def cloud(n: int, weights: torch.Tensor | None = None, seed: int = 0) -> jko.ParticleMeasure:
    return jko.ParticleMeasure(jko.Sphere().random_point((n,), 3, seed), weights)


def attention() -> jko.GradientFlow:
    heads = jko.ConstantHeads(0.5 * jko.initial_heads(4, 3, seed=0))
    return jko.GradientFlow(jko.AttentionEnergy(heads, sign=+1), jko.WeightedWasserstein())


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(jko.Sphere().squared_distance(one, other).mean().sqrt())


def accuracy() -> list[dict[str, Any]]:
    """Error of the step relative to its length, with the error that theory predicts."""
    flow, mu = attention(), cloud(N)
    exact = jko.JKO(TAU, transport=jko.ExactOT()).step(flow, mu)
    length = distance(exact.measure.points, mu.points)
    rows = []
    for eps in EPS:
        for debias in (True, False):
            scheme = jko.JKO(TAU, transport=jko.Sinkhorn(eps, debias=debias), minimizer=LBFGS, fallback=None)
            step = scheme.step(flow, mu)
            rows.append(
                {
                    "eps": eps,
                    "term": "debiased" if debias else "plain",
                    "status": step.info.status.value,
                    "relative_error": distance(step.measure.points, exact.measure.points) / length
                    if step.info.status.ok
                    else None,
                    "predicted": step.info.columns.get("entropic_bias"),
                }
            )
    return rows


def resting() -> dict[str, list[float]]:
    """Variance of a Gaussian cloud in R^1 over steps without energy, which should not change anything."""
    n, eps = 40, 0.5
    grid = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    start = jko.ParticleMeasure((2**0.5 * torch.erfinv(2 * grid - 1))[:, None])
    nothing = jko.PotentialEnergy(lambda x: 0.0 * x[..., 0])
    flow = jko.GradientFlow(nothing, jko.Wasserstein2(), jko.Euclidean())
    found = {"law": [float(start.points.var(correction=0)) - k * eps / 2 for k in range(STEPS + 1)]}
    for name, transport in (
        ("exact", jko.ExactOT()),
        ("debiased", jko.Sinkhorn(eps)),
        ("plain", jko.Sinkhorn(eps, debias=False)),
    ):
        measure, variances = start, [float(start.points.var(correction=0))]
        scheme = jko.JKO(1.0, transport=transport, minimizer=LBFGS, fallback=None)
        for _ in range(STEPS):
            step = scheme.step(flow, measure)
            assert step.info.status.ok, (name, step.info.detail)
            measure = step.measure
            variances.append(float(measure.points.var(correction=0)))
        found[name] = variances
    return found


def cost() -> list[dict[str, Any]]:
    """Seconds of one step: median of three, after one that warms up."""
    flow, rows = attention(), []
    for n in SIZES:
        mu = cloud(n)
        for name, transport in (
            ("matched", jko.Matched()),
            ("exact", jko.ExactOT()),
            ("debiased", jko.Sinkhorn(0.03)),
        ):
            scheme, seconds = jko.JKO(TAU, transport=transport, minimizer=LBFGS, fallback=None), []
            for _ in range(2 if SMALL else 3):
                start = time.perf_counter()
                info = scheme.step(flow, mu).info
                seconds.append(time.perf_counter() - start)
            rows.append(
                {
                    "n": n,
                    "term": name,
                    "seconds": float(np.median(seconds[1:])),
                    "passes": info.evaluations,
                    "status": info.status.value,
                }
            )
    return rows


def quantization() -> dict[str, float]:
    """A weighted cloud, its exact step, and one to a third of the particles."""
    flow = attention()
    weights = torch.from_numpy(np.random.default_rng(0).dirichlet(np.full(N, 2.0)))
    mu, guess = cloud(N, weights), cloud(N // 3, seed=1)
    matched = jko.JKO(TAU).step(flow, mu)
    exact = jko.JKO(TAU, transport=jko.ExactOT()).step(flow, mu)
    fewer = jko.JKO(TAU, transport=jko.ExactOT()).step(flow, mu, guess=guess)
    assert exact.info.status.ok
    assert fewer.info.status.ok, fewer.info.detail
    return {
        "matched_and_exact_differ_by": distance(matched.measure.points, exact.measure.points),
        "particles": mu.n,
        "fewer_particles": fewer.measure.n,
        "couplings": fewer.info.couplings,
        "root_squared_distance": fewer.info.squared_distance**0.5,
        "residual": fewer.info.residual,
    }


def draw(report: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(13, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for term in ("debiased", "plain"):
        rows = [row for row in report["accuracy"] if row["term"] == term and row["relative_error"] is not None]
        left.loglog(
            [row["eps"] for row in rows], [row["relative_error"] for row in rows], "o-", color=COLORS[term], label=term
        )
        left.loglog(
            [row["eps"] for row in rows], [row["predicted"] for row in rows], "--", color=COLORS[term], lw=1, alpha=0.7
        )
    left.plot([], [], "--", color="0.5", lw=1, label="predicted")
    left.set(xlabel=r"$\varepsilon$ (squared angle)", ylabel="error of the step / its length")
    left.set_title(f"accuracy against the exact step\n$W_{{m,2}}$, sign = +1, $\\tau$ = {TAU}, n = {N}")
    for term in ("exact", "debiased", "plain"):
        values = report["resting"][term]
        middle.plot(range(len(values)), values, "o-", ms=3, color=COLORS[term], label=term)
    middle.plot(report["resting"]["law"], "k:", lw=1.2, label=r"law: $-\varepsilon/2$ a step")
    middle.set(xlabel="step", ylabel="variance (squared length)")
    middle.set_title("no energy at all: what should rest\n$W_2$ on the line, $\\varepsilon$ = 0.5")
    for term in ("matched", "exact", "debiased"):
        rows = [row for row in report["cost"] if row["term"] == term]
        right.loglog([row["n"] for row in rows], [row["seconds"] for row in rows], "o-", color=COLORS[term], label=term)
    right.set(xlabel="particles n", ylabel="seconds a step")
    right.set_title(f"cost of a step\n{report['threads']} threads, float64, debiased: $\\varepsilon$ = 0.03")
    for axes in (left, middle, right):
        axes.grid(True, which="both", alpha=0.25)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("transport-terms"))
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "tau": TAU,
        "n": N,
        "threads": torch.get_num_threads(),
        "accuracy": accuracy(),
        "resting": resting(),
        "cost": cost(),
        "quantization": quantization(),
    }
    for row in report["accuracy"]:
        print(f"eps {row['eps']:<6g} {row['term']:<9} error {row['relative_error']}  predicted {row['predicted']}")
    for row in report["cost"]:
        print(f"n {row['n']:<5d} {row['term']:<9} {row['seconds'] * 1e3:9.1f} ms  {row['passes']:.0f} passes")
    print(report["quantization"])
    (folder / "transport_terms.json").write_text(json.dumps(report, indent=2, allow_nan=False))
    draw(report, folder / "transport_terms.png")
    print(f"written to {folder}")


if __name__ == "__main__":
    main()
