"""Time grids: the right number of steps, always an end."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jko.errors import InvalidInput
from jko.grid import time_grid


@pytest.mark.parametrize(
    ("t1", "tau", "steps"), [(0.3, 0.1, 3), (0.7, 0.1, 7), (1, 0.1, 10), (1, 0.3, 4), (0, 0.1, 0), (0.05, 0.1, 1)]
)
def test_number_of_steps(t1: float, tau: float, steps: int) -> None:
    times = time_grid(0.0, t1, tau)
    assert len(times) == steps + 1
    assert times[-1] == t1
    assert times[0] == 0
    assert times == pytest.approx([min(k * tau, t1) for k in range(steps + 1)], abs=1e-15)


def test_the_last_step_is_shortened() -> None:
    times = time_grid(0, 1, 0.3)
    assert times[-1] - times[-2] == pytest.approx(0.1, abs=1e-15)


@pytest.mark.parametrize("tau", [0, 0.0, -0.1, math.nan, math.inf, "tau", None])
def test_bad_steps(tau: object) -> None:
    with pytest.raises(InvalidInput, match="tau"):
        time_grid(0.0, 1.0, tau)


@pytest.mark.parametrize(
    ("t0", "t1", "message"),
    [
        (1.0, 0.5, "end after it begins"),
        (math.nan, 1.0, "t0 must be finite"),
        (0.0, math.inf, "t1 must be finite"),
        (0.0, "end", "t1 must be a number"),
        (None, 1.0, "t0 must be a number"),
    ],
)
def test_bad_times(t0: object, t1: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        time_grid(t0, t1, 0.1)


@pytest.mark.parametrize(("t0", "t1", "tau"), [(0.0, 1.0, 5e-324), (1e17, 1e17 + 64, 0.1), (0.0, 1.0, 1e-17)])
def test_a_step_below_the_rounding_of_time_is_refused(t0: float, t1: float, tau: float) -> None:
    with pytest.raises(InvalidInput, match="rounding"):
        time_grid(t0, t1, tau)


@settings(max_examples=200, derandomize=True)
@given(
    t0=st.floats(-100, 100),
    tau=st.floats(1e-3, 10),
    steps=st.integers(0, 500),
    rest=st.sampled_from([0.0, 1e-12, -1e-12, 0.25, 0.999]),
)
def test_grids_of_any_kind(t0: float, tau: float, steps: int, rest: float) -> None:
    t1 = max(t0, t0 + (steps + rest) * tau)
    times = time_grid(t0, t1, tau)
    assert times[-1] == t1
    assert abs(times[0] - t0) <= 1e-9 * tau
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert all(0 < gap <= tau * (1 + 2e-9) for gap in gaps)
    rounding = 1e-12 * (1 + abs(t0) + abs(t1))
    assert all(abs(gap - tau) <= rounding for gap in gaps[:-1])
    assert len(gaps) == max(0, steps) + (rest > 0.1)
