"""The uniform measure: its energy, and the rates at which its harmonics decay or grow, by Bessel functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import ive, spherical_in
from torch import Tensor

import jko
from tests.schemes.problems import METRICS, SIGNS, attention

N = 64
ANGLES = torch.arange(N, dtype=torch.float64) * (2 * math.pi / N)


def circle(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], -1)


def scalar_heads(betas: tuple[float, ...]) -> Tensor:
    return torch.stack([beta * torch.eye(2, dtype=torch.float64) for beta in betas])


def bessel_rate(k: int, metric: str, betas: tuple[float, ...]) -> float:
    """Decay rate of harmonic k at sign = +1 on the circle."""
    scaled = [(ive(k, beta), ive(0, beta), math.exp(beta)) for beta in betas]
    if metric == "headwise":
        return k**2 * float(np.mean([a / b for a, b, _ in scaled]))
    mean = float(np.mean([a * e for a, _, e in scaled]))
    return k**2 * mean * (float(np.mean([1 / (b * e) for _, b, e in scaled])) if metric == "weighted" else 1.0)


def measured_rate(k: int, metric: str, betas: tuple[float, ...], sign: int = 1) -> float:
    """Decay rate of the displacement e sin(k phi) of equally spaced particles, the error O(e^2)."""
    size = 1e-5
    profile = (k * ANGLES).sin()
    angles = ANGLES + size * profile
    velocity = attention(scalar_heads(betas), metric, sign).velocity(jko.ParticleMeasure(circle(angles)), 0.0)
    turning = circle(angles + math.pi / 2)
    return -float(((velocity * turning).sum(-1) @ profile) / (size * (profile @ profile)))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("betas", [(2.0,), (1.0, 3.0)])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_rates_on_the_circle(k: int, betas: tuple[float, ...], sign: int, metric: str) -> None:
    expected = bessel_rate(k, metric, betas)
    assert measured_rate(k, metric, betas, sign) == pytest.approx(sign * expected, rel=1e-7)


def test_stated_rates() -> None:
    rates = [bessel_rate(k, "headwise", (2.0,)) for k in (1, 2, 3)]
    assert rates == pytest.approx([0.698, 1.209, 0.840], abs=5e-4)
    # One head: both mobilities are the same; several: three geometries.
    assert bessel_rate(2, "weighted", (2.0,)) == pytest.approx(rates[1], rel=1e-13)
    assert len({round(bessel_rate(2, metric, (1.0, 3.0)), 2) for metric in METRICS}) == 3


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("sign", SIGNS)
def test_amplitudes_decay_and_grow_exponentially(k: int, sign: int) -> None:
    size, t1 = 1e-6, 0.5
    profile = (k * ANGLES).sin()
    mu = jko.ParticleMeasure(circle(ANGLES + size * profile))
    run = jko.solve(attention(scalar_heads((2.0,)), "headwise", sign), mu, jko.RK4(0.05), t1=t1)
    x = run.points[-1]
    turned = torch.atan2(*(x * circle(ANGLES + math.pi / 2)).sum(-1)[None], (x * circle(ANGLES)).sum(-1))
    amplitude = float((turned @ profile) / (profile @ profile))
    rate = bessel_rate(k, "headwise", (2.0,))
    assert math.log(amplitude / size) / t1 == pytest.approx(-sign * rate, rel=1e-6)


@pytest.mark.parametrize(
    ("beta", "mode"), [(1.0, 1), (2.0, 2), (4.0, 3), (5.0, 3), (7.0, 4), (10.0, 4), (20.0, 6), (50.0, 10)]
)
def test_the_most_unstable_mode(beta: float, mode: int) -> None:
    growth = {k: -measured_rate(k, "headwise", (beta,), sign=-1) for k in range(1, 14)}
    assert max(growth, key=growth.__getitem__) == mode


@pytest.mark.parametrize(("beta", "circle_value", "sphere_value"), [(1.0, 0.63303, 0.58760), (3.0, None, None)])
def test_energy(beta: float, circle_value: float | None, sphere_value: float | None) -> None:
    heads = beta * torch.eye(2, dtype=torch.float64)[None]
    flat = float(attention(heads).energy.value(jko.ParticleMeasure(circle(ANGLES)), 0.0))
    assert flat == pytest.approx(ive(0, beta) * math.exp(beta) / 2, rel=1e-14)
    # A product rule on the sphere that is exact up to degree 19, as a measure with weights.
    z, w = np.polynomial.legendre.leggauss(10)
    phi = np.arange(20) * (2 * math.pi / 20)
    r = np.sqrt(1 - z**2)
    points = np.stack([np.outer(r, np.cos(phi)), np.outer(r, np.sin(phi)), np.outer(z, np.ones(20))], -1).reshape(-1, 3)
    mu = jko.ParticleMeasure(points, np.repeat(w / 40, 20))
    heads = beta * torch.eye(3, dtype=torch.float64)[None]
    round_ = float(attention(heads).energy.value(mu, 0.0))
    assert round_ == pytest.approx(math.sinh(beta) / (2 * beta), rel=1e-11)
    assert round_ == pytest.approx(float(spherical_in(0, beta)) / 2, rel=1e-11)
    if circle_value is not None and sphere_value is not None:
        assert (flat, round_) == pytest.approx((circle_value, sphere_value), abs=5e-6)
