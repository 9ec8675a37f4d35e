"""Existence of minimizing movements, measured: estimates of Theorem 3.11, De Giorgi's identity, weak form, convergence.

Runs the tests of `jko.verify` on attention flows (Ornstein-Uhlenbeck heads without noise, three metrics, both signs)
and on a potential with an interaction in R^2. Prints one line per finding and writes
existence.json and a figure per finding into the folder given by --out.

    python experiments/existence.py [--out existence]

JKO_SMALL=1 runs a small version.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch

import jko
from jko import verify
from jko.plotting import finding_figure, save_figure

SMALL = bool(os.environ.get("JKO_SMALL"))
N, T1 = (8, 0.05) if SMALL else (40, 0.4)
TAUS = (0.025, 0.0125, 0.00625) if SMALL else (0.02, 0.01, 0.005, 0.0025)
HEADS = (2,) if SMALL else (1, 4)
METRICS = (
    (jko.WeightedWasserstein(),)
    if SMALL
    else (jko.Wasserstein2(), jko.WeightedWasserstein(), jko.HeadwiseWasserstein())
)
NAMES = {jko.Wasserstein2: "w2", jko.WeightedWasserstein: "weighted", jko.HeadwiseWasserstein: "headwise"}


def attention() -> dict[str, tuple[jko.GradientFlow, jko.ParticleMeasure, float | None]]:
    """Name -> flow, measure and the order that theory predicts."""
    found = {}
    for count in HEADS:
        D0 = jko.initial_heads(count, 3, seed=0)
        D0 = D0 * (1.5 / torch.linalg.matrix_norm(D0, ord=2))[:, None, None]
        quiet = jko.OrnsteinUhlenbeckHeads(D0, sigma2=0.0, dt=TAUS[-1], t1=T1)
        for sign in (1, -1):
            for metric in METRICS:
                flow = jko.GradientFlow(jko.AttentionEnergy(quiet, sign), metric)
                measure = jko.ParticleMeasure(jko.Sphere().random_point((N,), 3, 0))
                found[f"ou-{NAMES[type(metric)]}-H{count}-{'plus' if sign > 0 else 'minus'}"] = (flow, measure, 1.0)
    return found


def plane() -> dict[str, tuple[jko.GradientFlow, jko.ParticleMeasure, float | None]]:
    """A quadratic potential with a repulsive Gaussian interaction."""
    energy = jko.PotentialEnergy(lambda x: x.square().sum(-1) / 2) + jko.InteractionEnergy(jko.GaussianKernel(1.0))
    flow = jko.GradientFlow(energy, jko.Wasserstein2(), jko.Euclidean())
    return {"plane-w2": (flow, jko.ParticleMeasure(jko.Euclidean().random_point((N,), 2, 0)), 1.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("existence"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    data = {}
    for name, (flow, measure, order) in {**attention(), **plane()}.items():
        findings = (
            *verify.existence(flow, measure, TAUS, T1, order=order),
            *verify.weak_form(flow, measure, TAUS[:2], T1),
        )
        for finding in findings:
            main_number = finding.main
            assert main_number is not None
            print(
                f"{name:24s} {finding.key:18s} {finding.verdict.value:8s} {main_number.name}: {main_number.value:.6g}"
            )
            save_figure(finding_figure(finding), out / f"{name}-{finding.key}")
        data[name] = [finding.as_data() for finding in findings]
    (out / "existence.json").write_text(json.dumps(data, indent=2, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
