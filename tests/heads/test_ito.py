from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.heads import ConstantHeads, ItoHeads, OrnsteinUhlenbeckHeads, OscillatingHeads, oscillating
from jko.initial import initial_heads
from jko.random import symmetric_increments

MANY = 20_000
WEIGHTS = [0.5, 0.25, 0.25]


def relax(D: Tensor, t: float) -> Tensor:
    return torch.eye(D.shape[-1], dtype=D.dtype) - D


def constant(D: Tensor, t: float) -> float:
    return math.sqrt(2 * 0.4)


def test_ornstein_uhlenbeck_to_the_last_bit() -> None:
    D0 = initial_heads(3, 3, 1)
    ours = ItoHeads(D0, relax, constant, dt=0.02, t1=0.5, seed=5, path=6, head_weights=WEIGHTS)
    theirs = OrnsteinUhlenbeckHeads(D0, sigma2=0.4, dt=0.02, t1=0.5, seed=5, path=6, head_weights=WEIGHTS)
    for t in (0.0, 0.02, 0.237, 0.5):
        assert torch.equal(ours.at(t), theirs.at(t))
    for t, tau in ((0.0, 0.02), (0.1, 0.06), (0.48, 0.02)):
        one, other = ours.increment(t, tau), theirs.increment(t, tau)
        assert torch.equal(one.drift, other.drift)
        torch.testing.assert_close(one.noise, other.noise, rtol=0, atol=1e-14)
        torch.testing.assert_close(one.noise_variance, other.noise_variance, rtol=1e-15, atol=0)


def test_oscillating_to_the_last_bit() -> None:
    D0 = initial_heads(3, 3, 1)
    theirs = OscillatingHeads(D0, dt=0.05, t1=1.0)

    def drift(D: Tensor, t: float) -> Tensor:
        return oscillating.oscillating_target(theirs.phases + t, 3) - D

    ours = ItoHeads(D0, drift, lambda D, t: 0.0, dt=0.05, t1=1.0)
    assert torch.equal(ours.at(1.0), theirs.at(1.0))
    for heads in (ours, theirs):
        increment = heads.increment(0.3, 0.05)
        torch.testing.assert_close(increment.drift, drift(heads.at(0.3), 0.3), rtol=0, atol=1e-14)
        assert not bool(increment.noise.any())
        assert increment.noise_variance.tolist() == [0.0] * 3


def test_geometric_brownian_motion() -> None:
    # D_{k+1} = D_k (1 + a dt + s dW): the moments of Euler-Maruyama are exact powers.
    a, s, dt, steps = 0.7, 0.6, 0.1, 10
    heads = ItoHeads(torch.ones(MANY, 1, 1), lambda D, t: a * D, lambda D, t: s * D, dt=dt, t1=1.0, seed=2)
    sample = heads.at(1.0).flatten()
    mean = (1 + a * dt) ** steps
    second = ((1 + a * dt) ** 2 + s**2 * dt) ** steps
    fourth_bound = float(sample.pow(4).mean())
    assert abs(float(sample.mean()) - mean) < 4 * math.sqrt((second - mean**2) / MANY)
    assert abs(float(sample.square().mean()) - second) < 4 * math.sqrt(fourth_bound / MANY)
    # Neither the law of the Stratonovich equation nor that without noise.
    assert abs(mean * math.exp(s**2 / 2) - float(sample.mean())) > 0.2
    assert abs(mean**2 - float(sample.square().mean())) > 1


def test_time_dependent_drift_and_factors_per_head() -> None:
    D0, dt = initial_heads(2, 2, 0), 0.25
    factors = torch.tensor([2.0, 0.0], dtype=torch.float64)[:, None, None]
    heads = ItoHeads(D0, torch.full_like, lambda D, t: (1 + t) * factors, dt=dt, t1=1.0, seed=3)
    dW = symmetric_increments(3, 0, 2, 2, 4, dt)
    expected = D0.clone()
    for k in range(4):
        t = k * dt
        torch.testing.assert_close(heads.at(t), expected, rtol=0, atol=1e-14)
        increment = heads.increment(t, dt)
        torch.testing.assert_close(increment.noise, (1 + t) * factors * dW[k], rtol=0, atol=1e-14)
        assert increment.noise_variance.tolist() == [4 * (1 + t) ** 2, 0.0]
        assert torch.equal(increment.noise[1], torch.zeros(2, 2, dtype=torch.float64))
        expected = expected + dt * t + (1 + t) * factors * dW[k]
    several = heads.increment(0.25, 0.75)
    torch.testing.assert_close(several.noise, sum(heads.increment(t, dt).noise for t in (0.25, 0.5, 0.75)))
    assert torch.equal(several.drift, heads.increment(0.25, dt).drift)


def test_fewer_heads_are_part_of_more() -> None:
    D0 = initial_heads(20, 3, 4)
    full, few = (ItoHeads(D0[:n], relax, constant, t1=0.2, seed=1) for n in (20, 5))
    assert torch.equal(full.at(0.2)[:5], few.at(0.2))


def test_symmetry_is_kept_where_the_drift_has_it_within_rounding() -> None:
    D0, M = initial_heads(3, 3, 1) * 0.3, initial_heads(1, 3, 2)

    def congruence(D: Tensor, t: float) -> Tensor:
        return D @ M @ D

    D = ItoHeads(D0, congruence, constant, dt=0.01, t1=0.2).at(0.2)
    assert torch.equal(D, D.mT)
    assert not torch.equal(congruence(D, 0.0), congruence(D, 0.0).mT)
    twisted = ItoHeads(D0, lambda D, t: torch.triu(D), constant, dt=0.01, t1=0.2).at(0.2)
    assert float((twisted - twisted.mT).abs().max()) > 1e-3


def test_functions_cannot_change_the_path() -> None:
    def drift(D: Tensor, t: float) -> Tensor:
        return D.zero_()

    D0 = initial_heads(2, 2, 0)
    assert torch.equal(ItoHeads(D0, drift, lambda D, t: 0.0, t1=0.1).at(0.1), D0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drift": 1.0}, "drift must be a function"),
        ({"diffusion": torch.ones(2)}, "diffusion must be a function"),
        ({"drift": lambda D, t: D[0]}, r"drift\(D, 0\.0\) has shape \(2, 2\).*\(3, 2, 2\)"),
        ({"drift": lambda D, t: D * math.nan}, r"drift\(D, 0\.0\).*finite"),
        ({"drift": lambda D, t: None}, r"drift\(D, 0\.0\) must be an array"),
        ({"diffusion": lambda D, t: D}, r"diffusion\(D, 0\.0\) has shape \(3, 2, 2\).*\(3, 1, 1\)"),
        ({"diffusion": lambda D, t: torch.ones(3)}, r"has shape \(3,\)"),
        ({"diffusion": lambda D, t: math.inf if t > 0 else 1.0}, r"diffusion\(D, 0\.01\).*finite"),
        ({"drift": lambda D, t: D * 1.7e308, "dt": 100.0, "t1": 100.0}, "smaller dt"),
        ({"D0": torch.eye(2)}, r"\[None\]"),
        ({"dt": 0.0}, "dt"),
        ({"t1": -1.0}, "t1"),
        ({"seed": -1}, "seed"),
        ({"path": 0.5}, "path"),
        ({"head_weights": [1.0]}, "head_weights"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"D0": torch.ones(3, 2, 2), "drift": relax, "diffusion": constant, **change}
    with pytest.raises(InvalidInput, match=message):
        ItoHeads(**arguments)


def test_increments_of_the_closed_families() -> None:
    D0 = initial_heads(2, 3, 1)
    rest = ConstantHeads(D0).increment(0.123, 4.56)
    assert not bool(rest.drift.any() or rest.noise.any() or rest.noise_variance.any())
    with pytest.raises(InvalidInput, match="outside"):
        ConstantHeads(D0).increment(-1.0, 0.1)
    quiet = OrnsteinUhlenbeckHeads(D0, sigma2=0.0, dt=0.1, t1=1.0)
    assert not bool(quiet.increment(0.2, 0.1).noise.any())
    for heads in (quiet, OscillatingHeads(D0, dt=0.1, t1=1.0), ItoHeads(D0, relax, constant, dt=0.1, t1=1.0)):
        increment = heads.increment(0.3, 0.1)
        step = heads.at(0.3) + 0.1 * increment.drift + increment.noise
        torch.testing.assert_close(step, heads.at(0.4), rtol=0, atol=1e-14)
        # Rounded times are those of the nodes.
        assert torch.equal(heads.increment(0.1 + 0.2, 0.1).drift, increment.drift)
        for t, tau, message in (
            (0.05, 0.1, "no node"),
            (0.1, 0.05, "nearest is"),
            (0.1, 1e-13, "too short"),
            (0.95, 0.1, "outside|no node"),
        ):
            with pytest.raises(InvalidInput, match=message):
                heads.increment(t, tau)
    with pytest.raises(InvalidInput, match="exact=False"):
        OrnsteinUhlenbeckHeads(D0, dt=0.1, t1=1.0, exact=True).increment(0.0, 0.1)
