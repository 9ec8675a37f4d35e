from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from jko.energies import PotentialEnergy
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure
from tests.oracles.attention import assert_close

F64 = torch.float64
MU = ParticleMeasure([[0.5, -1.0], [2.0, 0.25], [-0.5, 0.0]], [0.5, 0.25, 0.25])


def square(x: Tensor) -> Tensor:
    return 0.5 * x.square().sum(-1)


class Module(torch.nn.Module):
    """A potential with parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return square(x)


def test_closed_form() -> None:
    evaluation = PotentialEnergy(square).evaluate(MU, 0.0, curvature=True)
    variation = torch.tensor([0.625, 2.03125, 0.125], dtype=F64)
    assert torch.equal(evaluation.first_variation, variation)
    assert torch.equal(evaluation.gradient, MU.points)
    assert torch.equal(evaluation.value, MU.weights @ variation)
    assert torch.equal(evaluation.curvature, torch.eye(2, dtype=F64).expand(3, 2, 2))


@pytest.mark.parametrize(
    ("V", "moves"),
    [
        (square, False),
        (Module(), False),
        (lambda x, scale=2.0: scale * square(x), False),
        (lambda x, t: t * square(x), True),
        (functools.partial(lambda a, x: a * square(x), 3.0), False),
        (functools.partial(lambda a, x, t: a * square(x), 3.0), True),
    ],
)
def test_whether_it_moves_is_read_off_the_signature(V: Any, moves: bool) -> None:
    energy = PotentialEnergy(V)
    assert energy.moves == moves
    assert energy.evaluate(MU, 1.0).gradient.shape == (3, 2)


def test_a_default_for_the_time_does_not_ask_for_it() -> None:
    def V(x: Tensor, t: float = 0.0) -> Tensor:
        return (1 + t) * square(x)

    assert not PotentialEnergy(V).moves
    moving = PotentialEnergy(V, moves=True)
    assert moving.moves
    assert_close(moving.value(MU, 1.0), 2 * PotentialEnergy(V).value(MU, 1.0), 1e-15)


def test_given_derivatives_take_the_time_as_well() -> None:
    energy = PotentialEnergy(
        lambda x, t: t * square(x), gradient=lambda x, t: t * x, hessian_product=lambda x, v, t: t * v
    )
    evaluation = energy.evaluate(MU, 3.0, curvature=True)
    assert_close(evaluation.gradient, 3 * MU.points, 1e-15)
    assert_close(evaluation.curvature, 3 * torch.eye(2, dtype=F64).expand(3, 2, 2), 1e-15)
    assert_close(energy.hessian_product(MU, 3.0, MU.points), 3 * MU.points, 1e-15)


def test_a_linear_potential_has_no_curvature() -> None:
    slope = torch.tensor([1.0, -2.0], dtype=F64)
    energy = PotentialEnergy(lambda x: x @ slope)
    evaluation = energy.evaluate(MU, 0.0, curvature=True)
    assert_close(evaluation.gradient, slope.expand(3, 2), 1e-15)
    assert_close(evaluation.curvature, torch.zeros(3, 2, 2), 0.0)
    assert_close(energy.hessian_product(MU, 0.0, MU.points), torch.zeros(3, 2), 0.0)


def test_a_gradient_that_autograd_cannot_follow() -> None:
    energy = PotentialEnergy(square, gradient=lambda x: torch.from_numpy(x.detach().numpy().copy()))
    evaluation = energy.evaluate(MU, 0.0, curvature=True)
    assert_close(evaluation.gradient, MU.points, 1e-15)
    assert evaluation.curvature is None
    with pytest.raises(InvalidInput, match="give hessian_product="):
        energy.hessian_product(MU, 0.0, MU.points)


def test_a_given_gradient_needs_no_differentiable_potential() -> None:
    energy = PotentialEnergy(lambda x: square(x).detach(), gradient=lambda x: x)
    evaluation = energy.evaluate(MU, 0.0, curvature=True)
    assert_close(evaluation.curvature, torch.eye(2, dtype=F64).expand(3, 2, 2), 1e-15)
    assert_close(energy.hessian_product(MU, 0.0, MU.points), MU.points, 1e-15)


def test_a_tracer_adds_nothing_even_where_the_potential_is_infinite() -> None:
    mu = ParticleMeasure([[0.0], [1.0]], [0.0, 1.0])
    energy = PotentialEnergy(lambda x: -x[..., 0].log())
    assert float(energy.value(mu, 0.0)) == 0.0
    assert float(energy.evaluate(mu, 0.0).value) == 0.0
    assert energy.evaluate(mu, 0.0).first_variation.tolist() == [torch.inf, 0.0]


def test_parameters_get_no_gradients() -> None:
    with torch.random.fork_rng(devices=[]):
        module = torch.nn.Linear(2, 1).double()
    energy = PotentialEnergy(lambda x: module(x)[..., 0].square())
    energy.evaluate(MU, 0.0)
    energy.hessian_product(MU, 0.0, MU.points)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not energy.value(MU, 0.0).requires_grad


@pytest.mark.parametrize(
    ("V", "message"),
    [
        (lambda x: x, r"V must return a tensor of shape \(3,\) for these points, got shape \(3, 2\)"),
        (lambda x: x.sum(), r"got shape \(\)"),
        (lambda x: 1.0, "got float"),
        (lambda x: square(x).detach(), "autograd"),
        (lambda x: x.new_zeros(3), "a constant as 0"),
    ],
)
def test_potentials_that_are_none(V: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PotentialEnergy(V).evaluate(MU, 0.0)


def test_refusals() -> None:
    for arguments, options in (
        ((3,), {}),
        ((None,), {}),
        ((square,), {"gradient": 3}),
        ((square,), {"hessian_product": 1}),
    ):
        with pytest.raises(InvalidInput, match="must be a function of points, got"):
            PotentialEnergy(*arguments, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"gradient must return a tensor of shape \(3, 2\)"):
        PotentialEnergy(square, gradient=square).evaluate(MU, 0.0)
    with pytest.raises(InvalidInput, match=r"hessian_product must return a tensor of shape \(3, 2\)"):
        PotentialEnergy(square, hessian_product=lambda x, v: v[0]).hessian_product(MU, 0.0, MU.points)
