"""What is special about the sphere: coincident, antipodal and unnormalized points, each against a closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.manifolds import Sphere

SPHERE = Sphere()
E1 = [1.0, 0.0, 0.0]
E2 = [0.0, 1.0, 0.0]


def planar(angle: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([math.cos(angle), math.sin(angle), 0.0], dtype=dtype)


def eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


# closed forms


@pytest.mark.parametrize("exponent", range(0, -17, -1))
def test_relative_accuracy_next_to_the_base_point(exponent: int, dtype: torch.dtype) -> None:
    # Near e1 a planar point keeps its small angle to full relative precision.
    angle = 10.0**exponent
    y, x = torch.tensor(E1, dtype=dtype), planar(angle, dtype)
    assert SPHERE.squared_distance(x, y).item() == pytest.approx(angle**2, rel=4 * eps(dtype))
    log = SPHERE.log(y, x)
    assert log[1].item() == pytest.approx(angle, rel=4 * eps(dtype))
    assert log[0].item() == log[2].item() == 0
    assert SPHERE.exp(y, log)[1].item() == pytest.approx(math.sin(angle), rel=4 * eps(dtype))


@pytest.mark.parametrize("angle", [0.1, 0.3, 0.36, 1.0, math.pi / 2, 2.0, 3.0, 3.1, math.pi])
def test_great_circle(angle: float, dtype: torch.dtype) -> None:
    y, xi = torch.tensor(E1, dtype=dtype), angle * torch.tensor(E2, dtype=dtype)
    x = SPHERE.exp(y, xi)
    assert torch.allclose(x, planar(angle, dtype), atol=4 * eps(dtype), rtol=0)
    assert SPHERE.squared_distance(y, x).item() == pytest.approx(angle**2, abs=20 * eps(dtype))
    up = torch.tensor([0.0, 0.0, 1.0], dtype=dtype)
    sinc = math.sin(angle) / angle
    assert torch.allclose(SPHERE.exp_differential(y, xi, up), sinc * up, atol=4 * eps(dtype), rtol=0)
    along = torch.tensor([-math.sin(angle), math.cos(angle), 0.0], dtype=dtype)
    assert torch.allclose(SPHERE.exp_differential(y, xi, torch.tensor(E2, dtype=dtype)), along, atol=4 * eps(dtype))
    if angle < 3.1:
        assert torch.allclose(SPHERE.transport(y, x, torch.tensor(E2, dtype=dtype)), along, atol=20 * eps(dtype))
        assert torch.allclose(SPHERE.transport(y, x, up), up, atol=4 * eps(dtype))


def test_transport_around_an_octant_turns_by_a_right_angle() -> None:
    e1, e2, e3 = torch.eye(3, dtype=torch.float64)
    v = SPHERE.transport(e1, e2, e2)
    v = SPHERE.transport(e2, e3, v)
    v = SPHERE.transport(e3, e1, v)
    # The octant has area pi/2; e2 is turned toward e3.
    assert torch.allclose(v, e3, atol=1e-15)


@pytest.mark.parametrize("angle", [0.5, 1.0, 2.0, 2.8])
def test_hessian_of_the_squared_distance(angle: float) -> None:
    # Along the geodesic 2, across it 2 r cot r.
    y = torch.tensor(E1, dtype=torch.float64)
    basis = torch.eye(3, dtype=torch.float64)[:, 1:]

    def squared(c: Tensor) -> Tensor:
        return SPHERE.squared_distance(SPHERE.exp(y, basis @ c), planar(angle))

    hessian = torch.autograd.functional.hessian(squared, torch.zeros(2, dtype=torch.float64))
    expected = torch.diag(torch.tensor([2.0, 2 * angle / math.tan(angle)], dtype=torch.float64))
    assert torch.allclose(hessian, expected, atol=1e-12)


def test_two_coordinates_are_angles() -> None:
    angles = torch.linspace(-3, 3, 25, dtype=torch.float64)
    x = torch.stack((angles.cos(), angles.sin()), -1)
    difference = angles[:, None] - angles[None]
    wrapped = torch.remainder(difference + math.pi, 2 * math.pi) - math.pi
    assert torch.allclose(SPHERE.squared_distance(x[:, None], x[None]), wrapped.square(), atol=1e-14)


# H11, H13: the start of every step, y = x


@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_unit_vectors_whose_product_is_not_quite_one(ulps: int, dtype: torch.dtype) -> None:
    x = torch.eye(3, dtype=dtype)
    y = x.clone()
    if ulps:
        y = y * torch.nextafter(torch.ones((), dtype=dtype), torch.tensor(1.0 + ulps, dtype=dtype))
    assert bool((torch.sign((x * y).sum(-1) - 1) == ulps).all())
    x.requires_grad_()
    cost = SPHERE.squared_distance(x, y)
    (gradient,) = torch.autograd.grad(cost.sum(), x)
    assert bool((cost <= eps(dtype) ** 2).all())
    assert bool((SPHERE.project_vector(x.detach(), gradient) == 0).all())
    assert bool((SPHERE.log(x.detach(), y) == 0).all())


@pytest.mark.parametrize("angle", [1e-3, 4e-4, 1e-5, 1e-7])
def test_the_proximal_term_is_alive_at_small_angles(angle: float, dtype: torch.dtype) -> None:
    y = torch.tensor(E1, dtype=dtype)
    x = planar(angle, dtype).requires_grad_()
    (gradient,) = torch.autograd.grad(SPHERE.squared_distance(x, y), x)
    assert gradient[1].item() == pytest.approx(2 * angle, rel=1e-6)


def test_a_step_from_the_base_point_moves() -> None:
    # -<a, x> + d^2 / (2 tau): the step solves theta + tau sin theta = theta_0, with theta the angle to a.
    start, tau = 1.0, 0.5
    y = planar(start)
    xi = torch.zeros(3, dtype=torch.float64)
    for _ in range(200):
        gradient = SPHERE.exp_adjoint(y, xi, -torch.tensor(E1, dtype=torch.float64))
        xi = xi - 0.5 * (xi + tau * gradient)
    theta = start - xi.norm().item()
    assert theta + tau * math.sin(theta) == pytest.approx(start, abs=1e-14)


# H14: antipodal points


def test_antipodal_pair(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.tensor([E1], dtype=dtype, device=device)
    assert SPHERE.squared_distance(x, -x).item() == pytest.approx(math.pi**2, rel=eps(dtype))
    for call in (lambda: SPHERE.log(x, -x), lambda: SPHERE.transport(x, -x, x.roll(1))):
        with pytest.raises(InvalidInput, match="pair 0 is antipodal"):
            call()


def test_first_antipodal_pair_of_a_batch_is_named(device: torch.device) -> None:
    y = SPHERE.random_point((4,), 3, 0, device=device)
    x = SPHERE.random_point((4,), 3, 1, device=device)
    x[2] = -y[2]
    with pytest.raises(InvalidInput, match="pair 2 is antipodal"):
        SPHERE.log(y, x)
    with pytest.raises(InvalidInput, match=r"pair \(1, 2\) is antipodal"):
        SPHERE.log(y.expand(2, 4, 3), torch.stack((y, x)))
    with pytest.raises(InvalidInput, match="the pair is antipodal"):
        SPHERE.log(y[2], x[2])


@pytest.mark.parametrize("d", [2, 3, 8])
def test_antipodes_are_found_through_rounding(d: int, dtype: torch.dtype) -> None:
    y = SPHERE.random_point((50,), d, 0, dtype=dtype)
    for factor in (3.0, 0.1, 1 / 3):
        x = SPHERE.project_point(-factor * y)
        for i in range(50):
            with pytest.raises(InvalidInput, match="antipodal"):
                SPHERE.log(y[i], x[i])
        # Norms that `check` lets pass do not hide it either.
        with pytest.raises(InvalidInput, match="pair 0 is antipodal"):
            SPHERE.transport(y, x * (1 + 0.5e-9), y)


def test_gradient_at_the_antipode_is_finite(dtype: torch.dtype) -> None:
    x = SPHERE.random_point((5,), 3, 0, dtype=dtype).requires_grad_()
    (gradient,) = torch.autograd.grad(SPHERE.squared_distance(x, -x.detach()).sum(), x)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9])
def test_next_to_the_antipode(gap: float) -> None:
    # The small coordinate is exact, that of cos(pi - gap) is -1 to rounding.
    y = torch.tensor(E1, dtype=torch.float64)
    x = torch.tensor([-math.cos(gap), math.sin(gap), 0.0], dtype=torch.float64, requires_grad=True)
    squared = SPHERE.squared_distance(y, x)
    assert squared.sqrt().item() == pytest.approx(math.pi - gap, abs=1e-15)
    (gradient,) = torch.autograd.grad(squared, x)
    assert gradient.norm().item() == pytest.approx(2 * (math.pi - gap), rel=1e-12)
    x = x.detach()
    log = SPHERE.log(y, x)
    assert log.norm().item() == pytest.approx(math.pi - gap, abs=1e-14)
    assert torch.allclose(SPHERE.exp(y, log), x, atol=1e-14)
    assert torch.allclose(SPHERE.transport(y, x, log), -SPHERE.log(x, y), atol=1e-14)


def test_next_to_a_random_antipode() -> None:
    y = SPHERE.random_point((100,), 3, 0)
    u = SPHERE.tangent_basis(y)[..., 0]
    x = SPHERE.exp(y, (math.pi - 1e-9) * u)
    log = SPHERE.log(y, x)
    assert torch.allclose(log.norm(dim=-1), torch.tensor(math.pi - 1e-9, dtype=torch.float64), atol=1e-15, rtol=0)
    # The stored x keeps 7 digits of a direction of size 1e-9.
    assert torch.allclose(log, (math.pi - 1e-9) * u, atol=1e-5)
    v = SPHERE.transport(y, x, u)
    assert torch.allclose(v.norm(dim=-1), torch.ones(100, dtype=torch.float64), atol=1e-13)
    assert (v * x).sum(-1).abs().max() < 1e-15


# H15: points off the sphere, the zero vector, drift


@pytest.mark.parametrize("row", [[2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1 + 1e-4, 0.0, 0.0]])
def test_rows_off_the_sphere_are_refused_by_name(row: list[float], dtype: torch.dtype, device: torch.device) -> None:
    points = torch.tensor([E1, row, row], dtype=dtype, device=device)
    with pytest.raises(InvalidInput, match=r"tokens\[1\] has norm .* not 1.*project_point"):
        SPHERE.check(points, "tokens")
    with pytest.raises(InvalidInput, match=r"points\[0, 1\] has norm"):
        SPHERE.check(points[None])
    with pytest.raises(InvalidInput, match="points has norm"):
        SPHERE.check(points[1])


@pytest.mark.parametrize(
    ("radius", "dtype"),
    [(1 + 1e-7, torch.float32), (1 - 9e-6, torch.float32), (1 + 9e-10, torch.float64), (1 - 9e-10, torch.float64)],
)
def test_rounding_of_the_norm_is_accepted(radius: float, dtype: torch.dtype) -> None:
    SPHERE.check(torch.tensor([[radius, 0.0, 0.0]], dtype=dtype))


@pytest.mark.parametrize(
    ("radius", "dtype"), [(1 + 2e-5, torch.float32), (1 + 2e-9, torch.float64), (1 - 2e-9, torch.float64)]
)
def test_more_than_rounding_is_not(radius: float, dtype: torch.dtype) -> None:
    with pytest.raises(InvalidInput, match="has norm"):
        SPHERE.check(torch.tensor([[radius, 0.0, 0.0]], dtype=dtype))


def test_zero_rows_have_no_projection(device: torch.device) -> None:
    with pytest.raises(InvalidInput, match=r"row\[1\] .* is zero"):
        SPHERE.project_point(torch.tensor([E1, [0.0, 0.0, 0.0]], device=device))
    y = torch.tensor([E1], device=device)
    with pytest.raises(InvalidInput, match=r"row\[0\] .* is zero"):
        SPHERE.retract(y, -y)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-30, 1.0, 1e30, 1e200, 1e308])
def test_projection_does_not_depend_on_the_length(scale: float) -> None:
    z = torch.tensor([3.0, -4.0], dtype=torch.float64)
    expected = torch.tensor([0.6, -0.8], dtype=torch.float64)
    assert torch.allclose(SPHERE.project_point(scale / 4 * z), expected, atol=1e-4 if scale < 1e-300 else 1e-15)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_projection_repairs_nothing(value: float) -> None:
    assert bool(SPHERE.project_point(torch.tensor([[value, 1.0, 0.0]])).isnan().any())


@pytest.mark.parametrize("move", [SPHERE.exp, SPHERE.retract], ids=["exp", "retract"])
def test_norm_does_not_drift(move: object, dtype: torch.dtype) -> None:
    x = SPHERE.random_point((16,), 3, 0, dtype=dtype)
    g = torch.from_numpy(np.random.default_rng(0).standard_normal((1000, 16, 3))).to(dtype)
    for k in range(1000):
        x = move(x, SPHERE.project_vector(x, 0.3 * g[k]))  # type: ignore[operator]
    assert (torch.linalg.vector_norm(x.double(), dim=-1) - 1).abs().max() < 4 * eps(dtype)
    SPHERE.check(x)


# H09: d = 1


def test_two_points_are_no_sphere() -> None:
    with pytest.raises(InvalidInput, match=r"d = 1.*S\^0.*d >= 2"):
        SPHERE.check(torch.tensor([[1.0], [-1.0]]))
    with pytest.raises(InvalidInput, match=r"S\^0.*d >= 2"):
        SPHERE.random_point((2,), 1, 0)
    assert SPHERE.dimension(3) == 2
    assert SPHERE.injectivity_radius == math.pi


def test_lengths_beyond_all_bounds_are_not_finite() -> None:
    y = torch.tensor(E1, dtype=torch.float64)
    assert bool(SPHERE.exp(y, 1e200 * torch.tensor(E2, dtype=torch.float64)).isnan().any())
    assert not bool(SPHERE.exp(y, 1e5 * torch.tensor(E2, dtype=torch.float64)).isnan().any())
