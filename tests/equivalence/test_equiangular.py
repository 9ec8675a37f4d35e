"""Equiangular tokens with scalar heads: the particle system is one number, the common cosine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from torch import Tensor

import jko
from tests.schemes.problems import METRICS, SIGNS, attention, gap, succeeded

N = 5
BETAS = (1.0, 3.0)
START = 0.3


def cloud(cosine: float, n: int = N) -> Tensor:
    """n unit vectors of R^n with equal pairwise cosines."""
    gram = torch.full((n, n), cosine, dtype=torch.float64)
    gram.fill_diagonal_(1.0)
    values, vectors = torch.linalg.eigh(gram)
    return jko.Sphere().project_point(vectors * values.clamp_min(0).sqrt() @ vectors.mT)


def cosines(points: Tensor) -> Tensor:
    gram = points @ points.mT
    return gram[~torch.eye(points.shape[0], dtype=torch.bool)]


def scalar_heads(betas: tuple[float, ...], n: int = N) -> Tensor:
    return torch.stack([beta * torch.eye(n, dtype=torch.float64) for beta in betas])


def rate(cosine: float, metric: str, betas: tuple[float, ...] = BETAS, n: int = N) -> float:
    """Derivative of the cosine for the attractive flow, which is sign = -1."""
    force = [beta * math.exp(beta * cosine) / n for beta in betas]
    mobility = [(math.exp(beta) + (n - 1) * math.exp(beta * cosine)) / n for beta in betas]
    average = {
        "headwise": np.mean([f / m for f, m in zip(force, mobility, strict=True)]),
        "weighted": np.mean([1 / m for m in mobility]) * np.mean(force),
        "w2": np.mean(force),
    }[metric]
    return float(2 * average * (1 - cosine) * (1 + (n - 1) * cosine))


def exact(t1: float, metric: str, sign: int, betas: tuple[float, ...] = BETAS) -> float:
    result = solve_ivp(
        lambda _, g: [-sign * rate(g[0], metric, betas)], (0, t1), [START], method="DOP853", rtol=1e-13, atol=1e-14
    )
    return float(result.y[0, -1])


@pytest.mark.parametrize(
    ("metric", "t1", "attractive", "repulsive"),
    [("headwise", 1.0, 0.93237, -0.06982), ("weighted", 0.2, 0.568339, 0.133082), ("w2", 0.2, 0.998180, 0.004300)],
)
def test_stated_values(metric: str, t1: float, attractive: float, repulsive: float) -> None:
    assert exact(t1, metric, sign=-1) == pytest.approx(attractive, abs=6e-6)
    assert exact(t1, metric, sign=1) == pytest.approx(repulsive, abs=6e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sign", SIGNS)
def test_velocity_is_that_of_the_scalar_equation(metric: str, sign: int) -> None:
    x = cloud(START)
    v = attention(scalar_heads(BETAS), metric, sign).velocity(jko.ParticleMeasure(x), 0.0)
    derivative = v @ x.mT + x @ v.mT
    off = derivative[~torch.eye(N, dtype=torch.bool)]
    assert float((off + sign * rate(START, metric)).abs().max()) < 1e-13


def extrapolated(values: list[float]) -> float:
    """Richardson extrapolation of values at tau, tau/2, tau/4, ... of schemes with an expansion in powers of tau."""
    table = values
    for k in range(1, len(values)):
        table = [b + (b - a) / (2**k - 1) for a, b in itertools.pairwise(table)]
    return table[0]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("scheme", [jko.ExplicitEuler, jko.JKO])
def test_flows_converge_to_the_scalar_solution(metric: str, sign: int, scheme: Callable[[float], object]) -> None:
    t1 = 0.04 if metric == "w2" else 0.2
    flow = attention(scalar_heads(BETAS), metric, sign)
    finals = []
    for steps in (4, 8, 16, 32):
        run = jko.solve(flow, jko.ParticleMeasure(cloud(START)), scheme(t1 / steps), t1=t1)
        # The symmetry of the configuration is kept.
        spread = cosines(run.points[-1])
        assert float(spread.max() - spread.min()) < 1e-7
        finals.append(float(spread.mean()))
    target = exact(t1, metric, sign)
    errors = [abs(value - target) for value in finals]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert all(0.8 < order < 1.2 for order in orders), orders
    assert extrapolated(finals) == pytest.approx(target, abs=2e-5)
    # Far sharper than the finest run: the extrapolation would not help a wrong limit.
    assert abs(extrapolated(finals) - target) < errors[-1] / 50


# JKO steps as a minimization over one angle: cosine = (n sin^2 phi - 1)/(n - 1), each token moves by |phi - phi_k|.


def angle(cosine: float, n: int = N) -> float:
    return math.asin(math.sqrt(((n - 1) * cosine + 1) / n))


def scalar_step(cosine: float, tau: float, metric: str, sign: int, betas: tuple[float, ...], n: int = N) -> float:
    """The step's cosine: the root of the derivative of s E + b (phi - phi_k)^2 / (2 tau)."""
    start = angle(cosine, n)
    kernel = [(math.exp(b) + (n - 1) * math.exp(b * cosine)) / n for b in betas]
    heads = [[beta] for beta in betas] if metric == "headwise" else [list(betas)]
    moves = []
    for h, group in enumerate(heads):
        mobility = {"w2": 1.0, "weighted": 1 / np.mean([1 / m for m in kernel]), "headwise": kernel[h]}[metric]

        def stationarity(phi: float, group: list[float] = group, mobility: float = mobility) -> float:
            c = (n * math.sin(phi) ** 2 - 1) / (n - 1)
            slope = np.mean([b * math.exp(b * c) for b in group]) * math.sin(2 * phi) / 2
            return float(sign * slope + mobility * (phi - start) / tau)

        moves.append(brentq(stationarity, start - 0.5, start + 0.5, xtol=1e-15, rtol=1e-14) - start)
    return (n * math.sin(start + float(np.mean(moves))) ** 2 - 1) / (n - 1)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("betas", [(1.0,), (2.5,), BETAS])
@pytest.mark.parametrize("cosine", [0.0, START])
def test_a_step_is_scalar(metric: str, sign: int, betas: tuple[float, ...], cosine: float) -> None:
    tau = 0.02
    flow = attention(scalar_heads(betas), metric, sign)
    scheme = jko.JKO(tau, minimizer=jko.Anderson(rtol=1e-12), fallback=jko.TrustNewton(rtol=1e-12))
    start = torch.eye(N, dtype=torch.float64) if cosine == 0 else cloud(cosine)
    step = succeeded(scheme.step(flow, jko.ParticleMeasure(start)))
    expected = scalar_step(cosine, tau, metric, sign, betas)
    assert gap(cosines(step.measure.points), [expected] * (N * (N - 1))) < 1e-10
    assert abs(expected - cosine) > 1e-3


@pytest.mark.parametrize("metric", ["weighted", "headwise"])
def test_one_head_makes_both_weighted_metrics_the_same_step(metric: str) -> None:
    expected = scalar_step(START, 0.05, "weighted", 1, (2.0,))
    assert scalar_step(START, 0.05, metric, 1, (2.0,)) == pytest.approx(expected, abs=1e-14)
    # With two heads the steps differ visibly: the metrics are two geometries.
    two = [scalar_step(START, 0.05, m, 1, BETAS) for m in ("weighted", "headwise")]
    assert abs(two[0] - two[1]) > 1e-3
