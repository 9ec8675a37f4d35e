"""The explicit scheme against runs of the code that the authors of the paper released."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import jko
import jko.heads
from tests.schemes.problems import gap

REFERENCE = Path(__file__).parents[1] / "reference"


def _heads(name: str, data: dict[str, np.ndarray]) -> jko.heads.AbstractHeads:
    dt, t1 = float(data["dt"]), float(data["T"])
    if name == "frozen":
        return jko.ConstantHeads(data["D0"])
    if name == "oscillating":
        return jko.OscillatingHeads(data["D0"], dt=dt, t1=t1, phases="spread")
    return jko.OrnsteinUhlenbeckHeads.from_increments(
        data["D0"], data["dW_sym"], dt=dt, sigma2=float(data["noise_var"]) / 2
    )


@pytest.mark.parametrize("name", ["frozen", "oscillating", "ou"])
def test_explicit_runs(name: str) -> None:
    data = dict(np.load(REFERENCE / f"explicit_{name}.npz"))
    heads = _heads(name, data)
    flow = jko.GradientFlow(jko.AttentionEnergy(heads), jko.HeadwiseWasserstein())
    dt, t1 = float(data["dt"]), float(data["T"])
    run = jko.solve(flow, jko.ParticleMeasure(data["x0"]), jko.ExplicitEuler(dt), t1=t1)
    assert gap(heads.at(t1), torch.from_numpy(data["D_final"])) < 1e-11
    assert gap(run.states.t, torch.from_numpy(data["t"])) < 1e-12
    assert gap(run.points[50], torch.from_numpy(data["x_mid"])) < 1e-11
    assert gap(run.points[-1], torch.from_numpy(data["x_final"])) < 1e-11
    assert gap(run.states.energy, torch.from_numpy(data["E"])) < 1e-11
    scale = max(1.0, float(np.abs(data["G2"]).max()))
    assert gap(run.states.paper_slope2, torch.from_numpy(data["G2"])) < 1e-11 * scale
    # The other sign, or the other metric, is another flow.
    wrong = jko.solve(
        jko.GradientFlow(jko.AttentionEnergy(heads, sign=-1), jko.HeadwiseWasserstein()),
        jko.ParticleMeasure(data["x0"]),
        jko.ExplicitEuler(dt),
        t1=t1,
        save=jko.Save(every=100),
    )
    assert gap(wrong.points[-1], torch.from_numpy(data["x_final"])) > 0.1
    assert math.isfinite(float(run.states.energy.sum()))
