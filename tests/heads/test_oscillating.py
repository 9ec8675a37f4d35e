from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jko.errors import InvalidInput
from jko.heads import OscillatingHeads
from jko.heads.oscillating import oscillating_target
from jko.initial import initial_heads


def scalar_target(s: float, d: int) -> list[list[float]]:
    """The matrices written out entry by entry."""
    cos, sin = math.cos, math.sin
    if d == 2:
        return [[2 + 1.5 * cos(s), sin(2 * s)], [sin(2 * s), 2 - 1.5 * cos(s)]]
    if d == 3:
        return [
            [2 + 1.5 * cos(s), sin(2 * s), sin(s)],
            [sin(2 * s), 2 + 1.5 * sin(s), cos(2 * s)],
            [sin(s), cos(2 * s), 2 + 1.5 * cos(s + math.pi / 4)],
        ]
    order = {0: (0, 1), 1: (0, 2), 2: (0, 3), 3: (1, 2), 4: (1, 3), 5: (2, 3)}
    matrix = [[0.0] * 4 for _ in range(4)]
    for i in range(4):
        matrix[i][i] = 2 + 1.5 * cos(s + math.pi * i / 2)
    for p, (i, j) in order.items():
        matrix[i][j] = matrix[j][i] = sin(2 * s + math.pi * p / 3)
    return matrix


@pytest.mark.parametrize("d", [2, 3, 4])
@pytest.mark.parametrize("s", [0.0, 0.3, 2.0, -5.1, 40.0])
def test_target(d: int, s: float) -> None:
    value = oscillating_target(torch.tensor([s], dtype=torch.float64), d)
    expected = torch.tensor([scalar_target(s, d)], dtype=torch.float64)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("d", [2, 3, 4, 6])
def test_target_is_symmetric_and_periodic(d: int) -> None:
    s = torch.linspace(0, 6, 50, dtype=torch.float64)
    value = oscillating_target(s, d)
    assert value.shape == (50, d, d)
    assert torch.equal(value, value.mT)
    torch.testing.assert_close(oscillating_target(s + 2 * math.pi, d), value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [2, 3, 4])
def test_euler_steps_by_hand(d: int) -> None:
    D0, dt, phases = initial_heads(2, d, 0), 0.1, [0.4, -2.0]
    heads = OscillatingHeads(D0, dt=dt, t1=0.5, phases=torch.tensor(phases, dtype=torch.float64))
    expected = D0.numpy().copy()
    for k in range(5):
        drive = np.array([scalar_target(k * dt + phase, d) for phase in phases])
        expected = expected + dt * (drive - expected)
    np.testing.assert_allclose(heads.at(0.5).numpy(), expected, rtol=0, atol=1e-13)


def test_named_phases() -> None:
    D0 = initial_heads(5, 3, 0)
    spread = 2 * math.pi * torch.arange(5, dtype=torch.float64) / 5
    for name, phases in (("spread", spread), ("shared", torch.zeros(5))):
        heads = OscillatingHeads(D0, t1=0.3, phases=name)
        torch.testing.assert_close(heads.phases, phases.to(torch.float64), rtol=0, atol=1e-15)
        torch.testing.assert_close(heads.at(0.3), OscillatingHeads(D0, t1=0.3, phases=phases).at(0.3))
    assert torch.equal(OscillatingHeads(D0, t1=0.3).phases, OscillatingHeads(D0, t1=0.3, phases="spread").phases)


def test_spread_phases_average_out_and_shared_ones_do_not() -> None:
    D0 = torch.ones(10, 3, 3)
    ripple = {}
    for name in ("spread", "shared"):
        heads = OscillatingHeads(D0, phases=name)
        averages = torch.stack([heads.at(t).mean(0) for t in np.linspace(10, 20, 101).tolist()])
        ripple[name] = float((averages - averages.mean(0)).abs().max())
    assert ripple["spread"] < 1e-3
    assert ripple["shared"] > 0.5


def exact_solution(D0: torch.Tensor, t: float) -> torch.Tensor:
    """D' = F(t) - D for d = 2: responses (cos(wt) + w sin(wt))/(1 + w^2) and (sin(wt) - w cos(wt))/(1 + w^2)."""

    def particular(s: float) -> torch.Tensor:
        first = 1.5 * (math.cos(s) + math.sin(s)) / 2
        second = (math.sin(2 * s) - 2 * math.cos(2 * s)) / 5
        return torch.tensor([[2 + first, second], [second, 2 - first]], dtype=torch.float64)

    return particular(t) + math.exp(-t) * (D0 - particular(0.0))


def test_converges_with_order_one_to_the_exact_solution() -> None:
    D0 = initial_heads(1, 2, 3)
    steps = np.array([20, 40, 80, 160])
    errors = []
    for n in steps.tolist():
        value = OscillatingHeads(D0, dt=2 / n, t1=2.0, phases="shared").at(2.0)
        errors.append(float((value - exact_solution(D0, 2.0)).norm()))
    fit = stats.linregress(np.log(2 / steps), np.log(errors))
    assert abs(fit.slope - 1) < 0.1
    assert fit.rvalue**2 > 0.99


def test_a_small_constant_step_matches_the_exact_solution_tightly() -> None:
    D0 = initial_heads(1, 2, 3)
    coarse = OscillatingHeads(D0, dt=1e-2, t1=1.0, phases="shared").at(1.0)
    fine = OscillatingHeads(D0, dt=5e-3, t1=1.0, phases="shared").at(1.0)
    # Richardson extrapolation removes the first-order error.
    torch.testing.assert_close(2 * fine - coarse, exact_solution(D0, 1.0), rtol=0, atol=2e-4)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(2, 6), st.integers(1, 7), st.integers(0, 1000), st.floats(0, 1))
def test_symmetric_input_gives_symmetric_values_to_the_last_bit(d: int, num_heads: int, seed: int, t: float) -> None:
    value = OscillatingHeads(initial_heads(num_heads, d, seed), dt=0.07, t1=1.0).at(t)
    assert torch.equal(value, value.mT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dt": 0.0}, "dt"),
        ({"dt": 2.5}, "smaller dt"),
        ({"t1": -1.0}, "t1"),
        ({"phases": "together"}, '"spread", "shared"'),
        ({"phases": torch.zeros(3)}, r"shape \(3,\)"),
        ({"phases": torch.tensor([0.0, math.nan])}, "finite"),
    ],
)
def test_bad_arguments_are_named(change: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        OscillatingHeads(torch.ones(2, 3, 3), **change)


def test_one_dimension_is_refused() -> None:
    with pytest.raises(InvalidInput, match="d >= 2"):
        OscillatingHeads(torch.ones(2, 1, 1))
