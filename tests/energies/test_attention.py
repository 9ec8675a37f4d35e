from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck

import jko
from jko.energies import AttentionEnergy, Evaluation, HeadEvaluation
from jko.errors import InvalidInput
from jko.heads import ConstantHeads, OrnsteinUhlenbeckHeads, TabulatedHeads
from jko.measure import ParticleMeasure
from jko.reductions import Auto, Blocked
from tests.oracles.attention import (
    TOLERANCE,
    Problem,
    assert_close,
    average,
    derivative,
    exponents,
    head_curvatures,
    head_energies,
    head_gradients,
    problem,
    sums,
)
from tests.oracles.energies import on_own_clouds, products_on_own_clouds

F64 = torch.float64
HEAD_WEIGHTS = [None, [0.5, 0.1, 0.4], [0.25, 0.0, 0.75]]
N, D_, H = 7, 3, 3
CASES = [
    pytest.param(sign, symmetric, theta, id=f"{sign:+d}-{'symmetric' if symmetric else 'general'}-{k}")
    for sign in (1, -1)
    for symmetric in (True, False)
    for k, theta in enumerate(HEAD_WEIGHTS)
]
every_case = pytest.mark.parametrize(("sign", "symmetric", "theta"), CASES)


def build(
    sign: int, symmetric: bool, theta: list[float] | None, **options: Any
) -> tuple[AttentionEnergy, ParticleMeasure, Problem, Tensor | None]:
    p = problem(N, D_, H, symmetric=symmetric, weights="tracers", **options)
    energy = AttentionEnergy(ConstantHeads(p.D, theta), sign)
    return energy, ParticleMeasure(p.points, p.weights), p, None if theta is None else torch.tensor(theta, dtype=F64)


def total(x: Tensor, w: Tensor, D: Tensor, theta: Tensor | None) -> Tensor:
    return average(head_energies(x, w, D), theta)


# value and derivatives


@every_case
def test_value_and_parts(sign: int, symmetric: bool, theta: list[float] | None, dtype: torch.dtype) -> None:
    p = problem(N, D_, H, symmetric=symmetric, weights="tracers").to(dtype)
    energy = AttentionEnergy(ConstantHeads(p.D, theta), sign)
    measure = ParticleMeasure(p.points, p.weights)
    actual = energy.evaluate(measure, 0.0)
    q, averages = p.to(F64), None if theta is None else torch.tensor(theta, dtype=F64)
    s = sums(q.points, q.weights, q.D)
    variations = sign * (s["mass"] + s["mass_transposed"]) / 2
    gradients = sign * head_gradients(q.points, q.weights, q.D)
    energies = sign * head_energies(q.points, q.weights, q.D)
    tolerance = TOLERANCE[dtype]
    assert_close(actual.value, average(energies, averages), tolerance)
    assert_close(actual.first_variation, average(variations, averages), tolerance)
    assert_close(actual.gradient, average(gradients, averages), tolerance)
    assert actual.heads is not None
    assert_close(actual.heads.energy, energies, tolerance)
    assert_close(actual.heads.first_variation, variations, tolerance)
    assert_close(actual.heads.gradient, gradients, tolerance)
    # The sign is never applied to the mobility.
    assert_close(actual.heads.mobility, s["mass"], tolerance)
    if theta is None:
        assert actual.heads.head_weights is None
    else:
        assert_close(actual.heads.head_weights, averages, 0.0)
    assert_close(energy.value(measure, 0.0), actual.value, 1e-15)
    assert torch.equal(energy.gradient(measure, 0.0), actual.gradient)
    assert actual.value.dtype == energy.value(measure, 0.0).dtype == actual.heads.energy.dtype == F64
    parts = (actual.first_variation, actual.gradient, actual.heads.first_variation, actual.heads.gradient)
    assert {part.dtype for part in (*parts, actual.heads.mobility)} == {dtype}


@every_case
def test_the_derivative_in_a_point_is_its_weight_times_the_gradient(
    sign: int, symmetric: bool, theta: list[float] | None
) -> None:
    energy, measure, p, averages = build(sign, symmetric, theta)
    x = p.points.clone().requires_grad_()
    (expected,) = torch.autograd.grad(sign * total(x, p.weights, p.D, averages), x)
    assert_close(p.weights[:, None] * energy.gradient(measure, 0.0), expected, 1e-13)


@every_case
def test_the_derivative_in_the_weights_is_the_first_variation(
    sign: int, symmetric: bool, theta: list[float] | None
) -> None:
    energy, measure, p, averages = build(sign, symmetric, theta)
    w = p.weights.clone().requires_grad_()
    (expected,) = torch.autograd.grad(sign * total(p.points, w, p.D, averages), w)
    assert_close(energy.evaluate(measure, 0.0).first_variation, expected, 1e-13)


@every_case
def test_the_gradient_of_the_first_variation_is_the_gradient_at_every_particle_also_at_tracers(
    sign: int, symmetric: bool, theta: list[float] | None
) -> None:
    energy, measure, p, averages = build(sign, symmetric, theta)
    z = p.points.clone().requires_grad_()
    there = exponents(z, p.D, p.points).exp() @ p.weights
    back = (exponents(p.points, p.D, z).exp().mT) @ p.weights
    (expected,) = torch.autograd.grad(sign * average((there + back) / 2, averages).sum(), z)
    assert_close(energy.gradient(measure, 0.0), expected, 1e-13)


@every_case
def test_hessian_product(sign: int, symmetric: bool, theta: list[float] | None, dtype: torch.dtype) -> None:
    p = problem(N, D_, H, symmetric=symmetric, weights="tracers").to(dtype)
    energy = AttentionEnergy(ConstantHeads(p.D, theta), sign)
    direction = problem(N, D_, H, seed=1).to(dtype).points
    actual = energy.hessian_product(ParticleMeasure(p.points, p.weights), 0.0, direction)
    q, averages = p.to(F64), None if theta is None else torch.tensor(theta, dtype=F64)
    expected = derivative(
        lambda x: sign * average(head_gradients(x, q.weights, q.D), averages), q.points, direction.double()
    )
    assert_close(actual, expected, TOLERANCE[dtype])
    assert actual.dtype == dtype


@every_case
def test_hessian_product_is_the_second_derivative(sign: int, symmetric: bool, theta: list[float] | None) -> None:
    energy, measure, p, averages = build(sign, symmetric, theta)
    direction = problem(N, D_, H, seed=1).points
    _, expected = torch.autograd.functional.hvp(
        lambda x: sign * total(x, p.weights, p.D, averages), p.points, direction
    )
    actual = p.weights[:, None] * energy.hessian_product(measure, 0.0, direction)
    assert_close(actual, expected, 1e-13)
    other = problem(N, D_, H, seed=2).points
    swapped = p.weights[:, None] * energy.hessian_product(measure, 0.0, other)
    assert_close((actual * other).sum(), (swapped * direction).sum(), 1e-13, scale=float(actual.abs().max()))


@every_case
def test_curvature(sign: int, symmetric: bool, theta: list[float] | None, dtype: torch.dtype) -> None:
    p = problem(N, D_, H, symmetric=symmetric, weights="tracers").to(dtype)
    energy = AttentionEnergy(ConstantHeads(p.D, theta), sign)
    measure = ParticleMeasure(p.points, p.weights)
    plain, actual = energy.evaluate(measure, 0.0), energy.evaluate(measure, 0.0, curvature=True)
    q, averages = p.to(F64), None if theta is None else torch.tensor(theta, dtype=F64)
    expected = sign * head_curvatures(q.points, q.weights, q.D)
    assert plain.curvature is None
    assert plain.heads is not None
    assert plain.heads.curvature is None
    assert actual.heads is not None
    assert_close(actual.heads.curvature, expected, TOLERANCE[dtype])
    assert_close(actual.curvature, average(expected, averages), TOLERANCE[dtype])
    assert actual.curvature.dtype == dtype
    for name in ("value", "first_variation", "gradient"):
        assert_close(getattr(actual, name), getattr(plain, name), TOLERANCE[dtype])
    assert_close(actual.heads.mobility, plain.heads.mobility, TOLERANCE[dtype])


@pytest.mark.parametrize("d", [1, 2, 5])
def test_curvature_in_any_dimension(d: int) -> None:
    for symmetric in (True, False):
        p = problem(4, d, 2, symmetric=symmetric)
        energy = AttentionEnergy(ConstantHeads(p.D))
        actual = energy.evaluate(ParticleMeasure(p.points, p.weights), 0.0, curvature=True).curvature
        assert_close(actual, head_curvatures(p.points, p.weights, p.D).mean(0), 1e-13)


class Differentiable(torch.autograd.Function):
    """The energy with its own gradient as derivative, for gradcheck."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, energy: AttentionEnergy, weights: Tensor, factor: float) -> Tensor:
        evaluation = energy.evaluate(ParticleMeasure(x, weights), 0.0)
        ctx.save_for_backward(factor * weights[:, None] * evaluation.gradient)
        return evaluation.value

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return g * gradient, None, None, None


@every_case
def test_gradcheck(sign: int, symmetric: bool, theta: list[float] | None) -> None:
    energy, _, p, _ = build(sign, symmetric, theta)
    x = p.points.clone().requires_grad_()
    assert gradcheck(Differentiable.apply, (x, energy, p.weights, 1.0), rtol=1e-6, atol=1e-8)


def test_gradcheck_can_fail() -> None:
    energy, _, p, _ = build(1, False, None)
    with pytest.raises(GradcheckError):
        gradcheck(Differentiable.apply, (p.points.clone().requires_grad_(), energy, p.weights, 1.001), rtol=1e-6)


@every_case
def test_taylor_expansion_to_second_order(sign: int, symmetric: bool, theta: list[float] | None) -> None:
    energy, measure, p, _ = build(sign, symmetric, theta)
    direction = problem(N, D_, H, seed=1).points
    value, gradient = energy.value(measure, 0.0), energy.gradient(measure, 0.0)
    curvature = energy.hessian_product(measure, 0.0, direction)
    remainders = []
    for step in (0.1, 0.05):
        moved = energy.value(measure.moved(measure.points + step * direction), 0.0)
        change = step * gradient + step**2 / 2 * curvature
        remainders.append(float(moved - value - (p.weights[:, None] * change * direction).sum()))
    assert 2.8 < math.log2(abs(remainders[0] / remainders[1])) < 3.2


# heads on clouds of their own


@every_case
def test_heads_on_clouds_of_their_own(sign: int, symmetric: bool, theta: list[float] | None) -> None:
    p = problem(N, D_, H, symmetric=symmetric, own=True, weights="tracers")
    energy = AttentionEnergy(ConstantHeads(p.D, theta), sign)
    direction = problem(N, D_, H, own=True, seed=1).points
    actual = on_own_clouds(energy, p.points, p.weights, 0.0)
    product = products_on_own_clouds(energy, p.points, p.weights, 0.0, direction)
    for h in range(H):
        single = AttentionEnergy(ConstantHeads(p.D[h : h + 1]), sign)
        measure = ParticleMeasure(p.points[h], p.weights)
        expected = single.evaluate(measure, 0.0)
        assert_close(actual.value[h], expected.value, 1e-14)
        assert_close(actual.first_variation[h], expected.first_variation, 1e-14)
        assert_close(actual.gradient[h], expected.gradient, 1e-14)
        assert_close(product[h], single.hessian_product(measure, 0.0, direction[h]), 1e-13)


def test_heads_on_the_same_cloud_are_the_heads_of_the_energy() -> None:
    energy, measure, p, _ = build(-1, False, None)
    whole = energy.evaluate(measure, 0.0).heads
    heads = on_own_clouds(energy, p.points.expand(H, N, D_), p.weights, 0.0)
    assert whole is not None
    for name, part in (("value", "energy"), ("first_variation", "first_variation"), ("gradient", "gradient")):
        assert_close(getattr(heads, name), getattr(whole, part), 1e-15)


# batches


BATCHES = [((2, 3), ()), ((), (2, 3)), ((3,), (2, 1)), ((2, 1), (3,)), ((2, 3), (2, 3)), ((1,), ())]


@pytest.mark.parametrize(("batch", "paths"), BATCHES)
@pytest.mark.parametrize("own_weights", [False, True])
@pytest.mark.parametrize("theta", [None, [0.2, 0.8]])
def test_batched_equals_looped(
    batch: tuple[int, ...], paths: tuple[int, ...], own_weights: bool, theta: list[float] | None
) -> None:
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.standard_normal((*batch, 4, 2)))
    D = torch.from_numpy(generator.standard_normal((*paths, 2, 2, 2)))
    w = torch.from_numpy(generator.dirichlet(np.ones(4), batch if own_weights else ()))
    direction = torch.from_numpy(generator.standard_normal((*batch, 4, 2)))
    energy, measure = AttentionEnergy(ConstantHeads(D, theta)), ParticleMeasure(x, w)
    actual = energy.evaluate(measure, 0.0, curvature=True)
    assert actual.heads is not None
    value, product = energy.value(measure, 0.0), energy.hessian_product(measure, 0.0, direction)
    shape = torch.broadcast_shapes(batch, paths)
    assert actual.value.shape == value.shape == shape
    exponent = -math.inf
    full = [a.expand(*shape, *a.shape[-k:]) for a, k in ((x, 2), (w, 1), (D, 3), (direction, 2))]
    for index in np.ndindex(*shape):
        xi, wi, Di, vi = (a[index] for a in full)
        single, one = AttentionEnergy(ConstantHeads(Di, theta)), ParticleMeasure(xi, wi)
        expected = single.evaluate(one, 0.0, curvature=True)
        for name in ("value", "first_variation", "gradient", "curvature"):
            assert_close(getattr(actual, name)[index], getattr(expected, name), 1e-14)
        for name in ("energy", "first_variation", "gradient", "mobility", "curvature"):
            assert_close(getattr(actual.heads, name)[index], getattr(expected.heads, name), 1e-14)
        assert_close(value[index], expected.value, 1e-14)
        assert_close(product[index], single.hessian_product(one, 0.0, vi), 1e-13)
        exponent = max(exponent, single.largest_exponent(one, 0.0))
    assert energy.largest_exponent(measure, 0.0) == pytest.approx(exponent, rel=1e-15)


# time


def test_heads_are_taken_at_the_time_asked_for() -> None:
    p, q = problem(5, 3, 2), problem(5, 3, 2, seed=1)
    heads = TabulatedHeads([0.0, 1.0, 3.0], torch.stack([p.D, q.D, p.D]))
    energy, measure = AttentionEnergy(heads), ParticleMeasure(p.points)
    assert energy.moves
    for t, D in ((0.0, p.D), (0.25, 0.75 * p.D + 0.25 * q.D), (1.0, q.D), (2.0, (p.D + q.D) / 2), (3.0, p.D)):
        frozen = AttentionEnergy(ConstantHeads(D))
        assert not frozen.moves
        assert_close(energy.value(measure, t), frozen.value(measure, 0.0), 1e-14)
        assert_close(energy.gradient(measure, t), frozen.gradient(measure, 0.0), 1e-14)
        product = energy.hessian_product(measure, t, p.points)
        assert_close(product, frozen.hessian_product(measure, 0.0, p.points), 1e-13)
        own = torch.stack([p.points, q.points])
        there, here = (on_own_clouds(e, own, measure.weights, s) for e, s in ((energy, t), (frozen, 0.0)))
        assert_close(there.gradient, here.gradient, 1e-14)
        assert energy.largest_exponent(measure, t) == pytest.approx(float(exponents(p.points, D).max()), rel=1e-14)
    with pytest.raises(InvalidInput, match=r"t = 3\.5"):
        energy.value(measure, 3.5)


def test_a_path_is_the_same_whatever_times_are_asked_for() -> None:
    p = problem(5, 3, 2)
    D0 = p.D
    measure = ParticleMeasure(p.points)
    times = [0.0, 0.013, 0.5, 1.0]
    first = AttentionEnergy(OrnsteinUhlenbeckHeads(D0, t1=1.0, seed=7))
    second = AttentionEnergy(OrnsteinUhlenbeckHeads(D0, t1=1.0, seed=7))
    forward = [float(first.value(measure, t)) for t in times]
    backward = [float(second.value(measure, t)) for t in reversed(times)]
    assert forward == backward[::-1]
    assert len(set(forward)) == 4


# invariances


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 9), d=st.integers(2, 5), heads=st.integers(1, 5))
def test_rotations_permutations_and_split_particles(seed: int, n: int, d: int, heads: int) -> None:
    generator = np.random.default_rng(seed)
    p = problem(n, d, heads, symmetric=bool(seed % 2), seed=seed)
    R = torch.from_numpy(np.linalg.qr(generator.standard_normal((d, d)))[0])
    energy, measure = AttentionEnergy(ConstantHeads(p.D)), ParticleMeasure(p.points, p.weights)
    reference = energy.evaluate(measure, 0.0)
    turned = AttentionEnergy(ConstantHeads(R @ p.D @ R.T)).evaluate(ParticleMeasure(p.points @ R.T, p.weights), 0.0)
    assert_close(turned.value, reference.value, 1e-13)
    assert_close(turned.first_variation, reference.first_variation, 1e-13)
    assert_close(turned.gradient, reference.gradient @ R.T, 1e-12)
    order = torch.from_numpy(generator.permutation(n))
    shuffled = energy.evaluate(ParticleMeasure(p.points[order], p.weights[order]), 0.0)
    assert_close(shuffled.value, reference.value, 1e-14)
    assert_close(shuffled.gradient, reference.gradient[order], 1e-13)
    w = torch.cat([p.weights, p.weights[:1] / 4])
    w[0] *= 0.75
    split = energy.evaluate(ParticleMeasure(torch.cat([p.points, p.points[:1]]), w), 0.0)
    assert_close(split.value, reference.value, 1e-14)
    assert_close(split.gradient[:n], reference.gradient, 1e-13)
    assert_close(split.gradient[n], split.gradient[0], 1e-13)


def test_sign_is_not_a_change_of_D() -> None:
    energy, measure, p, _ = build(1, True, None)
    minus = AttentionEnergy(ConstantHeads(p.D), sign=-1).evaluate(measure, 0.0)
    plus = energy.evaluate(measure, 0.0)
    assert torch.equal(minus.value, -plus.value)
    assert torch.equal(minus.gradient, -plus.gradient)
    reversed_heads = AttentionEnergy(ConstantHeads(-p.D)).value(measure, 0.0)
    assert abs(float(reversed_heads - minus.value)) > 0.1


@pytest.mark.parametrize("reduction", [Auto(), Blocked(4096)])
def test_the_reduction_does_not_change_the_result(reduction: Any, device: torch.device, dtype: torch.dtype) -> None:
    p = problem(131, 3, 4, symmetric=False).to(dtype)
    energy = AttentionEnergy(ConstantHeads(p.D), reduction=reduction)
    assert energy.reduction is reduction
    measure = ParticleMeasure(p.points, p.weights).to(device=device)
    actual = energy.evaluate(measure, 0.0)
    q = p.to(F64)
    assert_close(actual.value, total(q.points, q.weights, q.D, None), TOLERANCE[dtype])
    assert_close(actual.gradient, head_gradients(q.points, q.weights, q.D).mean(0), TOLERANCE[dtype])
    assert actual.gradient.device.type == actual.value.device.type == device.type
    direction = torch.flip(measure.points, (0,))
    expected = derivative(lambda x: head_gradients(x, q.weights, q.D).mean(0), q.points, direction.cpu().double())
    assert_close(energy.hessian_product(measure, 0.0, direction), expected, TOLERANCE[dtype])


# tracers


@every_case
def test_tracers_change_nothing(sign: int, symmetric: bool, theta: list[float] | None) -> None:
    energy, measure, p, _ = build(sign, symmetric, theta)
    massive = p.weights > 0
    dropped = ParticleMeasure(p.points[massive], p.weights[massive])
    actual, expected = energy.evaluate(measure, 0.0), energy.evaluate(dropped, 0.0)
    assert int((~massive).sum()) == 2
    assert_close(actual.value, expected.value, 1e-15)
    assert_close(energy.value(measure, 0.0), expected.value, 1e-15)
    assert_close(actual.first_variation[massive], expected.first_variation, 1e-14)
    assert_close(actual.gradient[massive], expected.gradient, 1e-14)
    assert actual.heads is not None
    assert expected.heads is not None
    assert_close(actual.heads.mobility[:, massive], expected.heads.mobility, 1e-14)
    direction = problem(N, D_, H, seed=1).points
    product = energy.hessian_product(measure, 0.0, direction)
    assert_close(product[massive], energy.hessian_product(dropped, 0.0, direction[massive]), 1e-13)


def test_a_tracer_on_a_particle_has_its_field() -> None:
    p = problem(6, 3, 2, symmetric=False)
    weights = torch.cat([p.weights, torch.zeros(2, dtype=F64)])
    points = torch.cat([p.points, p.points[2:4]])
    actual = AttentionEnergy(ConstantHeads(p.D)).evaluate(ParticleMeasure(points, weights), 0.0)
    assert_close(actual.gradient[6:], actual.gradient[2:4], 1e-14)


@pytest.mark.parametrize("symmetric", [True, False])
def test_tracers_change_nothing_even_where_exp_overflows(symmetric: bool, dtype: torch.dtype) -> None:
    p = problem(N, D_, H, symmetric=symmetric, weights="tracers").to(dtype)
    massive = p.weights > 0
    points = p.points.clone()
    points[~massive] *= 1e4
    energy = AttentionEnergy(ConstantHeads(p.D))
    measure, dropped = ParticleMeasure(points, p.weights), ParticleMeasure(points[massive], p.weights[massive])
    actual, expected = energy.evaluate(measure, 0.0), energy.evaluate(dropped, 0.0)
    assert not bool(actual.first_variation.isfinite().all())
    assert_close(actual.value, expected.value, TOLERANCE[dtype])
    assert_close(energy.value(measure, 0.0), expected.value, TOLERANCE[dtype])
    assert_close(actual.gradient[massive], expected.gradient, TOLERANCE[dtype])
    direction = problem(N, D_, H, seed=1).to(dtype).points
    product = energy.hessian_product(measure, 0.0, direction)
    assert_close(product[massive], energy.hessian_product(dropped, 0.0, direction[massive]), TOLERANCE[dtype])


def test_a_head_of_weight_zero_changes_nothing_even_where_exp_overflows() -> None:
    p = problem(5, 3, 2)
    D = torch.cat([p.D, 1e5 * p.D[:1]])
    measure = ParticleMeasure(p.points, p.weights)
    actual = AttentionEnergy(ConstantHeads(D, [0.3, 0.7, 0.0])).evaluate(measure, 0.0)
    expected = AttentionEnergy(ConstantHeads(p.D, [0.3, 0.7])).evaluate(measure, 0.0)
    assert actual.heads is not None
    assert bool(actual.heads.energy[2].isinf())
    assert_close(actual.value, expected.value, 1e-14)
    assert_close(actual.first_variation, expected.first_variation, 1e-14)
    assert_close(actual.gradient, expected.gradient, 1e-14)


# overflow and underflow


@pytest.mark.parametrize(
    ("x", "precision", "exponent", "finite"),
    [(10.0, torch.float32, 100.0, False), (10.0, F64, 100.0, True), (30.0, F64, 900.0, False)],
)
def test_overflow_is_returned_and_explained(x: float, precision: torch.dtype, exponent: float, finite: bool) -> None:
    energy = AttentionEnergy(ConstantHeads(torch.eye(2)[None]))
    measure = ParticleMeasure(torch.tensor([[x, 0.0]], dtype=precision))
    assert energy.largest_exponent(measure, 0.0) == exponent
    for value in (energy.value(measure, 0.0), energy.evaluate(measure, 0.0).value):
        assert bool(value.isfinite()) == finite
        if finite:
            assert float(value.log()) == pytest.approx(99.306853, abs=1e-6)
        else:
            assert float(value) == math.inf
    assert bool(energy.gradient(measure, 0.0)[0, 0].isfinite()) == finite


def test_underflow_is_zero_without_a_fault() -> None:
    energy = AttentionEnergy(ConstantHeads(-torch.eye(2)[None]))
    measure = ParticleMeasure([[30.0, 0.0]])
    assert float(energy.value(measure, 0.0)) == 0.0
    assert bool((energy.gradient(measure, 0.0) == 0).all())
    assert energy.largest_exponent(measure, 0.0) == -900.0


def test_coincident_particles() -> None:
    for copies in (2, 29):
        measure = ParticleMeasure([[0.0, 0.0]] * copies + [[1.0, 0.0]])
        evaluation = AttentionEnergy(ConstantHeads([[[1.0, 0.5], [0.5, 2.0]]])).evaluate(measure, 0.0)
        gradient = evaluation.gradient
        assert_close(gradient[:copies], gradient[:1].expand(copies, 2), 1e-14)
        # At 0 only the particle (1, 0) of weight 1/(copies + 1) pulls.
        assert_close(gradient[0], torch.tensor([1.0, 0.5], dtype=F64) / (copies + 1), 1e-14)


def test_one_particle() -> None:
    D = torch.tensor([[[2.0, 1.0], [0.0, -1.0]]], dtype=F64)
    x = torch.tensor([[0.6, 0.8]], dtype=F64)
    kernel = math.exp(float(x[0] @ D[0] @ x[0]))
    actual = AttentionEnergy(ConstantHeads(D)).evaluate(ParticleMeasure(x), 0.0)
    assert float(actual.value) == pytest.approx(kernel / 2, rel=1e-14)
    assert_close(actual.first_variation, torch.tensor([kernel], dtype=F64), 1e-14)
    assert_close(actual.gradient, kernel * x @ (D[0] + D[0].T) / 2, 1e-14)


# closed forms


@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0])
def test_uniform_measure_on_the_circle(beta: float) -> None:
    angles = 2 * math.pi * torch.arange(64, dtype=F64) / 64
    points = torch.stack([angles.cos(), angles.sin()], -1)
    value = AttentionEnergy(ConstantHeads(beta * torch.eye(2)[None])).value(ParticleMeasure(points), 0.0)
    # I_0(beta) / 2
    assert_close(value, torch.special.i0(torch.tensor(beta, dtype=F64)) / 2, 1e-14)
    if beta == 1.0:
        assert float(value) == pytest.approx(0.63303, abs=5e-6)


@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0])
def test_uniform_measure_on_the_sphere(beta: float) -> None:
    heights, weights = np.polynomial.legendre.leggauss(16)
    angles = 2 * math.pi * np.arange(32) / 32
    radius = np.sqrt(1 - heights**2)
    points = np.stack(
        [np.outer(radius, np.cos(angles)), np.outer(radius, np.sin(angles)), np.outer(heights, np.ones(32))], -1
    ).reshape(-1, 3)
    measure = ParticleMeasure(points, np.repeat(weights / 2 / 32, 32))
    energy = AttentionEnergy(ConstantHeads(beta * torch.eye(3)[None]))
    assert_close(energy.value(measure, 0.0), math.sinh(beta) / (2 * beta), 1e-13)
    # The uniform measure is stationary on the sphere: the gradient points outwards.
    gradient = energy.gradient(measure, 0.0)
    slope = (math.cosh(beta) - math.sinh(beta) / beta) / beta * beta
    assert_close(gradient, slope * measure.points, 1e-12)


def test_four_points_on_the_circle() -> None:
    s, d1, d2 = 0.19371, 1.0, 0.5
    a, b = math.sqrt(s), math.sqrt(1 - s)
    measure = ParticleMeasure([[a, b], [-a, b], [a, -b], [-a, -b]])
    value = AttentionEnergy(ConstantHeads([[[d1, 0.0], [0.0, d2]]])).value(measure, 0.0)
    assert 2 * float(value) == pytest.approx(math.cosh(d1 * s) * math.cosh(d2 * (1 - s)), rel=1e-14)
    assert 2 * float(value) == pytest.approx(1.10274, abs=1e-5)


# refusals


def test_heads_and_points_must_fit() -> None:
    energy = AttentionEnergy(ConstantHeads(torch.eye(3)[None]))
    measure = ParticleMeasure([[1.0, 0.0]])
    for call in (
        lambda: energy.evaluate(measure, 0.0),
        lambda: energy.value(measure, 0.0),
        lambda: energy.hessian_product(measure, 0.0, measure.points),
        lambda: on_own_clouds(energy, measure.points[None], measure.weights, 0.0),
        lambda: energy.largest_exponent(measure, 0.0),
    ):
        with pytest.raises(InvalidInput, match=r"heads of shape \(1, 3, 3\) do not fit points of shape \(1, (1, )?2\)"):
            call()


@pytest.mark.parametrize("shape", [(2, 2), (3, 2, 2), (1, 2, 2, 2)])
def test_head_wise_points_must_have_one_cloud_for_every_head(shape: tuple[int, ...]) -> None:
    energy = AttentionEnergy(ConstantHeads(torch.ones(2, 2, 2)))
    points, weights = torch.zeros(shape, dtype=F64), torch.full((2,), 0.5, dtype=F64)
    for call in (
        lambda: on_own_clouds(energy, points, weights, 0.0),
        lambda: products_on_own_clouds(energy, points, weights, 0.0, points),
    ):
        with pytest.raises(InvalidInput, match=r"head-wise points need shape \(2, n, d\)"):
            call()


@pytest.mark.parametrize("shape", [(2,), (1, 2), (3, 2), (2, 1), (5, 2, 2)])
def test_directions_must_fit(shape: tuple[int, ...]) -> None:
    energy = AttentionEnergy(ConstantHeads(torch.eye(2)[None]))
    with pytest.raises(InvalidInput, match="direction has shape"):
        energy.hessian_product(ParticleMeasure([[1.0, 0.0], [0.0, 1.0]]), 0.0, torch.ones(shape, dtype=F64))


@pytest.mark.parametrize("heads", [torch.eye(2)[None], None, ConstantHeads, 3])
def test_heads_must_be_heads(heads: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"heads must be an instance of AbstractHeads such as ConstantHeads\(D\), got"
    ):
        AttentionEnergy(heads)


@pytest.mark.parametrize("sign", [0, 2, -1.5, True, "+"])
def test_signs(sign: Any) -> None:
    with pytest.raises(InvalidInput, match="sign must be"):
        AttentionEnergy(ConstantHeads(torch.eye(2)[None]), sign=sign)


@pytest.mark.parametrize("reduction", ["auto", Blocked, 3])
def test_reductions_must_be_reductions(reduction: Any) -> None:
    with pytest.raises(InvalidInput, match="reduction must be"):
        AttentionEnergy(ConstantHeads(torch.eye(2)[None]), reduction=reduction)


def test_what_it_says_of_itself() -> None:
    energy = jko.AttentionEnergy(ConstantHeads(torch.zeros(4, 2, 2)), sign=-1, reduction=Blocked())
    assert energy.description == "attention, H = 4, sign = -1, pair sums: blocked"
    assert energy.attention_parts == (energy,)
    assert not hasattr(energy, "__dict__")
    with pytest.raises((AttributeError, TypeError)):
        energy.sign = 1  # type: ignore[misc]
    evaluation = energy.evaluate(ParticleMeasure([[1.0, 0.0]]), 0.0)
    assert isinstance(evaluation, Evaluation)
    assert isinstance(evaluation.heads, HeadEvaluation)


def test_the_measure_is_not_changed() -> None:
    energy, measure, p, _ = build(1, False, None)
    energy.evaluate(measure, 0.0)
    energy.hessian_product(measure, 0.0, measure.points)
    assert torch.equal(measure.points, p.points)
    assert torch.equal(measure.weights, p.weights)
