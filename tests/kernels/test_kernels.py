"""Kernels by their formulas: autograd over all pairs at once, nothing shared with the package."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from jko.errors import InvalidInput
from jko.kernels import AbstractKernel, FunctionKernel, GaussianKernel, LogarithmicKernel, PowerKernel
from jko.kernels.base import KernelSums
from jko.reductions import Blocked, pairs_by
from tests.oracles.attention import assert_close
from tests.oracles.memory import Recorder

F64 = torch.float64


def squares(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square().sum(-1)


def power(p: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: squares(x, y) ** (p / 2)


def bell(x: Tensor, y: Tensor) -> Tensor:
    return (-squares(x, y) / (2 * 0.7**2)).exp()


def logarithm(x: Tensor, y: Tensor) -> Tensor:
    return squares(x, y).log() / 2


def product(x: Tensor, y: Tensor) -> Tensor:
    return ((x * y).sum(-1) / 2).exp() + x.square().sum(-1) * y.square().sum(-1)


def product_gradient(x: Tensor, y: Tensor) -> Tensor:
    return ((x * y).sum(-1, keepdim=True) / 2).exp() * y / 2 + 2 * x * y.square().sum(-1, keepdim=True)


FORMULAS: list[tuple[AbstractKernel, Callable[[Tensor, Tensor], Tensor]]] = [
    (GaussianKernel(0.7), bell),
    (LogarithmicKernel(), logarithm),
    *((PowerKernel(p), power(p)) for p in (0.5, 1, 1.5, 2, 3, 4, 5.5, -1, -1.5)),
    (FunctionKernel(product), product),
    (FunctionKernel(product, product_gradient), product),
    (FunctionKernel(logarithm, singular=True), logarithm),
    (FunctionKernel(logarithm, lambda x, y: (x - y) / squares(x, y)[..., None], singular=True), logarithm),
]
every_kernel = pytest.mark.parametrize(
    ("kernel", "formula"), [pytest.param(*pair, id=f"{k}-{pair[0].name}") for k, pair in enumerate(FORMULAS)]
)


def cloud(n: int = 9, d: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng((seed, n, d))
    w = generator.uniform(0.2, 2.0, n)
    return torch.from_numpy(generator.standard_normal((n, d))), torch.from_numpy(w / w.sum())


def oracle(
    formula: Callable[[Tensor, Tensor], Tensor], z: Tensor, x: Tensor, w: Tensor, counted: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Value, gradient and Hessian in z of sum_j w_j W(z_i, x_j) over the pairs that count, point by point."""
    parts = []
    for i in range(len(z)):
        sources, weights = x[counted[i]], w[counted[i]]

        def field(point: Tensor, y: Tensor = sources, v: Tensor = weights) -> Tensor:
            return formula(point[None], y) @ v

        gradient = torch.autograd.functional.jacobian(field, z[i])
        parts.append((field(z[i]), gradient, torch.autograd.functional.hessian(field, z[i])))
    return tuple(torch.stack(rows) for rows in zip(*parts, strict=True))  # type: ignore[return-value]


def own_of(n: int) -> Tensor:
    return torch.arange(n)


def blocked(kernel: AbstractKernel, x: Tensor, w: Tensor, order: int = 2, block: int | None = None) -> KernelSums:
    return pairs_by(Blocked(block), kernel).sums(kernel, x, x, w, own_of(len(x)), order)


@every_kernel
@pytest.mark.parametrize("d", [1, 2, 5])
def test_sums_among_particles(kernel: AbstractKernel, formula: Any, d: int) -> None:
    x, w = cloud(d=d)
    # The formulas of kinked kernels have no Hessian at 0: those pairs add nothing.
    smooth = not kernel.singular and not getattr(kernel, "kinked", False)
    counted = torch.ones(9, 9, dtype=torch.bool) if smooth else ~torch.eye(9, dtype=torch.bool)
    expected = oracle(formula, x, x, w, counted)
    actual = blocked(kernel, x, w)
    for part, value in zip((actual.value, actual.gradient, actual.curvature), expected, strict=True):
        assert_close(part, value, 1e-12, scale=1.0)
    assert blocked(kernel, x, w, 0).gradient is None
    assert blocked(kernel, x, w, 1).curvature is None
    assert_close(blocked(kernel, x, w, 0).value, actual.value, 1e-14)
    assert_close(blocked(kernel, x, w, 1).gradient, actual.gradient, 1e-14)


@every_kernel
def test_sums_at_other_points(kernel: AbstractKernel, formula: Any) -> None:
    (x, w), z = cloud(), cloud(5, seed=1)[0]
    expected = oracle(formula, z, x, w, torch.ones(5, 9, dtype=torch.bool))
    actual = pairs_by(Blocked(), kernel).sums(kernel, z, x, w, None, 2)
    for part, value in zip((actual.value, actual.gradient, actual.curvature), expected, strict=True):
        assert_close(part, value, 1e-12)


@every_kernel
def test_derivative_of_the_gradient(kernel: AbstractKernel, formula: Any) -> None:
    x, w = cloud()
    u, h, own = cloud(seed=2)[0], 1e-5, own_of(9)
    expected = (blocked(kernel, x + h * u, w).gradient - blocked(kernel, x - h * u, w).gradient) / (2 * h)  # type: ignore[operator]
    actual = pairs_by(Blocked(), kernel).derivative(kernel, x, x, w, own, (u, u))
    assert_close(actual, expected, 2e-8)
    still = pairs_by(Blocked(), kernel).derivative(kernel, x, x, w, own, (u, torch.zeros_like(u)))
    assert_close(still, (blocked(kernel, x, w).curvature @ u[..., None])[..., 0], 1e-12)  # type: ignore[operator]


@every_kernel
@pytest.mark.parametrize("block", [4096, 20_000])
def test_blocks_do_not_matter(kernel: AbstractKernel, formula: Any, block: int) -> None:
    x, w = cloud(61, 3)
    u = cloud(61, 3, seed=2)[0]
    whole, parts = blocked(kernel, x, w), blocked(kernel, x, w, block=block)
    for name in ("value", "gradient", "curvature"):
        assert_close(getattr(parts, name), getattr(whole, name), 1e-14)
    rates = [pairs_by(Blocked(b), kernel).derivative(kernel, x, x, w, own_of(61), (u, u)) for b in (None, block)]
    assert_close(rates[1], rates[0], 1e-13)


@every_kernel
def test_single_precision(kernel: AbstractKernel, formula: Any) -> None:
    x, w = cloud()
    expected = blocked(kernel, x.float().double(), w.float().double())
    actual = blocked(kernel, x.float(), w.float())
    for name in ("value", "gradient", "curvature"):
        assert getattr(actual, name).dtype == torch.float32
        assert_close(getattr(actual, name), getattr(expected, name), 2e-5)


@pytest.mark.parametrize("kernel", [GaussianKernel(1.0), FunctionKernel(product)])
def test_no_targets(kernel: AbstractKernel) -> None:
    x, w = cloud()
    actual = pairs_by(Blocked(), kernel).sums(kernel, x[:0], x, w, None, 2)
    assert actual.value.shape == (0,)
    assert actual.gradient.shape == (0, 2)  # type: ignore[union-attr]


def test_no_array_over_all_pairs() -> None:
    x, w = cloud(1200, 2)
    with Recorder() as recorder:
        blocked(GaussianKernel(1.0), x, w)
    assert recorder.largest < 1200 * 1200 / 3


# particles at one place


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, 4])
@pytest.mark.parametrize("n", [3, 30])
def test_particles_at_one_place(p: float, n: int, dtype: torch.dtype) -> None:
    x = torch.zeros(n, 2, dtype=dtype)
    x[-1, 0] = 1.0
    w = torch.full((n,), 1 / n, dtype=dtype)
    actual = blocked(PowerKernel(p), x, w)
    assert actual.gradient is not None
    assert actual.curvature is not None
    assert bool(actual.curvature.isfinite().all())
    expected = torch.zeros(n, 2, dtype=dtype)
    # Only the lonely particle pulls, and all others pull it.
    expected[:-1, 0], expected[-1, 0] = -p / n, p * (n - 1) / n
    assert_close(actual.gradient, expected, 1e-6 if dtype == torch.float32 else 1e-14)
    assert torch.equal(actual.gradient[:1].expand(n - 1, 2), actual.gradient[:-1])
    rate = pairs_by(Blocked(), PowerKernel(p)).derivative(PowerKernel(p), x, x, w, own_of(n), (x, x))
    assert bool(rate.isfinite().all())


@pytest.mark.parametrize("kernel", [GaussianKernel(0.5), PowerKernel(1), PowerKernel(2), FunctionKernel(product)])
def test_all_particles_at_one_place(kernel: AbstractKernel) -> None:
    x = torch.full((5, 2), 0.3, dtype=F64) * (0.0 if kernel.name.startswith("function") else 1.0)
    actual = blocked(kernel, x, torch.full((5,), 0.2, dtype=F64))
    assert bool((actual.gradient == 0).all())


@pytest.mark.parametrize("kernel", [LogarithmicKernel(), PowerKernel(-1), FunctionKernel(logarithm, singular=True)])
def test_singular_kernels_leave_out_the_pair_with_itself_only(kernel: AbstractKernel) -> None:
    x, w = cloud()
    alone = blocked(kernel, x[:1], torch.ones(1, dtype=F64))
    assert alone.value.tolist() == [0.0]
    assert alone.gradient.tolist() == [[0.0, 0.0]]  # type: ignore[union-attr]
    rate = pairs_by(Blocked(), kernel).derivative(kernel, x[:1], x[:1], w[:1], own_of(1), (x[:1], x[:1]))
    assert rate.tolist() == [[0.0, 0.0]]
    x[4] = x[2]
    together = blocked(kernel, x, w, 1)
    assert bool(together.value[[2, 4]].isinf().all())
    assert bool(together.value[[0, 1, 3, 5, 6, 7, 8]].isfinite().all())


def test_smooth_kernels_count_the_pair_with_itself() -> None:
    one = torch.ones(1, 2, dtype=F64)
    assert blocked(GaussianKernel(1.0), one, torch.ones(1, dtype=F64)).value.tolist() == [1.0]
    assert blocked(FunctionKernel(product), one, torch.ones(1, dtype=F64)).value.tolist() == [math.e + 4]


# cancellation


def test_close_points_far_from_the_origin_in_single_precision() -> None:
    x = torch.tensor([[40000.0], [40003.0]])
    actual = blocked(PowerKernel(2), x, torch.tensor([0.5, 0.5]))
    assert actual.value.tolist() == [4.5, 4.5]
    assert actual.gradient.tolist() == [[-3.0], [3.0]]  # type: ignore[union-attr]


def test_scattered_far_from_the_origin_in_single_precision() -> None:
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 16)))
    x = (100 + 0.01 * noise).float()
    w = torch.full((50,), 1 / 50)
    actual, expected = (blocked(PowerKernel(2), part, v) for part, v in ((x, w), (x.double(), w.double())))
    assert_close(actual.value, expected.value, 1e-5)
    assert_close(actual.gradient, expected.gradient, 1e-5)
    # The squares of all distances are positive; |x|^2 + |y|^2 - 2 <x, y> would make some of them negative.
    assert float(actual.value.min()) > 0


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31), shift=st.floats(-50, 50), p=st.sampled_from([-1.0, 0.7, 1.0, 2.0, 3.3]))
def test_translations_change_nothing(seed: int, shift: float, p: float) -> None:
    x, w = cloud(7, 3, seed)
    one, other = blocked(PowerKernel(p), x, w), blocked(PowerKernel(p), x + shift, w)
    assert_close(other.gradient, one.gradient, 1e-11)  # type: ignore[arg-type]
    # No net force.
    assert float((w[:, None] * one.gradient).sum(0).abs().max()) < 1e-13 * float(one.gradient.abs().max())  # type: ignore[operator, union-attr]


# refusals and names


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, math.inf, "wide"])
def test_scales_must_be_positive(scale: Any) -> None:
    with pytest.raises(InvalidInput, match="scale"):
        GaussianKernel(scale)


@pytest.mark.parametrize("exponent", [0, 0.0, math.nan, math.inf, None])
def test_exponents_must_be_finite_and_not_0(exponent: Any) -> None:
    with pytest.raises(InvalidInput, match="exponent must"):
        PowerKernel(exponent)


def test_kernels_that_are_not_functions_of_pairs() -> None:
    x, w = cloud()
    with pytest.raises(InvalidInput, match="functions of two points"):
        FunctionKernel(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"fn must return a tensor of shape \(9, 9\).*shape \(9, 9, 2\)"):
        blocked(FunctionKernel(lambda x, y: x * y), x, w)
    with pytest.raises(InvalidInput, match=r"gradient must return a tensor of shape \(9, 9, 2\).*got shape \(9, 9\)"):
        blocked(FunctionKernel(product, product), x, w)
    with pytest.raises(InvalidInput, match="autograd"):
        blocked(FunctionKernel(lambda x, y: product(x, y).detach()), x, w)
    with pytest.raises(InvalidInput, match="not symmetric"):
        FunctionKernel(lambda x, y: (x * y).sum(-1) + x[..., 0]).check(x)
    with pytest.raises(InvalidInput, match="singular=True"):
        FunctionKernel(logarithm).check(x)
    for kernel, _ in FORMULAS:
        kernel.check(x)
        kernel.check(x[:1])


def test_a_gradient_that_autograd_cannot_follow() -> None:
    x, w = cloud()
    kernel = FunctionKernel(product, lambda x, y: product_gradient(x, y).detach())
    actual = blocked(kernel, x, w)
    assert_close(actual.gradient, blocked(FunctionKernel(product), x, w).gradient, 1e-14)  # type: ignore[arg-type]
    assert actual.curvature is None
    with pytest.raises(InvalidInput, match="leave it out"):
        pairs_by(Blocked(), kernel).derivative(kernel, x, x, w, own_of(9), (x, x))


def test_kernels_that_are_linear() -> None:
    x, w = cloud()
    kernel = FunctionKernel(lambda x, y: (x + y).sum(-1))
    assert_close(blocked(kernel, x, w).curvature, torch.zeros(9, 2, 2), 0.0)
    rate = pairs_by(Blocked(), kernel).derivative(kernel, x, x, w, own_of(9), (x, x))
    assert_close(rate, torch.zeros(9, 2), 0.0)


def test_under_no_grad_and_inference_mode() -> None:
    expected = blocked(FunctionKernel(product), *cloud())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            actual = blocked(FunctionKernel(product), *cloud())
            assert_close(actual.curvature, expected.curvature, 0.0)  # type: ignore[arg-type]


def test_names() -> None:
    assert GaussianKernel(0.5).name == "Gaussian of scale 0.5"
    assert PowerKernel(-1.5).name == "|x - y|^-1.5"
    assert LogarithmicKernel().name == "log|x - y|"
    assert FunctionKernel(product).name == "function product"
    assert FunctionKernel(torch.nn.CosineSimilarity()).name == "function CosineSimilarity"
