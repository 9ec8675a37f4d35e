"""Two clusters on the circle that take 65 times as long to merge as they took to form."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

import jko

BETA = 4.0
Z0 = [
    [0.99806638, 0.06215705],
    [0.97712061, 0.21268594],
    [-0.24578194, 0.96932515],
    [-0.97354734, 0.2284854],
    [-0.99892629, -0.04632772],
]


@functools.cache
def trajectory() -> tuple[Tensor, Tensor]:
    """Times and points of the clustering flow, in times of V = Id: with V = D = 4 Id all runs 4 times as fast."""
    D = BETA * torch.eye(2, dtype=torch.float64)[None]
    flow = jko.VelocityFlow(jko.AttentionField(jko.ConstantHeads(D), sign=-1))
    start = jko.ParticleMeasure(jko.Sphere().project_point(torch.tensor(Z0, dtype=torch.float64)))
    forming = jko.solve(flow, start, jko.RK4(0.0125), t1=5.0)
    merging = jko.solve(flow, forming.measure(-1), jko.RK4(0.05), t0=5.0, t1=82.5)
    times = torch.cat([forming.times, merging.times[1:]]) * BETA
    return times, torch.cat([forming.points, merging.points[1:]])


def cosines(points: Tensor) -> Tensor:
    return points @ points.mT


def energy(t: float) -> float:
    times, points = trajectory()
    k = int((times - t).abs().argmin())
    assert abs(float(times[k]) - t) < 1e-9
    return float((BETA * (cosines(points[k]) - 1)).exp().mean())


def two_clusters(omega: float) -> float:
    """-omega' of clusters of 2 and 3 particles."""
    c = math.cos(omega)
    near, far = math.exp(BETA), math.exp(BETA * c)
    return math.sin(omega) * (0.6 * far / (0.4 * near + 0.6 * far) + 0.4 * far / (0.6 * near + 0.4 * far))


def test_stated_energies() -> None:
    for t, value in ((0.0, 0.35971), (5.0, 0.51931), (20.0, 0.52033), (200.0, 0.52060)):
        assert energy(t) == pytest.approx(value, abs=6e-6), t


def test_the_time_of_collapse() -> None:
    times, points = trajectory()
    smallest = cosines(points).amin((-2, -1))
    collapsed = int((smallest > 0.999).nonzero()[0])
    assert float(smallest[-1]) > 0.999
    # 1 - cos decays exponentially at the end: linear in its logarithm between two steps.
    a, b = (float((1 - smallest[k]).log()) for k in (collapsed - 1, collapsed))
    fraction = (a - math.log(1e-3)) / (a - b)
    t = float(times[collapsed - 1] + fraction * (times[collapsed] - times[collapsed - 1]))
    assert t == pytest.approx(328.364, abs=2e-3)
    assert t / BETA == pytest.approx(82.091, abs=1e-3)


def test_two_clusters_predict_it() -> None:
    times, points = trajectory()
    gram = cosines(points[int((times - 20.0).abs().argmin())])
    assert float(gram[:2, :2].min()) > 1 - 1e-9
    assert float(gram[2:, 2:].min()) > 1 - 1e-9
    omega = math.acos(float(gram[0, 4]))
    assert omega == pytest.approx(2.533293, abs=1e-6)
    wait, _ = quad(lambda w: 1 / two_clusters(w), math.acos(0.999), omega, epsabs=1e-10, limit=200)
    assert 20.0 + wait == pytest.approx(328.364, abs=1e-3)
