"""Time grids: the right number of steps, always an end."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jko.errors import InvalidInput
from jko.grid import step_size, time_grid


@pytest.mark.parametrize(
    ("t1", "tau", "steps"),
    [
        (0.3, 0.1, 3),
        (0.7, 0.1, 7),
        (1, 0.1, 10),
        (1, 0.3, 4),
        (0, 0.1, 0),
        (0.05, 0.1, 1),
        (0.1 * (1 + 1e-10), 0.1, 1),
        (0.1 * (1 - 1e-10), 0.1, 1),
        (1e-10, 1.0, 1),
        (5e-324, 1.0, 1),
    ],
)
def test_number_of_steps(t1: float, tau: float, steps: int) -> None:
    times = time_grid(0.0, t1, tau)
    assert len(times) == steps + 1
    assert times[-1] == t1
    assert times[0] == 0
    assert times == pytest.approx([min(k * tau, t1) for k in range(steps + 1)], abs=2e-11)


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
    # However short, what is later than t0 takes a step.
    assert len(gaps) == max(steps + (rest > 0.1), int(t1 > t0))


@settings(max_examples=300, derandomize=True)
@given(
    t0=st.floats(-10, 10),
    tau=st.floats(1e-3, 10),
    length=st.floats(0, 50),
    places=st.lists(st.floats(-0.2, 1.2) | st.sampled_from([0.0, 1e-12, 1 / 3, 0.5, 0.5 + 1e-13, 1.0]), max_size=5),
)
def test_jumps_are_grid_points_and_no_step_is_too_long_or_too_short(
    t0: float, tau: float, length: float, places: list[float]
) -> None:
    t1 = t0 + length * tau
    jumps = [t0 + place * (t1 - t0) for place in places]
    times, slack = time_grid(t0, t1, tau, jumps), 1e-9 * tau
    assert times[-1] == t1
    assert times[0] == t0 or (times[0] in jumps and 0 < times[0] - t0 <= len(jumps) * slack)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert all(0 < gap <= tau * (1 + 1e-9) + 1e-13 for gap in gaps)
    assert all(gap > slack - 1e-13 for gap in gaps) or times == [t0, t1]
    for jump in jumps:
        if t0 <= jump <= t1:
            assert min(abs(jump - t) for t in times) <= len(jumps) * slack or times == [t0, t1]
    # Between two of t0, the jumps and t1 only the last step is shortened.
    shortened = [end for (_, end), gap in zip(itertools.pairwise(times), gaps, strict=True) if gap < tau - 1e-9 * tau]
    assert set(shortened) <= {*jumps, t1}
    assert time_grid(t0, t1, tau, sorted(jumps * 2)) == times


@pytest.mark.parametrize(
    ("jumps", "expected"),
    [
        ((), [0.0, 0.2, 0.4, 0.5]),
        ((0.3,), [0.0, 0.2, 0.3, 0.5]),
        ((0.45, 0.1), [0.0, 0.1, 0.1 + 0.2, 0.45, 0.5]),
        ((0.4,), [0.0, 0.2, 0.4, 0.5]),
        ((0.4 + 1e-11,), [0.0, 0.2, 0.4 + 1e-11, 0.5]),
        ((0.4 - 1e-11,), [0.0, 0.2, 0.4 - 1e-11, 0.5]),
        ((0.0, 0.5, -1.0, 2.0), [0.0, 0.2, 0.4, 0.5]),
        ((0.5 - 1e-11,), [0.0, 0.2, 0.4, 0.5]),
        ((1e-11,), [1e-11, 1e-11 + 0.2, 1e-11 + 0.4, 0.5]),
        ((0.3, 0.1 * 3), [0.0, 0.2, 0.1 * 3, 0.5]),
    ],
)
def test_grids_with_jumps(jumps: tuple[float, ...], expected: list[float]) -> None:
    assert time_grid(0.0, 0.5, 0.2, jumps) == expected


@settings(max_examples=300, derandomize=True)
@given(start=st.floats(-100, 100), length=st.floats(1e-6, 50), tau=st.floats(1e-3, 10))
def test_a_step_to_a_jump_ends_just_left_of_it(start: float, length: float, tau: float) -> None:
    jump = start + length
    short = step_size(start, jump, tau, (jump,))
    assert jump - 2 * math.ulp(abs(start) + abs(jump)) <= start + short < jump
    assert start + step_size(start, jump, tau) == pytest.approx(jump, abs=1e-13)


@pytest.mark.parametrize("jumps", [0.5, "0.5", None, (math.nan,), (0.5, math.inf), ("x",)])
def test_bad_jumps(jumps: object) -> None:
    with pytest.raises(InvalidInput, match="jump"):
        time_grid(0.0, 1.0, 0.1, jumps)
