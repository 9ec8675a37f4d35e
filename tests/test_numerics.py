"""The scalar functions against 60-digit decimal series."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import pytest
import torch
from torch import Tensor

from jko.numerics import adjoint_coefficients, all_finite, curvature_coefficients, exp_coefficients, squared_angle
from tests.devices.pretended import watched

RADII = [0.0, 1e-200, 1e-20, 1e-8, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.7, 0.999, 1.0, 1.001, 1.4, 1.7, 1.999, 2.0, 2.001, 2.5]
RADII += [2.9, 3.1, math.pi, 4.0, 6.0]
SCALES = (1.0, 1.0, 1 / 3, 1 / 15, 1 / 105)  # of c0 ... c4 at 0


def oracle(order: int, q: float) -> float:
    """Return c_order(q): c0 = cos sqrt q, c1 = sin sqrt q / sqrt q, c_{k+1} = 2 c_k'."""
    with localcontext() as context:
        context.prec = 60
        total, x = Decimal(0), Decimal(q)
        for k in range(60):
            # Differentiated j times, term by term; 0^0 is 1 here and an error in decimal arithmetic.
            j = max(order - 1, 0)
            factor = Decimal((-1) ** k * 2**j * math.perm(k, j)) / math.factorial(2 * k + (order > 0))
            term = factor * (x ** (k - j) if k > j else k == j)
            total += term
        return float(total)


def test_the_oracle_agrees_with_the_closed_forms() -> None:
    r = 2.5
    c, s = math.cos(r), math.sin(r)
    closed = (c, s / r, (r * c - s) / r**3, (3 * s - 3 * r * c - r * r * s) / r**5)
    for order, value in enumerate(closed):
        assert oracle(order, r * r) == pytest.approx(value, rel=1e-14)


def families(q: Tensor) -> list[tuple[int, Tensor]]:
    return [
        *enumerate(exp_coefficients(q)),
        *enumerate(adjoint_coefficients(q), start=1),
        *enumerate(curvature_coefficients(q), start=1),
    ]


@pytest.mark.parametrize("gradient", [False, True])
def test_values(gradient: bool, dtype: torch.dtype) -> None:
    q = torch.tensor(RADII, dtype=torch.float64).square().to(dtype).requires_grad_(gradient)
    eps = torch.finfo(dtype).eps
    for order, values in families(q):
        assert values.dtype == dtype
        for argument, value in zip(q.tolist(), values.tolist(), strict=True):
            exact = oracle(order, argument)
            # A few ulp of the value; near a zero of the function, of its size there.
            assert value == pytest.approx(exact, rel=8 * eps, abs=2 * eps * SCALES[order]), (order, argument)


@pytest.mark.parametrize("radius", [0.0, 1e-9, 1e-8, 1e-4, 2.8e-4, 0.008, 0.0081, 0.04, 0.045, 0.13, 0.14, 0.28, 0.29])
def test_short_series_are_exact_to_rounding(radius: float) -> None:
    q = torch.tensor([radius**2 / 2, radius**2], dtype=torch.float64)
    for order, values in families(q):
        for argument, value in zip(q.tolist(), values.tolist(), strict=True):
            assert value == pytest.approx(oracle(order, argument), rel=3e-16), (order, argument)


@pytest.mark.parametrize("gradient", [False, True])
def test_values_on_a_device_are_those_of_the_cpu(gradient: bool, accelerator: torch.device) -> None:
    q = torch.tensor(RADII).square()
    with watched() as traffic:
        there = families(q.to(accelerator).requires_grad_(gradient))
        difference2, sum2 = (torch.tensor(chords(0.3)[k], device=accelerator) for k in (0, 1))
        angle = squared_angle(difference2, sum2)
    assert not traffic.doubles
    assert not traffic.to_host
    assert angle.item() == pytest.approx(0.09, rel=1e-6)
    for (order, actual), (_, expected) in zip(there, families(q.requires_grad_(gradient)), strict=True):
        assert actual.device.type == accelerator.type
        assert torch.allclose(actual.cpu(), expected, rtol=1e-5, atol=1e-6 * SCALES[order]), order


def test_all_finite() -> None:
    values = torch.tensor([[1e308, 1e308], [-1e308, 0.0]], dtype=torch.float64)
    assert all_finite(values)
    assert all_finite(values[:0])
    for bad in (math.nan, math.inf, -math.inf):
        values = torch.ones(5, 3)
        values[3, 1] = bad
        assert not all_finite(values)


def test_derivatives() -> None:
    q = torch.tensor(RADII, dtype=torch.float64).square().requires_grad_()
    for order, values in families(q):
        (first,) = torch.autograd.grad(values.sum(), q, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), q, retain_graph=True)
        for argument, a, b in zip(q.tolist(), first.tolist(), second.tolist(), strict=True):
            slope = -0.5 * oracle(1, argument) if order == 0 else 0.5 * oracle(order + 1, argument)
            bend = -0.25 * oracle(2, argument) if order == 0 else 0.25 * oracle(order + 2, argument)
            assert a == pytest.approx(slope, abs=1e-14), (order, argument)
            assert b == pytest.approx(bend, abs=1e-13), (order, argument)


def test_large_arguments_stay_finite_and_infinite_ones_do_not() -> None:
    q = torch.tensor([1e10, 1e30], dtype=torch.float32, requires_grad=True)
    for _, values in families(q):
        (gradient,) = torch.autograd.grad(values.sum(), q, retain_graph=True)
        assert bool(values.isfinite().all())
        assert bool(gradient.isfinite().all())
    for bad in (math.nan, math.inf):
        assert all(bool(values.isnan().all()) for _, values in families(torch.tensor([bad])))


def chords(angle: float) -> tuple[float, float]:
    """Return |x - y|^2 = 2 - 2 cos and |x + y|^2 = 2 + 2 cos of an angle, each to full relative precision."""
    half = Decimal(angle) / 2
    with localcontext() as context:
        context.prec = 60
        sine = sum(
            (Decimal((-1) ** k) * half ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(40)), Decimal(0)
        )
        return float(4 * sine * sine), float(4 - 4 * sine * sine)


ANGLES = [1e-100, 1e-16, 1e-8, 1e-4, 0.01, 0.1, 0.3, 0.349, 0.3506, 0.36, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.14, 3.1415926]


# In single precision the squares of the two smallest are below the smallest number.
@pytest.mark.parametrize(
    ("angle", "dtype"),
    [*((angle, torch.float64) for angle in ANGLES), *((angle, torch.float32) for angle in ANGLES if angle > 1e-15)],
)
def test_squared_angle(angle: float, dtype: torch.dtype) -> None:
    difference2, sum2 = (torch.tensor(value, dtype=dtype) for value in chords(angle))
    assert squared_angle(difference2, sum2).item() == pytest.approx(angle**2, rel=8 * torch.finfo(dtype).eps)


def test_squared_angle_is_smooth_at_zero_and_finite_at_the_antipode() -> None:
    a = torch.tensor([0.0, 0.1, 0.1250, 0.1251, 0.13, 4.0], dtype=torch.float64, requires_grad=True)
    b = (4 - a).detach()
    value = squared_angle(a, b)
    (first,) = torch.autograd.grad(value.sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a)
    # With u = sqrt(a / b): value = 4 atan(u)^2, of first derivative 4 atan(u) / (u (1 + u^2) b) in a.
    u = (a[1:-1].detach() / b[1:-1]).sqrt()
    slope = 4 * u.atan() / (u * (1 + u * u) * b[1:-1])
    bend = 2 / (b[1:-1] ** 2 * u) * (1 / (u * (1 + u * u) ** 2) - u.atan() * (1 + 3 * u * u) / (u * (1 + u * u)) ** 2)
    assert torch.allclose(first[1:-1], slope, atol=1e-13)
    assert torch.allclose(second[1:-1], bend, atol=1e-12)
    # 4 (s - 2 s^2 / 3 + ...) with s = a / 4 at a = 0.
    assert first[0].item() == pytest.approx(1.0, abs=1e-15)
    assert second[0].item() == pytest.approx(-1 / 3, abs=1e-15)
    assert value[-1].item() == pytest.approx(math.pi**2, abs=1e-14)
    assert bool(first.isfinite().all())


@pytest.mark.parametrize("function", [exp_coefficients, adjoint_coefficients, curvature_coefficients])
def test_gradient_mode_does_not_change_a_value_beyond_rounding(
    function: Callable[[Tensor], tuple[Tensor, ...]],
) -> None:
    q = torch.linspace(0, 9, 400, dtype=torch.float64)
    for with_gradient, without in zip(function(q.clone().requires_grad_()), function(q), strict=True):
        assert torch.allclose(with_gradient.detach(), without, atol=4e-16, rtol=0)
