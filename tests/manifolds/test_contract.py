"""The contract of a manifold. A new manifold is tested by adding its rows to CASES."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck

from jko.errors import InvalidInput
from jko.manifolds import AbstractManifold, Euclidean, Sphere
from tests.devices.pretended import watched

CASES = [
    *(pytest.param(Sphere(), d, id=f"Sphere-{d}") for d in (2, 3, 8)),
    *(pytest.param(Euclidean(), d, id=f"Euclidean-{d}") for d in (1, 2, 8)),
]
every_manifold = pytest.mark.parametrize(("manifold", "d"), CASES)
# Where what is tested does not depend on d.
one_of_each = pytest.mark.parametrize(("manifold", "d"), [CASES[1], CASES[4]])
SEPARATIONS = [10.0**-k for k in range(9)]
LENGTHS = [0.0, 1e-8, 1e-4, 0.1, 0.99, 1.01, 1.99, 2.01, 3.0]
N = 6


def at_every(name: str, values: list[float], few: tuple[float, ...]) -> pytest.MarkDecorator:
    """Every value on the sphere of three coordinates, which has all the series and branches; a few elsewhere."""
    rows = [
        pytest.param(*case.values, value, id=f"{case.id}-{value:g}")
        for case in CASES
        for value in (values if case.id == "Sphere-3" else few)
    ]
    return pytest.mark.parametrize(("manifold", "d", name), rows)


every_separation = at_every("separation", SEPARATIONS, (1e-8, 1.0))
every_length = at_every("length", LENGTHS, (0.0, 1.01))


def test_every_manifold_is_here() -> None:
    # By name: a class with slots leaves its first version behind until it is collected. Other tests define their own.
    members = {c.__name__ for c in AbstractManifold.__subclasses__() if c.__module__.startswith("jko.")}
    assert {type(case.values[0]).__name__ for case in CASES} == members


@dataclass(frozen=True)
class Sample:
    """Points y, unit tangent vectors u and v at y, ambient vectors g."""

    y: Tensor
    u: Tensor
    v: Tensor
    g: Tensor


def sample(
    manifold: AbstractManifold,
    d: int,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    shape: tuple[int, ...] = (N,),
) -> Sample:
    y = manifold.random_point(shape, d, seed)
    basis = manifold.tangent_basis(y)
    generator = np.random.default_rng(seed)
    coordinates = torch.from_numpy(generator.standard_normal((2, *shape, basis.shape[-1])))
    u, v = (basis @ (c / c.norm(dim=-1, keepdim=True))[..., None] for c in coordinates)
    g = torch.from_numpy(generator.standard_normal((*shape, d)))
    return Sample(*(a.to(dtype) for a in (y, u[..., 0], v[..., 0], g)))


def eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def assert_close(actual: Tensor, expected: Tensor | float, atol: float, rtol: float = 0.0) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    actual = actual.detach().to("cpu", torch.float64)
    assert actual.shape == expected.shape or expected.ndim == 0
    # Written so that NaN fails.
    error = (actual - expected.detach().cpu()).abs()
    assert bool((error <= atol + rtol * expected.detach().cpu().abs()).all()), f"largest error {error.max():.3g}"


def tangent_defect(manifold: AbstractManifold, x: Tensor, v: Tensor) -> Tensor:
    return manifold.project_vector(x, v) - v


def check_derivatives(function: Callable[..., Tensor], *arguments: Tensor, second: bool = True) -> None:
    # The checks draw directions from the global generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert gradcheck(function, arguments)
        if second:
            # Quotients of a gradient of size 10 with step 1e-6 know no more digits.
            assert gradgradcheck(function, arguments, atol=1e-4)


def test_the_check_of_derivatives_can_fail() -> None:
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(GradcheckError):
        check_derivatives(lambda a: a.square() + a.detach(), x)


@pytest.mark.parametrize(
    ("actual", "expected"), [([1.0, 2.0], [1.0, 2.1]), ([1.0, math.nan], [1.0, 1.0]), ([1.0], [1.0, 1.0])]
)
def test_the_assertion_can_fail(actual: list[float], expected: list[float]) -> None:
    with pytest.raises(AssertionError):
        assert_close(torch.tensor(actual), torch.tensor(expected), 1e-3)


def test_the_tangent_defect_can_be_large() -> None:
    y = sample(Sphere(), 3).y
    assert tangent_defect(Sphere(), y, y).norm() > 1


# the object


@every_manifold
def test_final_without_state(manifold: AbstractManifold, d: int) -> None:
    assert dataclasses.fields(manifold) == ()  # type: ignore[arg-type]
    assert not hasattr(manifold, "__dict__")
    assert not inspect.isabstract(type(manifold))
    assert type(manifold).__bases__ == (AbstractManifold,)
    with pytest.raises((AttributeError, TypeError)):
        manifold.radius = 1.0  # type: ignore[attr-defined]


@every_manifold
def test_dimension_and_injectivity_radius(manifold: AbstractManifold, d: int) -> None:
    assert manifold.tangent_basis(sample(manifold, d).y).shape == (N, d, manifold.dimension(d))
    assert 0 < manifold.injectivity_radius <= math.inf


# distance


@every_manifold
def test_distance_is_symmetric_and_zero_at_coincident_points(
    manifold: AbstractManifold, d: int, dtype: torch.dtype
) -> None:
    x, y = (sample(manifold, d, seed, dtype).y for seed in (0, 1))
    assert torch.equal(manifold.squared_distance(x, y), manifold.squared_distance(y, x))
    assert bool((manifold.squared_distance(x, x) == 0).all())
    assert manifold.squared_distance(x, y).dtype == dtype


@every_separation
def test_distance_and_log_at_every_separation(
    manifold: AbstractManifold, d: int, separation: float, dtype: torch.dtype
) -> None:
    s = sample(manifold, d, dtype=dtype)
    x = manifold.exp(s.y, separation * s.u)
    # The rounding of the coordinates of x, all that a stored point can keep.
    rounding = 8 * eps(dtype) * float(s.y.abs().max() + 1)
    log = manifold.log(s.y, x)
    assert_close(log, separation * s.u, rounding)
    assert_close(log.norm(dim=-1), manifold.squared_distance(s.y, x).sqrt(), rounding)
    assert_close(manifold.squared_distance(s.y, x).sqrt(), separation, rounding)
    assert_close(tangent_defect(manifold, s.y, log), 0.0, 4 * eps(dtype) * separation + eps(dtype) ** 2)


@at_every("separation", [*SEPARATIONS, 2.0, 3.0], (1e-8, 1.0))
def test_gradient_of_the_squared_distance_is_minus_twice_the_log(
    manifold: AbstractManifold, d: int, separation: float, dtype: torch.dtype
) -> None:
    s = sample(manifold, d, dtype=dtype)
    y = manifold.exp(s.y, separation * s.u)
    x = s.y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(manifold.squared_distance(x, y).sum(), x)
    # At the distance 3 of the sphere the gradient turns by the rounding over pi - 3.
    assert_close(manifold.project_vector(s.y, gradient), -2 * manifold.log(s.y, y), 200 * eps(dtype))


@every_manifold
def test_gradient_at_coincident_points_is_exactly_zero(manifold: AbstractManifold, d: int, dtype: torch.dtype) -> None:
    x = sample(manifold, d, dtype=dtype).y.requires_grad_()
    y = x.detach().clone().requires_grad_()
    for gradient in torch.autograd.grad(manifold.squared_distance(x, y).sum(), (x, y)):
        assert bool((gradient == 0).all())


@every_manifold
def test_second_derivative_at_coincident_points_is_twice_the_metric(manifold: AbstractManifold, d: int) -> None:
    y = sample(manifold, d).y[0]
    basis = manifold.tangent_basis(y)

    def squared(c: Tensor) -> Tensor:
        return manifold.squared_distance(manifold.exp(y, basis @ c), y)

    hessian = torch.autograd.functional.hessian(squared, torch.zeros(basis.shape[-1], dtype=torch.float64))
    assert_close(hessian, 2 * torch.eye(basis.shape[-1]), 1e-13)


@every_length
def test_distance_from_the_base_point_is_the_length_in_every_derivative(
    manifold: AbstractManifold, d: int, length: float
) -> None:
    s = sample(manifold, d, shape=(2,))
    basis = manifold.tangent_basis(s.y)
    start = (length * (basis.mT @ s.u[..., None])).requires_grad_()

    def squared(c: Tensor) -> Tensor:
        return manifold.squared_distance(manifold.exp(s.y, (basis @ c)[..., 0]), s.y)

    check_derivatives(squared, start)
    (gradient,) = torch.autograd.grad(squared(start).sum(), start)
    assert_close(gradient, 2 * start, 1e-12)


@every_manifold
def test_coincident_particles_in_a_matrix_of_distances(manifold: AbstractManifold, d: int, dtype: torch.dtype) -> None:
    y = sample(manifold, d, dtype=dtype).y[:2]
    for copies in (2, 29):
        x = torch.cat((y[:1].expand(copies, d), y[1:])).clone().requires_grad_()
        matrix = manifold.squared_distance(x[:, None], x[None])
        assert bool((matrix.diagonal() == 0).all())
        (gradient,) = torch.autograd.grad(matrix.mean(), x)
        assert bool(gradient.isfinite().all())
        assert_close(gradient[:copies], gradient[:1].expand(copies, d), 1e-12 if dtype == torch.float64 else 1e-7)


# exponential and logarithm


@every_manifold
def test_exp_of_zero_stays(manifold: AbstractManifold, d: int, dtype: torch.dtype) -> None:
    y = sample(manifold, d, dtype=dtype).y
    zero = torch.zeros_like(y)
    assert_close(manifold.exp(y, zero), y.double(), 2 * eps(dtype))
    assert bool((manifold.log(y, y) == 0).all())


@every_length
def test_exp_lands_on_the_manifold_at_the_right_distance(
    manifold: AbstractManifold, d: int, length: float, dtype: torch.dtype
) -> None:
    s = sample(manifold, d, dtype=dtype)
    x = manifold.exp(s.y, length * s.u)
    manifold.check(x)
    assert x.dtype == dtype
    assert_close(manifold.squared_distance(s.y, x).sqrt(), length, 20 * eps(dtype) * float(s.y.abs().max() + 1))


@every_manifold
def test_geodesics_continue(manifold: AbstractManifold, d: int) -> None:
    s = sample(manifold, d)
    middle = manifold.exp(s.y, 0.7 * s.u)
    onward = manifold.transport(s.y, middle, s.u)
    assert_close(manifold.exp(middle, 1.1 * onward), manifold.exp(s.y, 1.8 * s.u), 1e-14)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1), exponent=st.floats(-9, math.log10(3.1)), d=st.integers(2, 8), case=st.integers(0, 1)
)
def test_round_trips(seed: int, exponent: float, d: int, case: int) -> None:
    manifold = (Sphere(), Euclidean())[case]
    s = sample(manifold, d, seed)
    xi = 10**exponent * s.u
    x = manifold.exp(s.y, xi)
    # The direction is lost in proportion to the distance to the cut locus.
    tolerance = 1e-14 * float(s.y.abs().max() + 1) * max(1, 10**exponent / (math.pi - 10**exponent))
    assert_close(manifold.log(s.y, x), xi, tolerance)
    assert_close(manifold.exp(s.y, manifold.log(s.y, x)), x, 1e-14 * float(x.abs().max() + 1))
    assert_close(manifold.transport(s.y, x, xi), -manifold.log(x, s.y), tolerance)


# derivatives of the exponential


@every_length
def test_differential_is_the_derivative_of_exp(manifold: AbstractManifold, d: int, length: float) -> None:
    s = sample(manifold, d)
    xi, h = length * s.u, 1e-5
    differential = manifold.exp_differential(s.y, xi, s.v)
    quotient = (manifold.exp(s.y, xi + h * s.v) - manifold.exp(s.y, xi - h * s.v)) / (2 * h)
    assert_close(differential, quotient, 1e-9)
    exact = torch.autograd.functional.jacobian(
        lambda e: manifold.exp(s.y, xi + e * s.v), torch.zeros((), dtype=torch.float64)
    )
    assert_close(differential, exact, 1e-13)
    assert_close(tangent_defect(manifold, manifold.exp(s.y, xi), differential), 0.0, 1e-14)


@every_manifold
def test_differential_at_zero_is_the_identity(manifold: AbstractManifold, d: int, dtype: torch.dtype) -> None:
    s = sample(manifold, d, dtype=dtype)
    zero = torch.zeros_like(s.y)
    assert torch.equal(manifold.exp_differential(s.y, zero, s.v), s.v)
    assert_close(manifold.exp_adjoint(s.y, zero, s.g), manifold.project_vector(s.y, s.g), 2 * eps(dtype))


@every_length
def test_adjoint(manifold: AbstractManifold, d: int, length: float, dtype: torch.dtype) -> None:
    s = sample(manifold, d, dtype=dtype)
    xi = length * s.u
    adjoint = manifold.exp_adjoint(s.y, xi, s.g)
    tolerance = 40 * eps(dtype)
    for eta in (s.u, s.v):
        assert_close(dot(manifold.exp_differential(s.y, xi, eta), s.g), dot(eta, adjoint), tolerance)
    assert_close(tangent_defect(manifold, s.y, adjoint), 0.0, tolerance)


@every_length
def test_adjoint_is_the_gradient_of_a_linear_function(
    manifold: AbstractManifold, d: int, length: float, dtype: torch.dtype
) -> None:
    s = sample(manifold, d, dtype=dtype)
    xi = (length * s.u).requires_grad_()
    (gradient,) = torch.autograd.grad(dot(manifold.exp(s.y, xi), s.g).sum(), xi)
    assert_close(manifold.project_vector(s.y, gradient), manifold.exp_adjoint(s.y, xi, s.g), 100 * eps(dtype))


@every_length
def test_adjoint_derivative(manifold: AbstractManifold, d: int, length: float) -> None:
    s = sample(manifold, d)
    xi, h = length * s.u, 1e-5
    derivative = manifold.exp_adjoint_derivative(s.y, xi, s.g, s.v)
    forward, backward = (manifold.exp_adjoint(s.y, xi + e * s.v, s.g) for e in (h, -h))
    assert_close(derivative, (forward - backward) / (2 * h), 1e-9)
    assert_close(tangent_defect(manifold, s.y, derivative), 0.0, 1e-14)
    other = manifold.exp_adjoint_derivative(s.y, xi, s.g, s.u)
    assert_close(dot(other, s.v), dot(derivative, s.u), 1e-14)


@every_length
def test_adjoint_derivative_is_the_hessian_of_a_linear_function(
    manifold: AbstractManifold, d: int, length: float
) -> None:
    s = sample(manifold, d)
    y, g = s.y[0], s.g[0]
    basis = manifold.tangent_basis(y)
    k = basis.shape[-1]
    start = basis.mT @ (length * s.u[0])
    hessian = torch.autograd.functional.hessian(lambda c: dot(manifold.exp(y, basis @ c), g), start)
    products = manifold.exp_adjoint_derivative(y, basis @ start, g, basis.mT)
    assert products.shape == (k, d)
    assert_close(products @ basis, hessian, 1e-13)


@every_length
def test_derivatives_by_automatic_differentiation(manifold: AbstractManifold, d: int, length: float) -> None:
    s = sample(manifold, d, shape=(1,))
    xi = (length * s.u).requires_grad_()
    y, v, g = (a.clone().requires_grad_() for a in (s.y, s.v, s.g))
    for function, arguments in (
        (manifold.exp, (y, xi)),
        (manifold.exp_differential, (y, xi, v)),
        (manifold.exp_adjoint, (y, xi, g)),
    ):
        check_derivatives(function, *arguments)


# projections, transport, bases


@every_manifold
def test_projections(manifold: AbstractManifold, d: int, dtype: torch.dtype) -> None:
    s = sample(manifold, d, dtype=dtype)
    projected = manifold.project_vector(s.y, s.g)
    assert_close(tangent_defect(manifold, s.y, projected), 0.0, 4 * eps(dtype))
    assert_close(dot(s.g - projected, s.v), 0.0, 8 * eps(dtype))
    assert_close(manifold.project_vector(s.y, s.v), s.v, 4 * eps(dtype))
    x = manifold.project_point(3 * s.g)
    manifold.check(x)
    assert_close(manifold.project_point(x), x, 2 * eps(dtype))
    # Nearest: the way from z to its projection is normal to the manifold.
    assert_close(manifold.project_vector(x, 3 * s.g - x), 0.0, 30 * eps(dtype))


@every_manifold
def test_derivative_of_project_point_is_a_projection(manifold: AbstractManifold, d: int) -> None:
    s = sample(manifold, d, shape=(2,))
    check_derivatives(manifold.project_point, s.g.clone().requires_grad_(), second=False)
    jacobian = torch.autograd.functional.jacobian(manifold.project_point, s.y[0])
    assert_close(jacobian @ s.g[0], manifold.project_vector(s.y[0], s.g[0]), 1e-14)


@every_manifold
def test_retraction_agrees_with_exp_to_second_order(manifold: AbstractManifold, d: int) -> None:
    s = sample(manifold, d)
    for h in (1e-1, 1e-2, 1e-3):
        x = manifold.retract(s.y, h * s.u)
        assert_close(x, manifold.project_point(s.y + h * s.u), 0.0)
        assert_close(x, manifold.exp(s.y, h * s.u), h**3 / 2 + 1e-15)


@at_every("separation", [0.0, 1e-8, 1e-3, 1.0, 2.0, 3.0], (0.0, 1.0))
def test_transport_is_an_isometry(manifold: AbstractManifold, d: int, separation: float, dtype: torch.dtype) -> None:
    s = sample(manifold, d, dtype=dtype)
    x = manifold.exp(s.y, separation * s.u)
    u, v = (manifold.transport(s.y, x, a) for a in (s.u, s.v))
    tolerance = 20 * eps(dtype)
    assert_close(tangent_defect(manifold, x, v), 0.0, tolerance)
    assert_close(dot(v, v), dot(s.v, s.v), tolerance)
    assert_close(dot(u, v), dot(s.u, s.v), tolerance)
    assert_close(manifold.transport(s.y, s.y, s.v), s.v, tolerance)
    # Back again, with the loss of the direction at the distance 3 of the sphere.
    assert_close(manifold.transport(x, s.y, v), s.v, 20 * tolerance)


@every_manifold
def test_tangent_basis_is_orthonormal(manifold: AbstractManifold, d: int, dtype: torch.dtype) -> None:
    axes = torch.eye(d, dtype=torch.float64)
    y = torch.cat((manifold.random_point((N,), d, 0), axes, -axes, manifold.project_point(axes[:1] - 1e-9 * axes[-1:])))
    y = y.to(dtype)
    basis = manifold.tangent_basis(y)
    k = manifold.dimension(d)
    assert basis.shape == (len(y), d, k)
    assert basis.dtype == dtype
    assert_close(basis.mT @ basis, torch.eye(k).expand(len(y), k, k), 8 * eps(dtype))
    assert_close(tangent_defect(manifold, y[:, None], basis.mT), 0.0, 8 * eps(dtype))


# arrays


def operations(manifold: AbstractManifold, s: Sample) -> dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]]:
    return {
        "squared_distance": lambda y, u, v, g: manifold.squared_distance(y, manifold.exp(y, u)),
        "exp": lambda y, u, v, g: manifold.exp(y, u),
        "exp_differential": lambda y, u, v, g: manifold.exp_differential(y, u, v),
        "exp_adjoint": lambda y, u, v, g: manifold.exp_adjoint(y, u, g),
        "exp_adjoint_derivative": lambda y, u, v, g: manifold.exp_adjoint_derivative(y, u, g, v),
        "log": lambda y, u, v, g: manifold.log(y, manifold.exp(y, u)),
        "project_point": lambda y, u, v, g: manifold.project_point(g),
        "project_vector": lambda y, u, v, g: manifold.project_vector(y, g),
        "transport": lambda y, u, v, g: manifold.transport(y, manifold.exp(y, u), v),
        "tangent_basis": lambda y, u, v, g: manifold.tangent_basis(y),
        "retract": lambda y, u, v, g: manifold.retract(y, u),
    }


NAMES = list(operations(Euclidean(), sample(Euclidean(), 1)))


def test_every_operation_is_here() -> None:
    others = {"check", "dimension", "injectivity_radius", "random_point"}
    assert {name for name in vars(AbstractManifold) if not name.startswith("_")} == {*NAMES, *others}


@one_of_each
@pytest.mark.parametrize("name", NAMES)
def test_batched_equals_looped(manifold: AbstractManifold, d: int, name: str, dtype: torch.dtype) -> None:
    s = sample(manifold, d, dtype=dtype, shape=(2, 3))
    function = operations(manifold, s)[name]
    batched = function(s.y, s.u, s.v, s.g)
    assert batched.shape[:2] == (2, 3)
    assert batched.dtype == dtype
    for i in range(2):
        for j in range(3):
            assert_close(batched[i, j], function(s.y[i, j], s.u[i, j], s.v[i, j], s.g[i, j]), 8 * eps(dtype))


@every_manifold
def test_every_operation_stays_on_its_device(manifold: AbstractManifold, d: int, accelerator: torch.device) -> None:
    here = sample(manifold, d, dtype=torch.float32, shape=(2, 3))
    there = [a.to(accelerator) for a in (here.y, here.u, here.v, here.g)]
    manifold.check(there[0])
    with watched() as traffic:
        for name, function in operations(manifold, here).items():
            result = function(*there)
            assert result.device.type == accelerator.type, name
            # Another order of the sums is all that may differ.
            assert_close(result, function(here.y, here.u, here.v, here.g), 8 * eps(torch.float32))
        x = there[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(manifold.squared_distance(x, there[0]).sum(), x)
    assert bool((gradient == 0).all())
    # Some devices know no double precision at all.
    assert not traffic.doubles
    assert manifold.random_point((2,), d, 0, device=accelerator).device.type == accelerator.type


@one_of_each
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("project_point", "tangent_basis")])
def test_heads_broadcast_over_particles(manifold: AbstractManifold, d: int, name: str) -> None:
    s = sample(manifold, d)
    function = operations(manifold, s)[name]
    scale = torch.linspace(0, 1, 4, dtype=torch.float64)[:, None, None]
    heads = function(s.y, scale * s.u, scale * s.v, scale * s.g)
    assert heads.shape[:2] == (4, N)
    for k in range(4):
        assert_close(heads[k], function(s.y, scale[k] * s.u, scale[k] * s.v, scale[k] * s.g), 1e-15)


@one_of_each
@pytest.mark.parametrize("name", NAMES)
def test_float32_follows_float64(manifold: AbstractManifold, d: int, name: str) -> None:
    s = sample(manifold, d)
    function = operations(manifold, s)[name]
    single = function(s.y.float(), s.u.float(), s.v.float(), s.g.float())
    assert_close(single, function(s.y, s.u, s.v, s.g), 40 * eps(torch.float32))


@one_of_each
@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_not_changed_and_nothing_is_repaired(manifold: AbstractManifold, d: int, name: str) -> None:
    s = sample(manifold, d)
    arguments = [s.y, s.u, s.v, s.g]
    before = [a.clone() for a in arguments]
    function = operations(manifold, s)[name]
    function(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
    if (name, type(manifold)) not in CONSTANTS:
        for bad in (math.nan, math.inf):
            assert not bool(function(*(a * bad for a in arguments)).isfinite().any())
    if name == "squared_distance":
        assert not bool(manifold.squared_distance(s.y, s.y * math.inf).isfinite().any())


# These do not depend on their arguments.
CONSTANTS = {("exp_adjoint_derivative", Euclidean), ("tangent_basis", Euclidean)}


# random points and checks


@every_manifold
def test_random_points(manifold: AbstractManifold, d: int, dtype: torch.dtype) -> None:
    points = manifold.random_point((4, 3), d, 7, dtype=dtype)
    assert points.shape == (4, 3, d)
    assert points.dtype == dtype
    manifold.check(points)
    again = manifold.random_point((4, 3), d, 7)
    assert torch.equal(points, again.to(dtype))
    assert torch.equal(manifold.random_point((2, 3), d, 7), again[:2])
    assert not torch.equal(manifold.random_point((4, 3), d, 8), again)
    assert manifold.random_point((), d, 7).shape == (d,)


@every_manifold
def test_random_points_have_the_moments_of_their_law(manifold: AbstractManifold, d: int) -> None:
    points = manifold.random_point((20000,), d, 0)
    variance = 1.0 if isinstance(manifold, Euclidean) else 1 / d
    assert_close(points.mean(0), 0.0, 5 * math.sqrt(variance / 20000))
    assert_close(points.mT @ points / 20000, variance * torch.eye(d), 0.05 * variance)


@every_manifold
@pytest.mark.parametrize("seed", [-1, 2**32, True])
def test_random_points_refuse_other_seeds(manifold: AbstractManifold, d: int, seed: int) -> None:
    with pytest.raises(InvalidInput, match="seed"):
        manifold.random_point((2,), d, seed)


@every_manifold
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_check_names_the_first_bad_entry(manifold: AbstractManifold, d: int, value: float) -> None:
    points = manifold.random_point((4,), d, 0)
    manifold.check(points, "tokens")
    points[2, -1] = value
    with pytest.raises(InvalidInput, match=rf"tokens\[2, {d - 1}\] is {value}"):
        manifold.check(points, "tokens")


@every_manifold
@pytest.mark.parametrize("shape", [(), (3, 0)])
def test_check_refuses_points_without_coordinates(manifold: AbstractManifold, d: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="no coordinates"):
        manifold.check(torch.zeros(shape))
