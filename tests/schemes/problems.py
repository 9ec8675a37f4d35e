"""Small problems that the tests of the schemes share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import jko
from jko.metrics import AbstractMetric
from jko.schemes import Step
from jko.schemes.minimizers import Minimization, minimize
from jko.schemes.objective import StepObjective, Trial
from jko.schemes.pose import Pose

METRICS: dict[str, AbstractMetric] = {
    "w2": jko.Wasserstein2(),
    "weighted": jko.WeightedWasserstein(),
    "headwise": jko.HeadwiseWasserstein(),
}
SIGNS = (1, -1)


def solver(name: str, rtol: float | None = None) -> dict[str, Any]:
    """Arguments of `JKO` that solve with one minimizer alone."""
    kind = {"anderson": jko.Anderson, "trust": jko.TrustNewton}[name]
    return {"minimizer": kind(rtol=rtol), "fallback": None}


def attention(
    D: Tensor | list[Any],
    metric: str = "weighted",
    sign: int = 1,
    manifold: Any = None,
    head_weights: Any = None,
) -> jko.GradientFlow:
    energy = jko.AttentionEnergy(jko.ConstantHeads(D, head_weights), sign=sign)
    return jko.GradientFlow(energy, METRICS[metric], manifold)


def tokens(n: int, d: int = 3, seed: int = 0) -> Tensor:
    """Spread over the sphere: no clusters, so that no minimizer is nearly degenerate."""
    return jko.Sphere().random_point((n,), d, seed)


def rotation(d: int, seed: int) -> Tensor:
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))
    return torch.from_numpy(q * np.sign(np.diag(r)))


def gap(a: Tensor, b: Tensor | list[Any]) -> float:
    """Largest difference; NaN where there is one, which every comparison refuses."""
    b = torch.as_tensor(b, dtype=torch.float64)
    assert a.shape == b.shape
    return float((a.detach().to("cpu", torch.float64) - b.detach().cpu()).abs().max())


def succeeded(step: Step) -> Step:
    assert step.info.status is jko.Status.SUCCESS, step.info.detail
    return step


def objective_of(
    flow: jko.GradientFlow,
    measure: jko.ParticleMeasure,
    tau: float,
    rtol: float = 1e-8,
    *,
    t: float = 0.0,
    curvature: bool = False,
) -> tuple[StepObjective, Trial]:
    """The objective of the step from a measure, matched, and its trial at xi = 0."""
    fields = flow.fields(measure, t, flow.energy.evaluate(measure, t, curvature=curvature))
    pose = Pose.of(flow, flow.energy.at(fields.t, fields.measure.points), fields, tau, rtol)
    objective = pose.objective(pose.matched)
    return objective, pose.origin(objective)[0]


def minimized(
    minimizer: jko.AbstractMinimizer, objective: StepObjective, origin: Trial, guess: Any = None, memory: Any = None
) -> Minimization:
    """Run a minimizer on a step whose base points are the old measure."""
    return minimize(minimizer, objective, origin, origin.objective, guess, memory)
