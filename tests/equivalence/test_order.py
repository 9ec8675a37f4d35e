"""A minimizing movement and the explicit scheme in the SAME metric agree to first order, in different ones they do not.

All grids see one and the same head path, whose nodes lie on the finest grid.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

import jko
import jko.heads
from jko.random import symmetric_increments
from tests.schemes.problems import METRICS, SIGNS, gap

N, T1 = 12, 0.08
STEPS = (4, 8, 16, 32, 64)
FINEST = T1 / STEPS[-1]


@functools.cache
def heads(count: int) -> jko.heads.AbstractHeads:
    D0 = jko.initial_heads(count, 3, 5)
    norms = torch.linalg.matrix_norm(D0, ord=2)
    D0 = D0 * (1.5 / norms)[:, None, None]
    noise = symmetric_increments(11, 0, count, 3, STEPS[-1], FINEST)
    return jko.OrnsteinUhlenbeckHeads.from_increments(D0, noise, dt=FINEST, sigma2=0.5)


@functools.cache
def runs(kind: str, metric: str, count: int, sign: int) -> list[jko.Solution]:
    flow = jko.GradientFlow(jko.AttentionEnergy(heads(count), sign=sign), METRICS[metric])
    mu = jko.ParticleMeasure(jko.initial_tokens(N, 3, 2))
    scheme = {"jko": jko.JKO, "explicit": jko.ExplicitEuler}[kind]
    return [jko.solve(flow, mu, scheme(T1 / steps), t1=T1, save=jko.Save(every=steps // STEPS[0])) for steps in STEPS]


def distances(one: list[jko.Solution], other: list[jko.Solution]) -> list[float]:
    """Largest root mean square distance of the particles over the times of the coarsest grid."""
    return [
        float((a.points - b.points).square().sum(-1).mean(-1).sqrt().max()) for a, b in zip(one, other, strict=True)
    ]


def fit(errors: list[float]) -> tuple[float, float]:
    """Order and R^2 of a straight line through log error over log tau."""
    x, y = np.log([T1 / steps for steps in STEPS]), np.log(errors)
    slope, constant = np.polyfit(x, y, 1)
    residual = y - slope * x - constant
    return float(slope), float(1 - residual.var() / y.var())


def test_the_path_is_the_same_on_every_grid() -> None:
    for steps in STEPS:
        times = next(run.states.t for run in runs("jko", "w2", 4, 1) if len(run.states.t) == steps + 1)
        for k in range(0, steps + 1, steps // STEPS[0]):
            assert torch.equal(heads(4).at(float(times[k])), heads(4).at(k / steps * T1))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("sign", SIGNS)
def test_first_order_in_the_same_metric(metric: str, count: int, sign: int) -> None:
    minimizing, explicit = runs("jko", metric, count, sign), runs("explicit", metric, count, sign)
    assert float(minimizing[0].records.largest_displacement.max()) < 0.1
    assert float((minimizing[-1].points[-1] - minimizing[-1].points[0]).norm(dim=-1).max()) > 0.01
    order, quality = fit(distances(minimizing, explicit))
    assert abs(order - 1) < 0.1, order
    assert quality >= 0.99


@pytest.mark.parametrize("sign", SIGNS)
def test_the_weighted_step_meets_the_transformer_for_one_head(sign: int) -> None:
    order, quality = fit(distances(runs("jko", "weighted", 1, sign), runs("explicit", "headwise", 1, sign)))
    assert abs(order - 1) < 0.1
    assert quality >= 0.99


@pytest.mark.parametrize("sign", SIGNS)
def test_the_weighted_step_misses_the_transformer_for_several_heads(sign: int) -> None:
    errors = distances(runs("jko", "weighted", 4, sign), runs("explicit", "headwise", 4, sign))
    # The gap settles at the distance of the two limits while tau is halved four times.
    limit = distances(runs("explicit", "weighted", 4, sign), runs("explicit", "headwise", 4, sign))[-1]
    assert min(errors) > 0.7 * limit
    assert errors[-1] == pytest.approx(limit, rel=0.1)
    own = distances(runs("jko", "weighted", 4, sign), runs("explicit", "weighted", 4, sign))
    assert errors[-1] > 5 * own[-1]


@pytest.mark.parametrize("count", [1, 4])
def test_signs_are_two_flows(count: int) -> None:
    up, down = runs("jko", "weighted", count, -1)[-1], runs("jko", "weighted", count, 1)[-1]
    assert gap(up.points[-1], down.points[-1]) > 0.01


def test_the_fit_can_fail() -> None:
    order, quality = fit([0.1 * 0.5**k for k in range(len(STEPS))])
    assert order == pytest.approx(1)
    assert quality == pytest.approx(1)
    assert fit([0.1 * 0.25**k for k in range(len(STEPS))])[0] == pytest.approx(2)
    assert fit([0.1, 0.11, 0.1, 0.12, 0.1])[1] < 0.5
    assert math.isnan(fit([math.nan] * len(STEPS))[0])
