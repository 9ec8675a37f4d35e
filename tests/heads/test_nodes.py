from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jko.errors import InvalidInput
from jko.heads import TabulatedHeads
from jko.heads.nodes import NodePath, uniform_times

TIMES = [0.0, 0.1, 0.35, 0.36, 1.0]


def _table() -> torch.Tensor:
    return torch.randn(5, 2, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_nodes_are_hit_exactly_and_within_the_snap() -> None:
    table = _table()
    path = NodePath(TIMES, table)
    for k, time in enumerate(TIMES):
        for offset in (0.0, 9e-10, -9e-10):
            assert torch.equal(path.at(time + offset), table[k])


def test_beyond_the_snap_the_path_is_linear() -> None:
    table = _table()
    path = NodePath(TIMES, table)
    for offset in (2e-9, -2e-9):
        slope = (table[2] - table[1]) / 0.25 if offset < 0 else (table[3] - table[2]) / 0.01
        assert not torch.equal(path.at(0.35 + offset), table[2])
        torch.testing.assert_close(path.at(0.35 + offset), table[2] + slope * offset, rtol=0, atol=1e-14)


@settings(deadline=None, derandomize=True)
@given(st.floats(0, 1))
def test_a_linear_path_is_reproduced(t: float) -> None:
    start, slope = _table()[:2]
    heads = TabulatedHeads(TIMES, torch.stack([start + time * slope for time in TIMES]))
    # The snap may move t by 1e-9.
    torch.testing.assert_close(heads.at(t), start + t * slope, rtol=0, atol=1e-14 + 1e-9 * float(slope.abs().max()))


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 4), st.floats(0.01, 0.99))
def test_between_nodes_only_the_two_neighbors_count(k: int, s: float) -> None:
    table = torch.zeros(5, 1, 1, 1, dtype=torch.float64)
    table[k] = 1.0
    path = NodePath(TIMES, table)
    for right in range(1, 5):
        t = TIMES[right - 1] * (1 - s) + TIMES[right] * s
        expected = s if right == k else 1 - s if right == k + 1 else 0.0
        assert abs(float(path.at(t)) - expected) < 1e-12


def test_nodes_closer_than_the_snap_are_told_apart() -> None:
    table = _table()[:3]
    path = NodePath([0.0, 1e-12, 2e-12], table)
    for k in range(3):
        assert torch.equal(path.at(k * 1e-12), table[k])
    torch.testing.assert_close(path.at(0.5e-12), (table[0] + table[1]) / 2)
    with pytest.raises(InvalidInput):
        path.at(2.1e-12)


def test_a_time_given_twice_is_a_jump_with_a_value_on_each_side() -> None:
    table = _table()
    heads = TabulatedHeads([0.0, 0.3, 0.3, 0.7, 1.0], table)
    assert heads.jumps == (0.3,)
    assert TabulatedHeads(TIMES, table).jumps == ()
    assert torch.equal(heads.at(0.3), table[2])
    assert torch.equal(heads.at(0.3 + 9e-10), table[2])
    assert torch.equal(heads.at(math.nextafter(0.3, 0)), table[1])
    assert torch.equal(heads.at(0.3 - 9e-10), table[1])
    torch.testing.assert_close(heads.at(0.15), (table[0] + table[1]) / 2, rtol=0, atol=1e-15)
    torch.testing.assert_close(heads.at(0.5), (table[2] + table[3]) / 2, rtol=0, atol=1e-15)


def test_the_last_node_may_lie_beyond_the_end() -> None:
    table = _table()
    path = NodePath(TIMES, table, 0.8)
    torch.testing.assert_close(path.at(0.8), table[3] + (table[4] - table[3]) * (0.44 / 0.64))
    with pytest.raises(InvalidInput, match=r"t = 0\.9 lies outside \[0, 0\.8\]"):
        path.at(0.9)


@pytest.mark.parametrize(
    ("dt", "t1", "steps"),
    [
        (0.1, 0.3, 3),
        (0.1, 0.7, 7),
        (0.1, 1.0, 10),
        (0.3, 1.0, 4),
        (0.1, 0.05, 1),
        (0.01, 20.0, 2000),
        (0.005, 20.0, 4000),
        (0.1, 1e-12, 1),
        (0.1, math.nextafter(0.3, 1), 3),
        (0.1, 0.3 + 1e-6, 4),
    ],
)
def test_number_of_steps(dt: float, t1: float, steps: int) -> None:
    times = uniform_times(dt, t1)
    assert len(times) == steps + 1
    assert times == tuple(k * dt for k in range(steps + 1))
    assert times[-1] >= t1 - 1e-9 * dt


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0.0], "K >= 2"),
        (0.0, "K >= 2"),
        ([[0.0, 1.0]], "K >= 2"),
        ([0.5, 1.0], "start at 0, got 0.5"),
        ([-1.0, 0.0], "start at 0"),
        ([0.0, 1.0, 1.0], "1.0 followed by 1.0"),
        ([0.0, 0.0, 1.0], "between the first and the last, got 0.0 followed by 0.0"),
        ([0.0, 0.5, 0.5, 0.5, 1.0], "may repeat once.*0.5 followed by 0.5"),
        ([0.0, 2.0, 1.0], "2.0 followed by 1.0"),
        ([0.0, math.nan], "finite"),
        ([0.0, math.inf], "finite"),
    ],
)
def test_bad_times_are_refused(times: object, message: str) -> None:
    count = len(times) if isinstance(times, list) else 1
    with pytest.raises(InvalidInput, match=message):
        TabulatedHeads(times, torch.ones(count, 1, 2, 2))


@pytest.mark.parametrize("shape", [(2, 2, 2), (3, 1, 2, 2), (2, 2)])
def test_tables_that_do_not_fit_the_times_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"D must have shape"):
        TabulatedHeads([0.0, 1.0], torch.ones(shape))
