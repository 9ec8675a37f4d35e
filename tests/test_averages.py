from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from jko.averages import harmonic_mean, head_average, mass_average, normalized_average
from jko.errors import InvalidInput
from tests.oracles.attention import assert_close

F64 = torch.float64


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize(("axis", "tail"), [(-1, ()), (-2, (5,)), (-3, (5, 2))])
@pytest.mark.parametrize("weights", [None, [0.2, 0.3, 0.1, 0.4], [0.5, 0.0, 0.5, 0.0]])
def test_against_a_loop(
    batch: tuple[int, ...],
    axis: int,
    tail: tuple[int, ...],
    weights: list[float] | None,
    dtype: torch.dtype,
) -> None:
    values = torch.from_numpy(np.random.default_rng(0).standard_normal((*batch, 4, *tail))).to(dtype)
    w = None if weights is None else torch.tensor(weights, dtype=F64)
    actual = head_average(values, w, axis=axis)
    parts = values.double().unbind(axis)
    factors = [0.25] * 4 if weights is None else weights
    expected = sum(c * part for c, part in zip(factors, parts, strict=True))
    assert_close(actual, expected, 1e-15 if dtype == F64 else 1e-6)  # type: ignore[arg-type]
    assert actual.dtype == dtype


def test_the_average_stays_on_its_device(accelerator: torch.device) -> None:
    values, w = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([0.25, 0.75], dtype=F64)
    for weights in (None, w, w.to(accelerator)):
        actual = head_average(values.to(accelerator), weights, axis=-2)
        assert actual.device.type == accelerator.type
        assert_close(actual, head_average(values, None if weights is None else w, axis=-2), 1e-7)


def test_the_axis_is_that_of_mobilities_unless_said_otherwise() -> None:
    assert head_average(torch.ones(3, 4, 5)).shape == (3, 5)


def test_a_head_of_weight_zero_is_left_out() -> None:
    values = torch.tensor([[1.0], [math.inf], [math.nan], [3.0]])
    assert head_average(values, torch.tensor([0.5, 0.0, 0.0, 0.5])).tolist() == [2.0]
    assert not bool(head_average(values, torch.tensor([0.5, 0.0, 0.1, 0.4])).isfinite())


@pytest.mark.parametrize(("axis", "shape"), [(-1, (3,)), (-2, (3, 5)), (-3, (3, 5, 2))])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_one_weight_for_every_head(axis: int, shape: tuple[int, ...], count: int) -> None:
    with pytest.raises(InvalidInput, match=rf"head_weights have shape \({count},\), but there are 3 heads"):
        head_average(torch.ones(2, *shape), torch.ones(count) / count, axis=axis)


def test_weights_for_every_particle_are_refused() -> None:
    with pytest.raises(InvalidInput, match="head_weights have shape"):
        head_average(torch.ones(3, 5), torch.ones(3, 5) / 3)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("weights", [None, [0.2, 0.0, 0.8]])
def test_means_of_inverse_mobilities(batch: tuple[int, ...], weights: list[float] | None, dtype: torch.dtype) -> None:
    generator = np.random.default_rng(1)
    m = torch.from_numpy(generator.uniform(0.2, 5.0, (*batch, 3, 4))).to(dtype)
    v = torch.from_numpy(generator.standard_normal((*batch, 3, 4, 2))).to(dtype)
    if weights is not None:
        m[..., 1, :], v[..., 1, :, :] = 0.0, math.inf
    w = None if weights is None else torch.tensor(weights, dtype=F64)
    parts = [(c, m.double()[..., h, :], v.double()[..., h, :, :]) for h, c in enumerate(weights or [1 / 3] * 3) if c]
    inverse = sum(c / mobility for c, mobility, _ in parts)
    mean = sum(c * vectors / mobility[..., None] for c, mobility, vectors in parts)
    tolerance = 1e-15 if dtype == F64 else 1e-6
    assert_close(harmonic_mean(m, w), 1 / inverse, 4 * tolerance)  # type: ignore[operator]
    assert_close(normalized_average(v, m, w), mean, 4 * tolerance)  # type: ignore[arg-type]
    assert normalized_average(v, m, w).dtype == harmonic_mean(m, w).dtype == dtype


def test_tracers_are_left_out_of_averages() -> None:
    w = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])
    values = torch.tensor([[1.0, math.nan, 3.0], [math.inf, -math.inf, 2.0]])
    assert mass_average(w, values).tolist() == [2.0, 2.0]
    assert math.isnan(mass_average(w[0], values[0].flip(0).roll(1)))
