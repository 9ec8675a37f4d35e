"""The contract of energies without heads. A new one is tested by adding its row to ENERGIES."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck

from jko.energies import (
    AbstractEnergy,
    AttentionEnergy,
    FunctionEnergy,
    InteractionEnergy,
    PotentialEnergy,
    Scaled,
)
from jko.errors import InvalidInput
from jko.heads import ConstantHeads
from jko.kernels import FunctionKernel, GaussianKernel, LogarithmicKernel, PowerKernel
from jko.measure import ParticleMeasure
from jko.reductions import Blocked
from tests.energies.test_algebra import assert_combined, attention
from tests.oracles.attention import assert_close, problem
from tests.oracles.energies import on_own_clouds, products_on_own_clouds

F64 = torch.float64
T = 0.5


def quartic(x: Tensor) -> Tensor:
    return x.square().sum(-1).square() / 4 + x[..., 0] * x[..., -1]


def quartic_gradient(x: Tensor) -> Tensor:
    gradient = x.square().sum(-1, keepdim=True) * x
    gradient[..., 0] += x[..., -1]
    gradient[..., -1] += x[..., 0]
    return gradient


def quartic_product(x: Tensor, v: Tensor) -> Tensor:
    result = x.square().sum(-1, keepdim=True) * v + 2 * (x * v).sum(-1, keepdim=True) * x
    result[..., 0] += v[..., -1]
    result[..., -1] += v[..., 0]
    return result


def spread(points: Tensor, weights: Tensor, t: float) -> Tensor:
    """Variance times a function of the mean: neither a potential nor an interaction."""
    mean = weights @ points
    return (1 + t) * (weights @ (points - mean).square().sum(-1)) * mean.cos().prod() + (weights @ points[:, 0]) ** 3


ENERGIES: dict[str, AbstractEnergy] = {
    "potential": PotentialEnergy(quartic),
    "potential in time": PotentialEnergy(lambda x, t: (1 + t) * quartic(x)),
    "potential with gradient": PotentialEnergy(quartic, gradient=quartic_gradient),
    "potential with Hessian": PotentialEnergy(quartic, gradient=quartic_gradient, hessian_product=quartic_product),
    "Gaussian": InteractionEnergy(GaussianKernel(0.8), Blocked(4096)),
    "square": InteractionEnergy(PowerKernel(2)),
    "Riesz": InteractionEnergy(PowerKernel(-0.5)),
    "distance": InteractionEnergy(PowerKernel(1)),
    "logarithm": InteractionEnergy(LogarithmicKernel()),
    "kernel function": InteractionEnergy(FunctionKernel(lambda x, y: ((x * y).sum(-1) / 2).exp())),
    "function": FunctionEnergy(spread),
}
every_energy = pytest.mark.parametrize("name", ENERGIES)
massive_only = ("function",)
# A function of all points and weights has no first variation elsewhere, and wants every weight positive.
every_local_energy = pytest.mark.parametrize("name", [name for name in ENERGIES if name != "function"])


def measure(*batch: int, tracers: bool = True, dtype: torch.dtype = F64, shared: bool = True) -> ParticleMeasure:
    generator = np.random.default_rng((1, *batch))
    x = torch.from_numpy(generator.standard_normal((*batch, 5, 3)))
    w = torch.tensor([0.3, 0.0 if tracers else 0.15, 0.1, 0.4, 0.2 if tracers else 0.05], dtype=F64)
    if not shared:
        w = torch.stack([w.roll(k) for k in range(math.prod(batch))]).reshape(*batch, 5)
    return ParticleMeasure(x.to(dtype), w.to(dtype))


def measure_for(name: str, *batch: int, **options: Any) -> ParticleMeasure:
    return measure(*batch, tracers=name not in massive_only, **options)


def differences(function: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor, h: float = 1e-5) -> Tensor:
    return (function(x + h * direction) - function(x - h * direction)) / (2 * h)


def test_every_energy_is_here() -> None:
    ours = {c.__name__ for c in AbstractEnergy.__subclasses__() if c.__module__.startswith("jko.")}
    combined = {"AbstractHeadAverage", "Scaled", "Sum", "_HeadsApart"}
    assert ours - combined <= {type(energy).__name__ for energy in ENERGIES.values()}


@every_energy
def test_the_derivative_in_a_point_is_its_weight_times_the_gradient(name: str) -> None:
    energy, mu = ENERGIES[name], measure_for(name)
    evaluation = energy.evaluate(mu, T)
    for i in range(5):
        for k in range(3):
            e = torch.zeros_like(mu.points)
            e[i, k] = 1.0
            expected = differences(lambda x: energy.value(mu.moved(x), T), mu.points, e)
            assert_close(mu.weights[i] * evaluation.gradient[i, k], expected, 1e-8, scale=1.0)
    assert_close(energy.value(mu, T), evaluation.value, 1e-14)
    assert torch.equal(energy.gradient(mu, T), evaluation.gradient)
    assert evaluation.value.dtype == F64
    assert evaluation.heads is None


@every_energy
def test_gradients_by_gradcheck(name: str) -> None:
    energy, mu = ENERGIES[name], measure_for(name)

    class Value(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
            ctx.save_for_backward(x)
            ctx.factor = factor
            return energy.value(mu.moved(x), T)

        @staticmethod
        def backward(ctx: Any, upstream: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return upstream * ctx.factor * mu.weights[:, None] * energy.gradient(mu.moved(x), T), None

    x = mu.points.clone().requires_grad_()
    assert gradcheck(lambda x: Value.apply(x, 1.0), (x,), rtol=1e-6)
    with pytest.raises(GradcheckError):
        gradcheck(lambda x: Value.apply(x, 1.001), (x,), rtol=1e-6)


@every_energy
def test_the_derivative_in_the_weights_is_the_first_variation(name: str) -> None:
    energy, mu = ENERGIES[name], measure(tracers=False)
    variation = energy.evaluate(mu, T).first_variation
    for i in range(1, 5):
        # Along the simplex, where constants do not matter.
        e = torch.zeros(5, dtype=F64)
        e[0], e[i] = -1.0, 1.0
        expected = differences(lambda w: energy.value(ParticleMeasure(mu.points, w), T), mu.weights, e)
        assert_close(variation[i] - variation[0], expected, 1e-8, scale=1.0)


@every_energy
def test_the_derivative_of_the_gradient_is_the_hessian_product(name: str) -> None:
    energy, mu = ENERGIES[name], measure_for(name)
    direction = torch.flip(mu.points, (-1,)) + 0.5
    expected = differences(lambda x: energy.gradient(mu.moved(x), T), mu.points, direction)
    assert_close(energy.hessian_product(mu, T, direction), expected, 1e-8)
    with pytest.raises(InvalidInput, match="direction has shape"):
        energy.hessian_product(mu, T, direction[:3])


@every_energy
def test_the_hessian_is_symmetric(name: str) -> None:
    energy, mu = ENERGIES[name], measure_for(name)
    one, two = torch.flip(mu.points, (-1,)), torch.flip(mu.points, (-2,))
    w = mu.weights[:, None]
    left = (w * one * energy.hessian_product(mu, T, two)).sum()
    right = (w * two * energy.hessian_product(mu, T, one)).sum()
    assert_close(left, right, 1e-12, scale=1.0)


def test_a_function_of_all_points_knows_no_other_points_and_no_tracers() -> None:
    energy, mu = ENERGIES["function"], measure_for("function")
    assert energy.first_variation_at(measure(2).points.reshape(-1, 3), mu, T) is None
    assert energy.evaluate(mu, T, curvature=True).curvature is None
    for call in (energy.evaluate, energy.value, energy.gradient):
        with pytest.raises(InvalidInput, match=r"weights\[1\] is 0.*must be positive"):
            call(measure(), T)
    with pytest.raises(InvalidInput, match=r"weights\[1\] is 0"):
        energy.hessian_product(measure(), T, mu.points)


@every_local_energy
def test_the_first_variation_at_other_points(name: str) -> None:
    energy, mu = ENERGIES[name], measure_for(name)
    targets = measure(2).points.reshape(-1, 3)
    field = energy.first_variation_at(targets, mu, T)
    assert field is not None
    for k in range(3):
        e = torch.eye(3, dtype=F64)[k].expand_as(targets)
        expected = differences(lambda z: energy.first_variation_at(z, mu, T).value, targets, e)  # type: ignore[union-attr]
        assert_close(field.gradient[:, k], expected, 1e-7)


@pytest.mark.parametrize("name", [name for name in ENERGIES if name not in ("function", "Riesz", "logarithm")])
def test_the_first_variation_at_the_points_is_that_of_the_evaluation(name: str) -> None:
    energy, mu = ENERGIES[name], measure_for(name)
    evaluation = energy.evaluate(mu, T)
    here = energy.first_variation_at(mu.points, mu, T)
    assert here is not None
    assert_close(here.value, evaluation.first_variation, 1e-14)
    assert_close(here.gradient, evaluation.gradient, 1e-14)


@every_local_energy
def test_curvature_with_the_measure_fixed(name: str) -> None:
    energy, mu = ENERGIES[name], measure_for(name)
    assert energy.evaluate(mu, T).curvature is None
    curvature = energy.evaluate(mu, T, curvature=True).curvature
    assert curvature is not None
    for i in range(5):
        # The particle as a tracer feels the others as they are: its own pair adds only its own curvature at 0.
        others = torch.arange(5) != i
        rest = mu.weights[others] / mu.weights[others].sum()
        part = ParticleMeasure(mu.points[others], rest)
        scale = float(mu.weights[others].sum()) if isinstance(energy, InteractionEnergy) else 1.0

        def pull(z: Tensor, part: ParticleMeasure = part) -> Tensor:
            return energy.first_variation_at(z, part, T).gradient  # type: ignore[union-attr]

        for k in range(3):
            e = torch.eye(3, dtype=F64)[k][None]
            expected = scale * differences(pull, mu.points[i : i + 1], e)
            own = {"Gaussian": -1 / 0.64 * e[0], "square": 2 * e[0]}.get(name, 0 * e[0])
            if name == "kernel function":
                x = mu.points[i]
                own = (x.square().sum() / 2).exp() * x * x[k] / 4
            assert_close(curvature[i, k], expected[0] + mu.weights[i] * own, 1e-7, scale=1.0)


# tracers, batches, precision


@every_energy
@pytest.mark.parametrize(("batch", "shared"), [((2,), True), ((2, 3), True), ((3,), False)])
def test_a_batch_is_a_loop(name: str, batch: tuple[int, ...], shared: bool) -> None:
    energy, mu = ENERGIES[name], measure_for(name, *batch, shared=shared)
    direction = torch.flip(mu.points, (-2,))
    evaluation, value = energy.evaluate(mu, T, curvature=True), energy.value(mu, T)
    product = energy.hessian_product(mu, T, direction)
    assert value.shape == evaluation.value.shape == batch
    for index in np.ndindex(*batch):
        single = ParticleMeasure(mu.points[index], mu.weights if shared else mu.weights[index])
        expected = energy.evaluate(single, T, curvature=True)
        for part in ("value", "first_variation", "gradient", "curvature"):
            if getattr(expected, part) is not None:
                assert_close(getattr(evaluation, part)[index], getattr(expected, part), 1e-14)
        assert_close(value[index], expected.value, 1e-14)
        assert_close(product[index], energy.hessian_product(single, T, direction[index]), 1e-14)
    common = energy.hessian_product(mu, T, direction[(0,) * len(batch)])
    assert common.shape == mu.points.shape


@every_local_energy
def test_a_tracer_changes_nothing(name: str) -> None:
    energy, mu = ENERGIES[name], measure()
    massive = mu.weights > 0
    without = ParticleMeasure(mu.points[massive], mu.weights[massive])
    actual, expected = (energy.evaluate(m, T, curvature=True) for m in (mu, without))
    assert_close(actual.value, expected.value, 1e-14)
    for part in ("first_variation", "gradient", "curvature"):
        assert_close(getattr(actual, part)[massive], getattr(expected, part), 1e-14)
    field = energy.first_variation_at(mu.points[~massive], without, T)
    assert field is not None
    assert_close(actual.gradient[~massive], field.gradient, 1e-13)
    products = [energy.hessian_product(m, T, m.points) for m in (mu, without)]
    assert_close(products[0][massive], products[1], 1e-13)


@every_energy
def test_single_precision(name: str) -> None:
    energy, mu = ENERGIES[name], measure_for(name, dtype=torch.float32)
    wide = ParticleMeasure(mu.points.double(), mu.weights.double() / mu.weights.double().sum())
    actual, expected = energy.evaluate(mu, T, curvature=True), energy.evaluate(wide, T, curvature=True)
    assert actual.value.dtype == F64
    assert_close(actual.value, expected.value, 1e-5, scale=1.0)
    for part in ("first_variation", "gradient", "curvature"):
        if getattr(expected, part) is not None:
            assert getattr(actual, part).dtype == torch.float32
            assert_close(getattr(actual, part), getattr(expected, part), 2e-5)
    directions = [torch.flip(m.points, (-1,)) for m in (mu, wide)]
    product = energy.hessian_product(mu, T, directions[0])
    assert product.dtype == torch.float32
    assert_close(product, energy.hessian_product(wide, T, directions[1]), 2e-5)


@every_energy
def test_one_particle(name: str) -> None:
    energy, mu = ENERGIES[name], ParticleMeasure([[0.5, -1.0, 2.0]])
    evaluation = energy.evaluate(mu, T, curvature=True)
    assert evaluation.gradient.shape == (1, 3)
    assert bool(evaluation.gradient.isfinite().all())
    if name in ("Gaussian", "square", "Riesz", "distance", "logarithm"):
        assert bool((evaluation.gradient == 0).all())
        assert float(evaluation.value) == (0.5 if name == "Gaussian" else 0.0)
        assert bool((energy.hessian_product(mu, T, mu.points) == 0).all())


@every_energy
def test_the_order_of_particles_does_not_matter(name: str) -> None:
    energy, mu = ENERGIES[name], measure_for(name)
    order = torch.tensor([3, 1, 4, 0, 2])
    actual = energy.evaluate(ParticleMeasure(mu.points[order], mu.weights[order]), T)
    expected = energy.evaluate(mu, T)
    assert_close(actual.value, expected.value, 1e-14)
    assert_close(actual.gradient, expected.gradient[order], 1e-14)


@every_energy
def test_callers_without_gradients(name: str) -> None:
    energy, mu = ENERGIES[name], measure_for(name)
    expected, product = energy.evaluate(mu, T, curvature=True), energy.hessian_product(mu, T, mu.points)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            actual = energy.evaluate(mu, T, curvature=True)
            assert_close(actual.gradient, expected.gradient, 0.0)
            assert_close(energy.hessian_product(mu, T, mu.points), product, 0.0)
    assert not expected.gradient.requires_grad
    assert not expected.value.requires_grad
    assert not energy.value(mu, T).requires_grad
    assert not product.requires_grad


# sums, multiples, heads


@pytest.mark.parametrize("name", [name for name in ENERGIES if name not in massive_only])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_sums_with_attention(name: str, batch: tuple[int, ...]) -> None:
    energy, a, mu = ENERGIES[name], attention(), measure_for(name, *batch)
    assert_combined(a + energy, [(1, a), (1, energy)], mu, T)
    assert_combined(-0.5 * energy + 2 * a, [(-0.5, energy), (2, a)], mu, T)
    assert_combined(-1 * energy, [(-1, energy)], mu, T)


@every_energy
def test_every_head_carries_the_other_energy_on_its_own_cloud(name: str) -> None:
    energy, a = ENERGIES[name], attention()
    own, w = problem(5, 3, 2, own=True).points, measure_for(name).weights
    total = a + (-2.0) * energy
    heads = on_own_clouds(total, own, w, T)
    product = products_on_own_clouds(total, own, w, T, own)
    for h in range(2):
        single = AttentionEnergy(ConstantHeads(a.heads.at(0.0)[h : h + 1])) + (-2.0) * energy
        mu = ParticleMeasure(own[h], w)
        expected = single.evaluate(mu, T)
        assert_close(heads.value[h], expected.value, 1e-13)
        assert_close(heads.gradient[h], expected.gradient, 1e-13)
        assert_close(product[h], single.hessian_product(mu, T, own[h]), 1e-13)


@every_energy
def test_no_heads_of_its_own(name: str) -> None:
    energy, mu = ENERGIES[name], measure()
    with pytest.raises(InvalidInput, match=re.escape(f"{energy.description} is no average over heads")):
        energy.by_head()
    assert energy.members([0, 1]) is energy
    assert energy.attention_parts == ()
    assert energy.largest_exponent(mu, T) == -math.inf


@every_energy
def test_coefficients_in_time(name: str) -> None:
    energy, mu = ENERGIES[name], measure_for(name)
    total = Scaled(energy, lambda t: math.sin(math.pi * t)) + Scaled(energy, 0.0)
    assert total.moves
    evaluation = total.evaluate(mu, 0.0)
    assert float(evaluation.value) == float(total.value(mu, 0.0)) == 0.0
    assert bool((evaluation.gradient == 0).all())
    assert abs(float(total.value(mu, 1.0))) < 1e-12
    assert_close(total.gradient(mu, 1.5), -energy.gradient(mu, 1.5), 1e-14)


def test_what_they_say_of_themselves() -> None:
    assert [ENERGIES[name].moves for name in ("potential", "potential in time", "square", "function")] == [
        False,
        True,
        False,
        True,
    ]
    assert ENERGIES["potential"].description == "potential quartic(x)"
    assert ENERGIES["potential in time"].description == "potential <lambda>(x, t)"
    assert ENERGIES["Gaussian"].description == "interaction Gaussian of scale 0.8, pair sums: blocked"
    assert ENERGIES["square"].description == "interaction |x - y|^2, pair sums: auto (blocked)"
    assert ENERGIES["function"].description == "function spread"
    energy: AbstractEnergy
    for energy in ENERGIES.values():
        assert not hasattr(energy, "__dict__")
