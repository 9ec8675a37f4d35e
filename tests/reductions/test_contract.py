"""The contract of a reduction. A new member is tested by adding its row to MEMBERS."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from jko.errors import InvalidInput
from jko.reductions import AbstractReduction, Auto, Blocked, PairSums
from tests.devices.pretended import watched
from tests.oracles.attention import (
    TOLERANCE,
    Problem,
    assert_close,
    derivative,
    exponents,
    problem,
    second_moments,
    sums,
)
from tests.oracles.memory import Recorder

MEMBERS = [
    pytest.param(Auto(), id="Auto"),
    pytest.param(Blocked(), id="Blocked"),
    pytest.param(Blocked(4096), id="Blocked-4096"),
    pytest.param(Blocked(100_000), id="Blocked-100000"),
]
# Fewer than a tile, one that is cut, several; `test_any_tiling` draws others.
SIZES = [(1, 1, 1), (7, 5, 7), (101, 3, 7), (130, 1, 2), (333, 4, 1)]
NAMES = ("mass", "first", "mass_transposed", "first_transposed")
every_member = pytest.mark.parametrize("member", MEMBERS)
every_side = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "general"])
every_cloud = pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
# Every pair of the three choices is among them.
every_form = pytest.mark.parametrize(
    ("symmetric", "own", "dtype"),
    [
        pytest.param(True, False, torch.float64, id="symmetric-shared-float64"),
        pytest.param(False, True, torch.float64, id="general-own-float64"),
        pytest.param(True, True, torch.float32, id="symmetric-own-float32"),
        pytest.param(False, False, torch.float32, id="general-shared-float32"),
    ],
)


def test_every_member_is_here() -> None:
    here = {type(member.values[0]).__name__ for member in MEMBERS}
    ours = [c for c in AbstractReduction.__subclasses__() if c.__module__.startswith("jko.")]
    # Every shape costs KeOps a compilation: it has the few that matter in a file of its own.
    assert here | {"KeOps"} == {c.__name__ for c in ours}


def assert_sums(actual: PairSums, expected: dict[str, Tensor], tolerance: float) -> None:
    for name in NAMES:
        assert_close(getattr(actual, name), expected[name], tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_the_comparison_sees_every_sum(name: str) -> None:
    p = problem(4, 2, 2, symmetric=False)
    expected = sums(p.points, p.weights, p.D)
    assert_sums(PairSums(**expected), expected, 1e-15)
    with pytest.raises(AssertionError):
        assert_sums(PairSums(**{**expected, name: expected[name] * (1 + 1e-9)}), expected, 1e-12)


# sums


@every_member
@every_form
@pytest.mark.parametrize(("n", "d", "H"), SIZES)
def test_exponential_sums(
    member: AbstractReduction, n: int, d: int, H: int, symmetric: bool, own: bool, dtype: torch.dtype
) -> None:
    for weights in ("equal", "unequal", "tracers"):
        p = problem(n, d, H, symmetric=symmetric, own=own, weights=weights).to(dtype)
        # Every 1 x 1 matrix is symmetric.
        check_exponential_sums(member, p, symmetric or d == 1)


def check_exponential_sums(member: AbstractReduction, p: Problem, symmetric: bool) -> None:
    q, dtype = p.to(torch.float64), p.points.dtype
    actual = member.exponential_sums(p.points, p.weights, p.D)
    assert_sums(actual, sums(q.points, q.weights, q.D), TOLERANCE[dtype])
    assert {getattr(actual, name).dtype for name in NAMES} == {dtype}
    assert actual.symmetric == symmetric
    assert actual.second is None
    assert actual.second_transposed is None
    more = member.exponential_sums(p.points, p.weights, p.D, second=True)
    assert more.symmetric == symmetric
    for name in NAMES:
        assert_close(getattr(more, name), getattr(actual, name), TOLERANCE[dtype])
    for name, expected in second_moments(q.points, q.weights, q.D).items():
        assert_close(getattr(more, name), expected, TOLERANCE[dtype])
    mass = member.exponential_sums(p.points, p.weights, p.D, first=False)
    assert mass.first is None
    assert mass.first_transposed is None
    assert mass.symmetric == actual.symmetric
    assert_close(mass.mass, actual.mass, TOLERANCE[dtype])
    assert_close(mass.mass_transposed, actual.mass_transposed, TOLERANCE[dtype])


def rates(p: Problem, direction: Tensor) -> dict[str, Tensor]:
    """Derivatives of the four sums."""
    return {name: derivative(lambda x, name=name: sums(x, p.weights, p.D)[name], p.points, direction) for name in NAMES}


@every_member
@every_form
@pytest.mark.parametrize(("n", "d", "H"), SIZES)
def test_directional_sums(
    member: AbstractReduction, n: int, d: int, H: int, symmetric: bool, own: bool, dtype: torch.dtype
) -> None:
    weights = "tracers" if n % 2 else "unequal"
    p = problem(n, d, H, symmetric=symmetric, own=own, weights=weights).to(dtype)
    q = p.to(torch.float64)
    direction = problem(n, d, H, own=own, seed=1).to(dtype).points
    actual = member.directional_sums(p.points, p.weights, p.D, direction)
    assert_sums(actual, rates(q, direction.double()), TOLERANCE[dtype])


@every_member
@every_form
@pytest.mark.parametrize(("n", "d", "H"), SIZES)
def test_cross_mass(
    member: AbstractReduction, n: int, d: int, H: int, symmetric: bool, own: bool, dtype: torch.dtype
) -> None:
    # Its sources are shared by the heads; what varies in place of that is the number of targets.
    m = 1 if own else 45
    p = problem(n, d, H, symmetric=symmetric, weights="tracers").to(dtype)
    targets = problem(m, d, H, seed=2).to(dtype).points
    actual = member.cross_mass(targets, p.points, p.weights, p.D)
    kernel = exponents(targets.double(), p.D.double(), p.points.double()).exp()
    assert_close(actual, kernel @ p.weights.double(), TOLERANCE[dtype])
    assert actual.dtype == dtype


@every_member
@every_side
@every_cloud
def test_largest_exponent_is_exact(member: AbstractReduction, symmetric: bool, own: bool, dtype: torch.dtype) -> None:
    # Small integers: every product and every sum is exact in both precisions.
    generator = np.random.default_rng(0)
    for n, d, H in SIZES:
        x = torch.from_numpy(generator.integers(-3, 4, (H, n, d) if own else (n, d))).to(dtype)
        D = torch.from_numpy(generator.integers(-3, 4, (H, d, d))).to(dtype)
        D = D + D.mT if symmetric else D
        assert member.largest_exponent(x, D) == float(exponents(x.double(), D.double()).max())


@every_member
@every_side
@pytest.mark.parametrize("at", [0, 57, 110])
def test_largest_exponent_in_any_tile_and_head(member: AbstractReduction, symmetric: bool, at: int) -> None:
    D = torch.eye(2, dtype=torch.float64).expand(7, 2, 2).clone()
    D[5] += torch.tensor([[0.0, 1.0], [1.0 if symmetric else -1.0, 0.0]])
    x = torch.zeros(111, 2, dtype=torch.float64)
    x[at, 0], x[(at + 1) % 111, 1] = 1000.0, 2000.0
    assert member.largest_exponent(x, D) == 4e6
    assert member.largest_exponent(x, -D) == (0.0 if symmetric else 2e6)


@every_member
@every_side
def test_every_sum_stays_on_its_device(member: AbstractReduction, symmetric: bool, accelerator: torch.device) -> None:
    p = problem(120, 3, 2, symmetric=symmetric, weights="tracers").to(torch.float32)
    q, exact = p.to(device=accelerator), p.to(torch.float64)
    direction = problem(120, 3, 2, seed=1).points.to(torch.float32)
    with watched() as traffic:
        actual = member.exponential_sums(q.points, q.weights, q.D, second=True)
        rate = member.directional_sums(q.points, q.weights, q.D, direction.to(accelerator))
        cross = member.cross_mass(q.points[:7], q.points, q.weights, q.D)
        largest = member.largest_exponent(q.points, q.D)
    # Some devices know no double precision at all.
    assert not traffic.doubles
    assert {a.device.type for a in (actual.mass, rate.mass, cross)} == {accelerator.type}
    expected = sums(exact.points, exact.weights, exact.D)
    assert_sums(actual, expected, TOLERANCE[torch.float32])
    assert_sums(rate, rates(exact, direction.double()), TOLERANCE[torch.float32])
    assert_close(cross, expected["mass"][:, :7], TOLERANCE[torch.float32])
    assert largest == pytest.approx(float(exponents(exact.points, exact.D).max()), rel=1e-5)


@every_member
def test_a_single_rounding_of_asymmetry_is_not_symmetric(member: AbstractReduction) -> None:
    p = problem(101, 3, 2)
    D = p.D.clone()
    D[1, 0, 2] *= 1 + 2**-50
    actual = member.exponential_sums(p.points, p.weights, D)
    assert not actual.symmetric
    assert_sums(actual, sums(p.points, p.weights, D), 1e-13)


@every_member
def test_memory_layout_of_the_arguments_does_not_matter(member: AbstractReduction) -> None:
    p = problem(101, 3, 7, symmetric=False, own=True)
    points = p.points.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    weights = torch.stack([p.weights, p.weights], -1)[:, 0]
    D = p.D.mT.contiguous().mT
    assert not points.is_contiguous()
    assert not weights.is_contiguous()
    assert_sums(member.exponential_sums(points, weights, D), sums(p.points, p.weights, p.D), 1e-13)
    direction = problem(101, 3, 7, own=True, seed=1).points
    actual = member.directional_sums(points, weights, D, direction.mT.contiguous().mT)
    assert_sums(actual, vars_of(member.directional_sums(p.points, p.weights, p.D, direction)), 1e-13)


def vars_of(pair_sums: PairSums) -> dict[str, Tensor]:
    return {name: getattr(pair_sums, name) for name in NAMES}


@every_member
def test_arguments_are_not_changed(member: AbstractReduction) -> None:
    p = problem(101, 3, 2)
    before = [a.clone() for a in (p.points, p.weights, p.D)]
    member.exponential_sums(p.points, p.weights, p.D)
    member.directional_sums(p.points, p.weights, p.D, p.points)
    member.cross_mass(p.points, p.points, p.weights, p.D)
    member.largest_exponent(p.points, p.D)
    assert all(torch.equal(a, b) for a, b in zip((p.points, p.weights, p.D), before, strict=True))


# invariances


@settings(max_examples=40)
@given(
    n=st.integers(1, 240),
    d=st.integers(1, 5),
    H=st.integers(1, 9),
    block=st.sampled_from([4096, 50_000, 300_000, None]),
    symmetric=st.booleans(),
    own=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_tiling(n: int, d: int, H: int, block: int | None, symmetric: bool, own: bool, seed: int) -> None:
    p = problem(n, d, H, symmetric=symmetric, own=own, weights="tracers" if seed % 2 else "unequal", seed=seed)
    member = Blocked(block)
    assert_sums(member.exponential_sums(p.points, p.weights, p.D), sums(p.points, p.weights, p.D), 1e-13)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    shuffled = member.exponential_sums(p.points[..., order, :], p.weights[order], p.D)
    straight = member.exponential_sums(p.points, p.weights, p.D)
    for name in NAMES:
        assert_close(getattr(shuffled, name), getattr(straight, name)[..., order], 1e-13)


@every_member
@every_side
def test_splitting_a_particle_changes_nothing(member: AbstractReduction, symmetric: bool) -> None:
    p = problem(130, 3, 2, symmetric=symmetric)
    points = torch.cat([p.points, p.points[:1]])
    weights = torch.cat([p.weights, p.weights[:1] * 0.3])
    weights[0] *= 0.7
    split = member.exponential_sums(points, weights, p.D)
    whole = member.exponential_sums(p.points, p.weights, p.D)
    for name in NAMES:
        assert_close(getattr(split, name)[..., :-1], getattr(whole, name), 1e-13)
        assert_close(getattr(split, name)[..., -1], getattr(split, name)[..., 0], 1e-14)


# values that are not finite


@every_member
@every_side
def test_tracers_add_nothing_even_where_exp_overflows(member: AbstractReduction, symmetric: bool) -> None:
    p = problem(150, 2, 3, symmetric=symmetric, weights="tracers")
    tracer, massive = p.weights == 0, p.weights > 0
    points = p.points.clone()
    points[tracer] *= 1e5
    direction = problem(150, 2, 3, seed=1).points
    expected = member.exponential_sums(points[massive], p.weights[massive], p.D)
    rate = member.directional_sums(points[massive], p.weights[massive], p.D, direction[massive])
    actual = member.exponential_sums(points, p.weights, p.D)
    actual_rate = member.directional_sums(points, p.weights, p.D, direction)
    for name in NAMES:
        assert_close(getattr(actual, name)[..., massive], getattr(expected, name), 1e-13)
        assert_close(getattr(actual_rate, name)[..., massive], getattr(rate, name), 1e-13)
    assert bool(actual.mass[:, tracer].isinf().any())
    cross = member.cross_mass(points[massive], points, p.weights, p.D)
    assert_close(cross, expected.mass, 1e-13)


@every_member
def test_overflow_is_returned_as_it_is(member: AbstractReduction, dtype: torch.dtype) -> None:
    x = torch.tensor([[40.0], [0.0], [-1.0]], dtype=dtype)
    w = torch.full((3,), 1 / 3, dtype=dtype)
    D = torch.ones(1, 1, 1, dtype=dtype)
    actual = member.exponential_sums(x, w, D)
    # Only the pair of the first particle with itself overflows.
    assert actual.mass[0].isinf().tolist() == [True, False, False]
    assert not bool(actual.first.isfinite()[0, 0, 0])
    assert bool(actual.first.isfinite()[0, 0, 1:].all())
    assert member.largest_exponent(x, D) == 1600.0


@every_member
def test_underflow_is_zero(member: AbstractReduction) -> None:
    x = torch.tensor([[30.0, 0.0]], dtype=torch.float64)
    D = -torch.eye(2, dtype=torch.float64)[None]
    actual = member.exponential_sums(x, torch.ones(1, dtype=torch.float64), D)
    assert all(bool((getattr(actual, name) == 0).all()) for name in NAMES)


# memory and tiles


@pytest.mark.parametrize("block", [4096, 100_000, None])
@every_side
@every_cloud
def test_no_array_over_all_pairs(block: int | None, symmetric: bool, own: bool) -> None:
    n, d, H = 450, 3, 4
    p = problem(n, d, H, symmetric=symmetric, own=own, weights="tracers")
    member = Blocked(block)
    # The smallest tile has an edge of about 100.
    buffer = max(12_000, (1_600_000 if block is None else block) // 8)
    for call, columns in (
        (lambda: member.exponential_sums(p.points, p.weights, p.D), d + 1),
        (lambda: member.exponential_sums(p.points, p.weights, p.D, second=True), 1 + d + d * (d + 1) // 2),
        (lambda: member.directional_sums(p.points, p.weights, p.D, p.points), 2 * d),
        (lambda: member.largest_exponent(p.points, p.D), d),
        (lambda: None if own else member.cross_mass(p.points, p.points, p.weights, p.D), d),
    ):
        with Recorder() as recorder:
            call()
        assert recorder.largest <= max(H * n * columns, buffer)
        assert recorder.largest < n * n


@pytest.mark.parametrize(("n", "H", "block"), [(333, 2, 4096), (101, 7, 100_000), (40, 300, 100_000), (101, 7, None)])
def test_tiles_cover_every_pair_once(n: int, H: int, block: int | None) -> None:
    tiles = {}
    for symmetric in (True, False):
        p = problem(n, 3, H, symmetric=symmetric)
        with Recorder() as recorder:
            Blocked(block).exponential_sums(p.points, p.weights, p.D)
        tiles[symmetric] = [math.prod(shape) for shape in recorder.exponentials]
        assert max(tiles[symmetric]) <= max(10_000, 2 * (1_600_000 if block is None else block) / 8)
    assert sum(tiles[False]) == H * n * n
    assert H * n * (n + 1) / 2 <= sum(tiles[True]) <= H * n * n
    if n > 300:
        assert len(set(tiles[False])) > 1
        assert sum(tiles[True]) < 0.65 * sum(tiles[False])


@pytest.mark.parametrize("block", [0, -1, 4095, 5000.5, "large", True])
def test_blocks_that_make_no_sense(block: Any) -> None:
    with pytest.raises(InvalidInput, match="block_bytes"):
        Blocked(block)


@every_member
def test_has_a_name_and_no_state(member: AbstractReduction) -> None:
    assert "blocked" in member.name
    assert not hasattr(member, "__dict__")
    with pytest.raises((AttributeError, TypeError)):
        member.block_bytes = 5000  # type: ignore[misc]


def test_problems_move_between_precisions() -> None:
    assert isinstance(problem(2, 2, 1).to(torch.float32), Problem)
