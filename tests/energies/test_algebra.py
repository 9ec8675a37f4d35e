from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from jko.energies import AbstractEnergy, AttentionEnergy, Evaluation, Scaled, Sum
from jko.errors import InvalidInput
from jko.heads import ConstantHeads, TabulatedHeads
from jko.measure import ParticleMeasure
from tests.oracles.attention import assert_close, problem
from tests.oracles.energies import Quadratic, on_own_clouds, products_on_own_clouds

F64 = torch.float64
QUADRATIC = Quadratic(torch.tensor([1.0, -2.0, 0.5], dtype=F64))
HALF = Quadratic(torch.tensor([0.0, 0.25, 3.0], dtype=F64))
PARTS = ("energy", "first_variation", "gradient")


def attention(seed: int = 0, H: int = 2, sign: int = 1, theta: list[float] | None = None) -> AttentionEnergy:
    return AttentionEnergy(ConstantHeads(problem(5, 3, H, symmetric=False, seed=seed).D, theta), sign)


def measure(*batch: int, dtype: torch.dtype = F64) -> ParticleMeasure:
    generator = np.random.default_rng(1)
    x = torch.from_numpy(generator.standard_normal((*batch, 5, 3)) / 2)
    return ParticleMeasure(x.to(dtype), torch.tensor([0.3, 0.0, 0.1, 0.4, 0.2], dtype=dtype))


def assert_combined(
    energy: AbstractEnergy, parts: list[tuple[float, AbstractEnergy]], mu: ParticleMeasure, t: float
) -> Evaluation:
    """The energy is the linear combination of its parts in everything that all energies have."""
    direction = torch.flip(mu.points, (-2,))

    def combined(values: list[Tensor]) -> Tensor:
        return sum(c * value for (c, _), value in zip(parts, values, strict=True))  # type: ignore[return-value]

    evaluations = [part.evaluate(mu, t, curvature=True) for _, part in parts]
    actual = energy.evaluate(mu, t, curvature=True)
    assert energy.evaluate(mu, t).curvature is None
    for name in ("value", "first_variation", "gradient", "curvature"):
        assert_close(getattr(actual, name), combined([getattr(e, name) for e in evaluations]), 1e-14)
    assert_close(energy.value(mu, t), combined([part.value(mu, t) for _, part in parts]), 1e-14)
    assert torch.equal(energy.gradient(mu, t), actual.gradient)
    products = [part.hessian_product(mu, t, direction) for _, part in parts]
    assert_close(energy.hessian_product(mu, t, direction), combined(products), 1e-14)
    assert energy.largest_exponent(mu, t) == max(part.largest_exponent(mu, t) for _, part in parts)
    assert energy.moves == any(part.moves for _, part in parts)
    assert actual.value.dtype == F64
    return actual


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_sums_and_multiples(batch: tuple[int, ...]) -> None:
    a, b, mu = attention(), attention(1, sign=-1), measure(*batch)
    assert_combined(a + QUADRATIC, [(1, a), (1, QUADRATIC)], mu, 0.5)
    assert_combined(2.5 * a, [(2.5, a)], mu, 0.0)
    assert_combined(-1 * a, [(-1, a)], mu, 0.0)
    assert_combined(a + (-0.5) * b + 3 * QUADRATIC, [(1, a), (-0.5, b), (3, QUADRATIC)], mu, 0.25)
    assert_combined(2 * (a + 2 * (b + QUADRATIC)), [(2, a), (4, b), (4, QUADRATIC)], mu, 1.0)
    assert_combined(QUADRATIC + HALF, [(1, QUADRATIC), (1, HALF)], mu, 0.5)
    assert_combined(a + a, [(2, a)], mu, 0.0)


@settings(max_examples=25)
@given(c=st.floats(-100, 100), e=st.floats(-100, 100), t=st.floats(0, 2))
def test_any_coefficients(c: float, e: float, t: float) -> None:
    a, mu = attention(), measure()
    whole = (c * a + e * QUADRATIC).evaluate(mu, t)
    first, second = a.evaluate(mu, t), QUADRATIC.evaluate(mu, t)
    scale = abs(c) + abs(e)
    assert_close(whole.value, c * first.value + e * second.value, 1e-13, scale=10 * scale)
    assert_close(whole.gradient, c * first.gradient + e * second.gradient, 1e-13, scale=10 * scale)


def test_coefficients_that_depend_on_time() -> None:
    a, mu = attention(), measure()
    energy = Scaled(a, lambda t: 1 - 2 * t)
    for t in (0.0, 0.25, 0.5, 2.0):
        evaluation = energy.evaluate(mu, t)
        assert energy.coefficient_at(t) == 1 - 2 * t
        assert_close(evaluation.gradient, (1 - 2 * t) * a.gradient(mu, t), 1e-15)
        assert_close(evaluation.value, (1 - 2 * t) * a.value(mu, t), 1e-15)
        assert_close(energy.value(mu, t), evaluation.value, 1e-15)
    # The coefficient moves although the heads do not.
    assert energy.moves
    assert not a.moves
    assert not (2 * a).moves
    moving = AttentionEnergy(TabulatedHeads([0.0, 1.0], torch.eye(3).expand(2, 1, 3, 3)))
    assert (2 * moving).moves


# heads


def test_a_multiple_scales_its_heads_but_not_their_mobility() -> None:
    a, mu = attention(theta=[0.25, 0.75]), measure()
    for factor, energy in ((-3.0, -3.0 * a), (-3.0, Scaled(a, lambda t: -3 * t)), (0.0, 0 * a)):
        actual, expected = energy.evaluate(mu, 1.0).heads, a.evaluate(mu, 1.0).heads
        assert actual is not None
        assert expected is not None
        for name in PARTS:
            assert_close(getattr(actual, name), factor * getattr(expected, name), 1e-15)
        assert torch.equal(actual.mobility, expected.mobility)
        assert actual.head_weights is a.heads.head_weights
        own = problem(5, 3, 2, own=True).points
        there, here = (on_own_clouds(e, own, mu.weights, 1.0) for e in (energy, a))
        for name in ("value", "first_variation", "gradient"):
            assert_close(getattr(there, name), factor * getattr(here, name), 1e-15)
        products = [products_on_own_clouds(e, own, mu.weights, 1.0, own) for e in (energy, a)]
        assert_close(products[0], factor * products[1], 1e-15)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("theta", [None, [0.25, 0.75]])
def test_every_head_carries_the_parts_without_heads(batch: tuple[int, ...], theta: list[float] | None) -> None:
    a, mu = attention(theta=theta), measure(*batch)
    energy = 0.5 * a + QUADRATIC + 2 * HALF
    actual = assert_combined(energy, [(0.5, a), (1, QUADRATIC), (2, HALF)], mu, 0.5)
    heads, rest = actual.heads, (QUADRATIC + 2 * HALF).evaluate(mu, 0.5, curvature=True)
    plain = a.evaluate(mu, 0.5, curvature=True).heads
    assert heads is not None
    assert plain is not None
    assert_close(heads.energy, 0.5 * plain.energy + rest.value[..., None], 1e-14)
    assert_close(heads.first_variation, 0.5 * plain.first_variation + rest.first_variation[..., None, :], 1e-14)
    assert_close(heads.gradient, 0.5 * plain.gradient + rest.gradient[..., None, :, :], 1e-14)
    assert heads.curvature is not None
    assert plain.curvature is not None
    assert rest.curvature is not None
    assert_close(heads.curvature, 0.5 * plain.curvature + rest.curvature[..., None, :, :, :], 1e-14)
    assert torch.equal(heads.mobility, plain.mobility)
    w = torch.full((2,), 0.5, dtype=F64) if theta is None else torch.tensor(theta, dtype=F64)
    assert_close(torch.einsum("h,...h->...", w, heads.energy), actual.value, 1e-14)
    assert_close(torch.einsum("h,...hnd->...nd", w, heads.gradient), actual.gradient, 1e-14)


@pytest.mark.parametrize("build", [lambda a: QUADRATIC + 0.5 * a, lambda a: 0.5 * (a + 2 * QUADRATIC)])
def test_heads_on_clouds_of_their_own_with_other_parts(build: Any) -> None:
    a, t = attention(), 0.25
    own = problem(5, 3, 2, own=True).points
    direction = problem(5, 3, 2, own=True, seed=1).points
    w = measure().weights
    energy = build(a)
    actual = on_own_clouds(energy, own, w, t)
    product = products_on_own_clouds(energy, own, w, t, direction)
    for h in range(2):
        single = build(AttentionEnergy(ConstantHeads(a.heads.at(0.0)[h : h + 1])))
        mu = ParticleMeasure(own[h], w)
        expected = single.evaluate(mu, t)
        assert_close(actual.value[h], expected.value, 1e-14)
        assert_close(actual.first_variation[h], expected.first_variation, 1e-14)
        assert_close(actual.gradient[h], expected.gradient, 1e-14)
        assert_close(product[h], single.hessian_product(mu, t, direction[h]), 1e-14)


@pytest.mark.parametrize(
    "build", [lambda a: a, lambda a: -2.0 * a, lambda a: QUADRATIC + 0.5 * a, lambda a: 0.5 * (a + 2 * QUADRATIC)]
)
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_some_heads_alone(build: Any, dtype: torch.dtype) -> None:
    energy, t = build(attention(H=4, sign=-1, theta=[0.1, 0.2, 0.3, 0.4])), 0.25
    own, direction = (problem(5, 3, 4, own=True, seed=seed).points.to(dtype) for seed in (0, 1))
    w = measure(dtype=dtype).weights
    heads = energy.by_head()
    whole = on_own_clouds(energy, own, w, t)
    product = products_on_own_clouds(energy, own, w, t, direction)
    tolerance = 1e-14 if dtype == F64 else 1e-5
    nested = heads.members([3, 1, 0]).members([2, 0])
    for part, indices in ((heads.members([3, 1]), [3, 1]), (heads.members([2]), [2]), (nested, [0, 3])):
        clouds = ParticleMeasure(own[indices], w)
        actual = part.evaluate(clouds, t)
        for name in ("value", "first_variation", "gradient"):
            assert_close(getattr(actual, name), getattr(whole, name)[indices], tolerance)
        assert_close(part.hessian_product(clouds, t, direction[indices]), product[indices], tolerance)
    with pytest.raises(InvalidInput, match="head-wise points need shape"):
        heads.members([1, 2]).evaluate(ParticleMeasure(own, w), t)


def test_the_curvature_of_a_sum_is_unknown_where_that_of_a_part_is() -> None:
    a, mu = attention(), measure()
    unknown = Quadratic(QUADRATIC.diagonal, curved=False)
    for energy in (a + unknown, unknown + 2 * a, 2 * unknown, Scaled(a + unknown, 0.0)):
        evaluation = energy.evaluate(mu, 0.0, curvature=True)
        assert evaluation.curvature is None
        assert evaluation.heads is None or evaluation.heads.curvature is None


def test_several_attention_parts_have_no_common_heads() -> None:
    a, b, mu = attention(), attention(1), measure()
    for energy in (a + b, 2 * (a + b), a + 2 * (QUADRATIC + b), a + a):
        assert energy.evaluate(mu, 0.0).heads is None
        assert len(energy.attention_parts) == 2
        with pytest.raises(InvalidInput, match="exactly one attention energy, this sum has 2"):
            energy.by_head()


def test_no_attention_part_means_no_heads() -> None:
    mu = measure()
    for energy in (QUADRATIC + HALF, 2 * QUADRATIC, 2 * (QUADRATIC + HALF)):
        assert energy.attention_parts == ()
        assert energy.evaluate(mu, 0.0).heads is None
        assert energy.largest_exponent(mu, 0.0) == -math.inf
        with pytest.raises(InvalidInput):
            energy.by_head()


def test_precision_follows_the_particles() -> None:
    actual = (0.5 * attention() + QUADRATIC).evaluate(measure(dtype=torch.float32), 0.5)
    expected = (0.5 * attention() + QUADRATIC).evaluate(measure(dtype=torch.float32).to(F64), 0.5)
    assert actual.gradient.dtype == actual.first_variation.dtype == torch.float32
    assert actual.value.dtype == F64
    assert_close(actual.value, expected.value, 1e-6)
    assert_close(actual.gradient, expected.gradient, 1e-5)


def test_on_every_device(device: torch.device) -> None:
    energy = 0.5 * attention() + QUADRATIC
    actual, expected = energy.evaluate(measure().to(device=device), 0.5), energy.evaluate(measure(), 0.5)
    assert actual.gradient.device.type == device.type
    assert_close(actual.gradient, expected.gradient, 1e-14)
    assert actual.heads is not None
    assert expected.heads is not None
    assert_close(actual.heads.energy, expected.heads.energy, 1e-14)


# energies that are switched off


def test_all_heads_off() -> None:
    # Two heads whose coefficients are sin(pi t) and 0.
    first, second, mu = attention(H=1), attention(1, H=1), measure()
    energy = Scaled(first, lambda t: math.sin(math.pi * t)) + Scaled(second, 0.0)
    for t in (0.0, 1.0):
        evaluation = energy.evaluate(mu, t)
        assert abs(float(evaluation.value)) < 1e-12
        assert abs(float(energy.value(mu, t))) < 1e-12
        assert bool((evaluation.gradient.abs() < 1e-14).all())
    assert float(energy.evaluate(mu, 0.0).value) == 0.0
    negative = energy.evaluate(mu, 1.5)
    assert_close(negative.value, -first.value(mu, 0.0), 1e-14)


def test_an_energy_that_is_switched_off_is_zero_even_where_exp_overflows() -> None:
    far, mu = ParticleMeasure(100 * measure().points, measure().weights), measure()
    a = attention()
    assert not math.isfinite(a.value(far, 0.0))
    off = Scaled(a, 0.0)
    evaluation = off.evaluate(far, 0.0)
    assert evaluation.heads is not None
    own = far.points.expand(2, 5, 3)
    heads = on_own_clouds(off, own, far.weights, 0.0)
    zeros = (
        *(evaluation.value, evaluation.first_variation, evaluation.gradient, evaluation.heads.energy),
        *(evaluation.heads.gradient, heads.value, heads.gradient, off.value(far, 0.0)),
        off.hessian_product(far, 0.0, mu.points),
        products_on_own_clouds(off, own, far.weights, 0.0, own),
    )
    assert all(bool((value == 0).all()) for value in zeros)
    assert not math.isfinite((2 * a).value(far, 0.0))


# construction


def test_sums_are_flat_and_keep_their_order() -> None:
    a, b, c = attention(), QUADRATIC, attention(1)
    energy = a + (b + c)
    assert isinstance(energy, Sum)
    assert energy.terms == (a, b, c)
    assert energy.attention_parts == (a, c)
    assert Sum([a, b]).terms == Sum(part for part in (a, b)).terms == (a, b)
    assert Sum((a,)).terms == (a,)
    assert energy.description == f"{a.description} + quadratic + {c.description}"


def test_what_multiples_say_of_themselves() -> None:
    assert (-0.5 * QUADRATIC).description == "-0.5 * (quadratic)"
    assert Scaled(QUADRATIC, lambda t: t).description == "c(t) * (quadratic)"


@pytest.mark.parametrize("terms", [(), [], (3,), (attention(), None), 3, [ConstantHeads]])
def test_sums_of_something_else(terms: Any) -> None:
    with pytest.raises(InvalidInput, match=r"Sum needs at least one energy|every term .* must be an instance of"):
        Sum(terms)


@pytest.mark.parametrize("other", [0, 2.0, None, "energy", torch.ones(1)])
def test_energies_are_added_to_energies(other: Any) -> None:
    with pytest.raises(InvalidInput, match="every term of a sum of energies must be an instance of AbstractEnergy"):
        attention() + other


@pytest.mark.parametrize("coefficient", [math.nan, math.inf, -math.inf, None, "two", [1, 2], 1j, torch.ones(2)])
def test_coefficients_must_be_finite_numbers(coefficient: Any) -> None:
    with pytest.raises(InvalidInput, match="coefficient must be"):
        Scaled(QUADRATIC, coefficient)
    with pytest.raises(InvalidInput, match=r"coefficient\(0\.5\) must be"):
        Scaled(QUADRATIC, lambda t: coefficient).value(measure(), 0.5)


@pytest.mark.parametrize("coefficient", [2, 2.0, np.float64(2), np.int64(2), torch.tensor(2.0)])
def test_numbers_of_any_kind(coefficient: Any) -> None:
    energy = coefficient * attention()
    assert isinstance(energy, Scaled)
    assert_close(energy.value(measure(), 0.0), 2 * attention().value(measure(), 0.0), 1e-15)
    computed = Scaled(attention(), lambda t: coefficient)
    assert_close(computed.value(measure(), 0.0), energy.value(measure(), 0.0), 0.0)


@pytest.mark.parametrize("energy", [3, None, ConstantHeads, AttentionEnergy])
def test_multiples_of_something_else(energy: Any) -> None:
    with pytest.raises(InvalidInput, match="energy must be an instance of AbstractEnergy"):
        Scaled(energy, 2.0)


def test_energies_are_immutable() -> None:
    for energy in (2 * QUADRATIC, QUADRATIC + HALF):
        assert not hasattr(energy, "__dict__")
        with pytest.raises((AttributeError, TypeError)):
            energy.terms = ()  # type: ignore[attr-defined]
