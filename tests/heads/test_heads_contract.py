"""What every head process keeps: one row per process."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch

from jko.errors import InvalidInput
from jko.heads import (
    AbstractHeads,
    ConstantHeads,
    ItoHeads,
    OrnsteinUhlenbeckHeads,
    OscillatingHeads,
    TabulatedHeads,
)
from jko.initial import initial_heads
from jko.random import symmetric_increments

H, D = 3, 3
WEIGHTS = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)

MOVING: dict[str, Callable[..., AbstractHeads]] = {
    "tabulated": lambda D0, w=None: TabulatedHeads([0.0, 0.25, 1.0], torch.stack((D0, 2 * D0, D0 - 1)), w),
    "euler-maruyama": lambda D0, w=None: OrnsteinUhlenbeckHeads(D0, dt=0.05, t1=1.0, seed=4, head_weights=w),
    "exact": lambda D0, w=None: OrnsteinUhlenbeckHeads(D0, dt=0.05, t1=1.0, seed=4, exact=True, head_weights=w),
    "increments": lambda D0, w=None: OrnsteinUhlenbeckHeads.from_increments(
        D0, symmetric_increments(4, 0, len(D0), D0.shape[-1], 20, 0.05), dt=0.05, head_weights=w
    ),
    "ito": lambda D0, w=None: ItoHeads(
        D0, lambda D, t: -t * D, lambda D, t: 1 + t, dt=0.05, t1=1.0, seed=4, head_weights=w
    ),
    "oscillating": lambda D0, w=None: OscillatingHeads(D0, dt=0.05, t1=1.0, head_weights=w),
}
ALL = {"constant": lambda D0, w=None: ConstantHeads(D0, w), **MOVING}


def _ito(D0: torch.Tensor) -> ItoHeads:
    return ItoHeads(D0, lambda D, t: -D, lambda D, t: 1.0)


every = pytest.mark.parametrize("build", ALL.values(), ids=ALL.keys())
moving = pytest.mark.parametrize("build", MOVING.values(), ids=MOVING.keys())


@every
def test_shape_type_and_place(build: Callable[..., AbstractHeads]) -> None:
    D0 = initial_heads(H, D, 0)
    heads = build(D0)
    assert isinstance(heads, AbstractHeads)
    assert (heads.num_heads, heads.dimension) == (H, D)
    assert heads.head_weights is None
    for t in (0.0, 0.3, 1.0):
        value = heads.at(t)
        assert value.shape == (H, D, D)
        assert value.dtype == torch.float64
        assert value.device.type == "cpu"
        assert not value.requires_grad
    assert torch.equal(heads.at(0.0), D0)


@every
def test_moves_says_whether_the_path_depends_on_time(build: Callable[..., AbstractHeads]) -> None:
    heads = build(initial_heads(H, D, 0))
    assert heads.moves == (not torch.equal(heads.at(0.0), heads.at(0.7)))
    assert heads.moves == math.isfinite(heads.t1)


@every
def test_symmetric_input_stays_symmetric_to_the_last_bit(build: Callable[..., AbstractHeads]) -> None:
    heads = build(initial_heads(H, D, 1))
    for t in np.linspace(0, 1, 83).tolist():
        value = heads.at(t)
        assert torch.equal(value, value.mT)


@every
def test_single_precision_input_is_promoted_exactly(build: Callable[..., AbstractHeads]) -> None:
    D0 = initial_heads(H, D, 1, dtype=torch.float32)
    assert torch.equal(build(D0).at(0.0), D0.to(torch.float64))


@every
def test_neither_inputs_nor_outputs_are_shared(build: Callable[..., AbstractHeads]) -> None:
    D0, weights = initial_heads(H, D, 2), WEIGHTS.clone()
    heads = build(D0, weights)
    before = [heads.at(t) for t in (0.0, 0.33, 1.0)]
    D0.zero_()
    weights.fill_(7.0)
    for t in (0.0, 0.33, 1.0):
        heads.at(t).zero_()
    for t, value in zip((0.0, 0.33, 1.0), before, strict=True):
        assert torch.equal(heads.at(t), value)
    assert heads.head_weights is not None
    assert torch.equal(heads.head_weights, WEIGHTS)


@every
def test_frozen_and_picklable(build: Callable[..., AbstractHeads]) -> None:
    heads = build(initial_heads(H, D, 3), WEIGHTS)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
        heads.head_weights = None
    again = pickle.loads(pickle.dumps(heads))
    for t in (0.0, 0.41, 1.0):
        assert torch.equal(again.at(t), heads.at(t))
    assert repr(again) == repr(heads)
    assert len(repr(heads)) < 200


@moving
@pytest.mark.parametrize("t", [-1e-6, 1 + 1e-6, -1.0, 30.0, math.nan, math.inf, -math.inf])
def test_times_outside_are_refused_with_the_interval(build: Callable[..., AbstractHeads], t: float) -> None:
    heads = build(initial_heads(H, D, 0))
    assert heads.t1 == 1.0
    with pytest.raises(InvalidInput, match=r"outside \[0, 1\.0\]") as caught:
        heads.at(t)
    assert repr(t) in str(caught.value)


@moving
def test_rounding_at_the_ends_is_tolerated(build: Callable[..., AbstractHeads]) -> None:
    heads = build(initial_heads(H, D, 0))
    assert torch.equal(heads.at(-5e-10), heads.at(0.0))
    assert torch.equal(heads.at(1 + 5e-10), heads.at(1.0))
    assert torch.equal(heads.at(sum([0.1] * 10)), heads.at(1.0))


@every
def test_zero_weights_and_zero_matrices_are_allowed(build: Callable[..., AbstractHeads]) -> None:
    heads = build(torch.zeros(H, D, D), [1.0, 0.0, 0.0])
    assert heads.head_weights is not None
    assert heads.head_weights.tolist() == [1.0, 0.0, 0.0]
    assert bool(torch.isfinite(heads.at(0.5)).all())


@every
def test_single_precision_weights_land_on_the_simplex(build: Callable[..., AbstractHeads]) -> None:
    weights = build(initial_heads(H, D, 0), torch.tensor([0.1, 0.2, 0.7], dtype=torch.float32)).head_weights
    assert weights is not None
    assert weights.dtype == torch.float64
    assert abs(float(weights.sum()) - 1) < 1e-15


@every
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5, 0.5], r"shape \(2,\).*3 heads"),
        ([[0.5, 0.25, 0.25]], r"shape \(1, 3\)"),
        ([0.5, 0.75, -0.25], "negative"),
        ([0.5, 0.5, 0.5], "sum to 1.5"),
        ([0.5, 0.5, math.nan], "finite"),
    ],
)
def test_bad_weights_are_refused(build: Callable[..., AbstractHeads], weights: list, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build(initial_heads(H, D, 0), weights)


@pytest.mark.parametrize("make", [ConstantHeads, OrnsteinUhlenbeckHeads, OscillatingHeads, _ito])
@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        (torch.eye(3), r"\[None\]"),
        (torch.ones(2), r"got \(2,\)"),
        (torch.ones(2, 3, 4), "square"),
        (torch.ones(0, 3, 3), "no heads"),
        (torch.full((1, 2, 2), math.nan), "finite"),
        (torch.full((1, 2, 2), -math.inf), "finite"),
        (torch.ones(1, 2, 2, dtype=torch.complex64), "real"),
        (torch.ones(1, 2, 2, dtype=torch.bool), "real"),
    ],
)
def test_bad_matrices_are_refused(make: Callable, matrices: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make(matrices)


@pytest.mark.parametrize("make", [OrnsteinUhlenbeckHeads, OscillatingHeads, _ito])
def test_initial_matrices_have_no_batch_axes(make: Callable) -> None:
    with pytest.raises(InvalidInput, match=r"D0 must have shape \(H, d, d\)"):
        make(torch.ones(2, 1, 3, 3))


def test_constant_and_tabulated_heads_may_be_batched() -> None:
    D0 = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for heads in (ConstantHeads(D0), TabulatedHeads([0.0, 1.0], torch.stack((D0, D0)))):
        assert (heads.num_heads, heads.dimension) == (2, 3)
        assert torch.equal(heads.at(0.0), D0)


def test_constant_heads_are_defined_for_all_times_from_zero() -> None:
    D0 = initial_heads(H, D, 0)
    heads = ConstantHeads(D0)
    assert heads.t1 == math.inf
    assert not heads.moves
    assert torch.equal(heads.at(1e12), D0)
    for t in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidInput, match=r"\[0, inf\)"):
            heads.at(t)


@every
def test_global_generators_are_untouched(build: Callable[..., AbstractHeads]) -> None:
    before = (np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002
    build(torch.ones(H, D, D)).at(0.5)
    after = (np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002
    assert before[0] == after[0]
    assert torch.equal(before[1], after[1])


@every
def test_a_default_device_does_not_matter(build: Callable[..., AbstractHeads]) -> None:
    D0 = initial_heads(H, D, 0)
    expected = build(D0).at(0.5)
    with torch.device("meta"):
        value = build(D0).at(0.5)
    assert torch.equal(value, expected)


def test_lists_keep_double_precision() -> None:
    assert float(ConstantHeads([[[0.1]]]).at(0.0)) == 0.1
    heads = ConstantHeads(torch.ones(2, 1, 1), [0.1, 0.9])
    assert heads.head_weights is not None
    assert heads.head_weights.tolist() == [0.1, 0.9]
    table = TabulatedHeads([0, 0.1, 1], [[[[0.1]]], [[[0.2]]], [[[0.3]]]])
    assert float(table.at(0.1)) == 0.2
    assert OscillatingHeads(torch.ones(1, 2, 2), t1=0.1, phases=[0.1]).phases.tolist() == [0.1]
    assert OrnsteinUhlenbeckHeads(torch.ones(1, 1, 1), mean=[[0.1]], t1=0.1).mean.tolist() == [[0.1]]


@pytest.mark.parametrize("value", [None, "text", [[1.0], [1.0, 2.0]], object()])
def test_what_is_no_array_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="D must be an array of numbers"):
        ConstantHeads(value)


def test_arrays_of_any_layout_are_accepted() -> None:
    array = np.broadcast_to(np.arange(4.0).reshape(2, 2)[::-1], (3, 2, 2))
    array.flags.writeable = False
    assert ConstantHeads(array).at(0.0).tolist() == [[[2.0, 3.0], [0.0, 1.0]]] * 3
