from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from jko import weighted
from jko.errors import InvalidInput
from tests.oracles.attention import TOLERANCE, assert_close, average, exponents, head_gradients, problem, tangent

F64 = torch.float64
THETAS = [None, [0.2, 0.5, 0.3], [0.4, 0.0, 0.6]]
every_theta = pytest.mark.parametrize("theta", THETAS)


def fields(
    *batch: int, n: int = 5, d: int = 3, H: int = 3, seed: int = 0, dtype: torch.dtype = F64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Head gradients, mobilities, a velocity and weights (two of them 0)."""
    generator = np.random.default_rng(seed)
    gradient = torch.from_numpy(generator.standard_normal((*batch, H, n, d)))
    mobility = torch.from_numpy(generator.uniform(0.2, 5.0, (*batch, H, n)))
    velocity = torch.from_numpy(generator.standard_normal((*batch, n, d)))
    weights = torch.from_numpy(generator.dirichlet(np.ones(n), batch))
    weights[..., 1::3] = 0.0
    weights = weights / weights.sum(-1, keepdim=True)
    return tuple(a.to(dtype) for a in (gradient, mobility, velocity, weights))  # type: ignore[return-value]


def tensor(theta: list[float] | None) -> Tensor | None:
    return None if theta is None else torch.tensor(theta, dtype=F64)


def factors(theta: list[float] | None, H: int = 3) -> list[float]:
    return [1 / H] * H if theta is None else theta


# mobilities


def test_head_mobility(dtype: torch.dtype, device: torch.device) -> None:
    p = problem(9, 3, 4, symmetric=False, weights="tracers").to(dtype)
    z = problem(4, 3, 4, seed=1).to(dtype).points
    q = p.to(device=device)
    x, w, D = p.points.double(), p.weights.double(), p.D.double()
    kernel = exponents(x, D).exp()
    actual = weighted.head_mobility(q.points, q.D, q.weights)
    assert_close(actual, kernel @ w, TOLERANCE[dtype])
    assert actual.dtype == dtype
    assert actual.device.type == device.type
    assert_close(weighted.head_mobility(q.points, q.D), kernel.mean(-1), TOLERANCE[dtype])
    there = exponents(z.double(), D, x).exp() @ w
    assert_close(weighted.head_mobility(q.points, q.D, q.weights, at=z.to(device)), there, TOLERANCE[dtype])


BATCHES = [((2,), (), (), ()), ((), (2,), (), ()), ((), (), (2,), ()), ((), (), (), (2,)), ((2, 3), (3,), (2, 1), (3,))]


@pytest.mark.parametrize(("points", "heads", "masses", "targets"), BATCHES)
def test_head_mobility_of_batches(
    points: tuple[int, ...], heads: tuple[int, ...], masses: tuple[int, ...], targets: tuple[int, ...]
) -> None:
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.standard_normal((*points, 4, 2)))
    D = torch.from_numpy(generator.standard_normal((*heads, 3, 2, 2)))
    w = torch.from_numpy(generator.dirichlet(np.ones(4), masses))
    z = torch.from_numpy(generator.standard_normal((*targets, 5, 2)))
    actual = weighted.head_mobility(x, D, w, at=z)
    shape = torch.broadcast_shapes(points, heads, masses, targets)
    assert actual.shape == (*shape, 3, 5)
    full = [a.expand(*shape, *a.shape[-k:]) for a, k in ((x, 2), (D, 3), (w, 1), (z, 2))]
    for index in np.ndindex(*shape):
        xi, Di, wi, zi = (a[index] for a in full)
        assert_close(actual[index], exponents(zi, Di, xi).exp() @ wi, 1e-14)


def test_other_precisions_are_those_of_the_points() -> None:
    p = problem(4, 2, 2)
    actual = weighted.head_mobility(p.points, p.D.float(), p.weights.float(), at=p.points.float())
    assert actual.dtype == F64
    assert_close(actual, weighted.head_mobility(p.points, p.D, p.weights), 1e-6)


def test_a_tracer_adds_no_mobility_even_where_exp_overflows() -> None:
    x = torch.tensor([[1.0, 0.0], [1e4, 0.0]], dtype=F64)
    D = torch.eye(2, dtype=F64)[None]
    actual = weighted.head_mobility(x, D, torch.tensor([1.0, 0.0], dtype=F64), at=x[:1])
    assert_close(actual, torch.tensor([[math.e]], dtype=F64), 1e-15)


@every_theta
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_effective_mobility_is_the_harmonic_mean(theta: list[float] | None, batch: tuple[int, ...]) -> None:
    _, m, _, _ = fields(*batch)
    expected = 1 / sum(c / m[..., h, :] for h, c in enumerate(factors(theta)))
    actual = weighted.effective_mobility(m, tensor(theta))
    assert_close(actual, expected, 1e-15)
    assert bool((actual <= m.max(-2).values).all())


def test_effective_mobility_of_equal_heads_is_theirs() -> None:
    m = torch.tensor([[2.0, 3.0]] * 4, dtype=F64)
    assert_close(weighted.effective_mobility(m), m[0], 1e-15)
    assert torch.equal(weighted.effective_mobility(m[:1]), m[0])


# lifts, eq. (38) and Lemma 3.8


@every_theta
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_the_lift_averages_to_the_velocity_at_the_cost_of_the_effective_mobility(
    theta: list[float] | None, batch: tuple[int, ...]
) -> None:
    _, m, v, w = fields(*batch)
    lift = weighted.horizontal_lift(v, m, tensor(theta))
    assert lift.shape == (*batch, 3, 5, 3)
    for h in range(3):
        b = weighted.effective_mobility(m, tensor(theta))
        assert_close(lift[..., h, :, :], (b / m[..., h, :])[..., None] * v, 1e-15)
    assert_close(sum(c * lift[..., h, :, :] for h, c in enumerate(factors(theta))), v, 1e-15)  # type: ignore[arg-type]
    assert_close(cost(lift, m, w, theta), weighted.metric_speed(v, m, w, tensor(theta)) ** 2, 1e-14)


def cost(lift: Tensor, m: Tensor, w: Tensor, theta: list[float] | None) -> Tensor:
    """mean_h sum_i w_i m_h |v_h|^2."""
    per_head = (w[..., None, :] * m * lift.square().sum(-1)).sum(-1)
    return sum(c * per_head[..., h] for h, c in enumerate(factors(theta)))  # type: ignore[return-value]


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(0, 2), size=st.floats(1e-3, 10))
def test_the_lift_is_the_cheapest_with_its_average(seed: int, k: int, size: float) -> None:
    theta = THETAS[k]
    _, m, v, w = fields(seed=seed)
    lift = weighted.horizontal_lift(v, m, tensor(theta))
    change = size * torch.from_numpy(np.random.default_rng(seed + 1).standard_normal(lift.shape))
    change -= average(change, torch.tensor(factors(theta), dtype=F64))
    other, best = cost(lift + change, m, w, theta), cost(lift, m, w, theta)
    # Pythagoras: the lift is orthogonal to all changes that average to 0.
    assert_close(other, best + cost(change, m, w, theta), 1e-12)
    assert other > best


def test_the_cost_can_be_larger() -> None:
    _, m, v, w = fields()
    plain = v[None].expand(3, 5, 3)
    assert_close(average(plain, None), v, 1e-15)
    assert cost(plain, m, w, None) > 1.1 * weighted.metric_speed(v, m, w) ** 2


# gradients


@every_theta
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_formulas(theta: list[float] | None, batch: tuple[int, ...]) -> None:
    g, m, v, w = fields(*batch)
    averages = tensor(theta)
    inverse = sum(c / m[..., h, :] for h, c in enumerate(factors(theta)))
    ratio = sum(c * g[..., h, :, :] / m[..., h, :, None] for h, c in enumerate(factors(theta)))
    mean = sum(c * g[..., h, :, :] for h, c in enumerate(factors(theta)))
    assert_close(weighted.weighted_gradient(g, m, averages), ratio / inverse[..., None], 1e-14)
    covariance = ratio - inverse[..., None] * mean
    assert_close(weighted.covariance_defect(g, m, averages), covariance, 1e-13)
    # v_B - v_T with v_B = -mean DK / b and v_T = -mean(DK / m)
    b = weighted.effective_mobility(m, averages)
    assert_close(weighted.covariance_defect(g, m, averages), -mean / b[..., None] + ratio, 1e-13)
    squared = (w * ratio.square().sum(-1) / inverse).sum(-1)
    assert_close(weighted.upper_gradient(g, m, w, averages), squared.sqrt(), 1e-14)
    speed = (w * v.square().sum(-1) / inverse).sum(-1).sqrt()
    assert_close(weighted.metric_speed(v, m, w, averages), speed, 1e-14)
    equal = (v.square().sum(-1) / inverse).mean(-1).sqrt()
    assert_close(weighted.metric_speed(v, m, None, averages), equal, 1e-14)
    assert_close(
        weighted.upper_gradient(g, m, None, averages), (ratio.square().sum(-1) / inverse).mean(-1).sqrt(), 1e-14
    )


def test_the_descended_gradient_is_the_average_over_the_lift() -> None:
    # <grad, v> = mean_h <grad_h, horizontal lift>: the descended gradient is the adjoint of the lift.
    g, m, v, _ = fields()
    lift = weighted.horizontal_lift(v, m)
    assert_close((weighted.weighted_gradient(g, m) * v).sum(), (g * lift).sum(-1).mean(0).sum(), 1e-14)


def test_one_head_and_equal_mobilities_have_no_defect() -> None:
    g, m, _, _ = fields()
    assert_close(weighted.covariance_defect(g[:1], m[:1]), torch.zeros(5, 3), 1e-15, scale=1.0)
    same = m[:1].expand(3, 5)
    assert_close(weighted.covariance_defect(g, same), torch.zeros(5, 3), 1e-14, scale=1.0)
    assert_close(weighted.weighted_gradient(g, same), g.mean(0), 1e-14)


def test_shared_weights_for_a_batch() -> None:
    g, m, v, _ = fields(2)
    w = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0], dtype=F64)
    for k in range(2):
        assert_close(weighted.metric_speed(v, m, w)[k], weighted.metric_speed(v[k], m[k], w), 1e-15)
        assert_close(weighted.upper_gradient(g, m, w)[k], weighted.upper_gradient(g[k], m[k], w), 1e-15)


def test_precisions_and_devices(dtype: torch.dtype, device: torch.device) -> None:
    exact = fields()
    g, m, v, w = (a.to(device=device, dtype=dtype) for a in exact)
    theta = torch.tensor([0.2, 0.5, 0.3], dtype=F64, device=device)
    tolerance = 1e-14 if dtype == F64 else 3e-6
    for function, arguments, doubles in (
        (weighted.effective_mobility, (m,), (exact[1],)),
        (weighted.horizontal_lift, (v, m), (exact[2], exact[1])),
        (weighted.weighted_gradient, (g, m), (exact[0], exact[1])),
        (weighted.covariance_defect, (g, m), (exact[0], exact[1])),
        (weighted.upper_gradient, (g, m, w), (exact[0], exact[1], exact[3])),
        (weighted.metric_speed, (v, m, w), (exact[2], exact[1], exact[3])),
    ):
        call: Callable[..., Tensor] = function
        actual = call(*arguments, head_weights=theta)
        assert_close(actual, call(*doubles, head_weights=theta.cpu()), tolerance)
        assert actual.dtype == dtype
        assert actual.device.type == device.type


def test_tracers_cost_nothing_even_where_nothing_is_finite() -> None:
    g, m, v, w = fields()
    massive = w > 0
    v = torch.where(massive[:, None], v, math.inf)
    g = torch.where(massive[:, None], g, math.nan)
    expected = weighted.metric_speed(v[massive], m[:, massive], w[massive])
    assert_close(weighted.metric_speed(v, m, w), expected, 1e-15)
    upper = weighted.upper_gradient(g[:, massive], m[:, massive], w[massive])
    assert_close(weighted.upper_gradient(g, m, w), upper, 1e-15)


# two tokens with D = beta I, Finding 1


def two_tokens(betas: tuple[float, float]) -> tuple[Tensor, Tensor]:
    x, D = torch.eye(2, dtype=F64), torch.stack([beta * torch.eye(2, dtype=F64) for beta in betas])
    m = weighted.head_mobility(x, D)
    return tangent(x, head_gradients(x, torch.full((2,), 0.5, dtype=F64), D)), m


def test_two_tokens() -> None:
    g, m = two_tokens((1.0, 3.0))
    b = weighted.effective_mobility(m)
    transformer = (1 / (math.e + 1) + 3 / (math.e**3 + 1)) / 2
    assert_close(b, torch.full((2,), 1 / (1 / (math.e + 1) + 1 / (math.e**3 + 1)), dtype=F64), 1e-14)
    assert float(b[0]) == pytest.approx(3.160883, abs=1e-6)
    # mean DK = 1 towards the other token
    assert_close(g.mean(0), torch.eye(2, dtype=F64).flip(0), 1e-14)
    normalized = weighted.weighted_gradient(g, m) / b[:, None]
    assert_close(normalized, transformer * torch.eye(2, dtype=F64).flip(0), 1e-14)
    assert float(weighted.upper_gradient(g, m) ** 2) == pytest.approx(0.133627, abs=1e-6)
    assert transformer == pytest.approx(0.205610, abs=1e-6)
    assert 1 / float(b[0]) == pytest.approx(0.316367, abs=1e-6)
    defect = weighted.covariance_defect(g, m)
    assert float(weighted.metric_speed(defect, m)) == pytest.approx(0.196915, abs=1e-6)


def test_two_tokens_whose_energy_rises() -> None:
    g, m = two_tokens((3.99, -1.97))
    velocity = -average(g / m[..., None], None)
    rate = (g.mean(0) * velocity).sum(-1).mean()
    b = weighted.effective_mobility(m)
    assert float(rate) == pytest.approx(0.4182, abs=5e-5)
    assert float(weighted.upper_gradient(g, m) ** 2) == pytest.approx(0.766, abs=5e-4)
    assert float((g.mean(0).square().sum(-1) / b).mean()) == pytest.approx(0.228, abs=5e-4)
    defect = weighted.covariance_defect(g, m)
    assert float(weighted.metric_speed(defect, m)) == pytest.approx(1.353026, abs=1e-6)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(0, 2))
def test_dissipation_minus_the_paper_slope(seed: int, k: int) -> None:
    g, m, _, w = fields(seed=seed)
    theta = tensor(THETAS[k])
    normalized, mean = average(g / m[..., None], theta), average(g, theta)
    b, C = weighted.effective_mobility(m, theta), weighted.covariance_defect(g, m, theta)
    dissipation = (w[:, None] * mean * normalized).sum()
    squared = weighted.upper_gradient(g, m, w, theta) ** 2
    scale = float(dissipation.abs() + squared)
    assert_close(dissipation - squared, -((w * b)[:, None] * C * normalized).sum(), 1e-13, scale=scale)


# arguments


@pytest.mark.parametrize(
    ("points", "D", "at", "message"),
    [
        ((3,), (1, 3, 3), None, r"points must have shape \(\*batch, n, d\), got \(3,\)"),
        ((4, 3), (3, 3), None, r"D has shape \(3, 3\).*must be \(\*batch, H, 3, 3\)"),
        ((4, 3), (1, 2, 2), None, r"D has shape \(1, 2, 2\)"),
        ((4, 3), (1, 3, 2), None, r"D has shape \(1, 3, 2\)"),
        ((4, 3), (1, 3, 3), (5, 2), r"at must have shape \(\*batch, m, 3\), got \(5, 2\)"),
        ((4, 3), (1, 3, 3), (3,), r"at must have shape \(\*batch, m, 3\), got \(3,\)"),
    ],
)
def test_shapes_that_do_not_fit(
    points: tuple[int, ...], D: tuple[int, ...], at: tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        weighted.head_mobility(torch.ones(points), torch.ones(D), at=None if at is None else torch.ones(at))


@pytest.mark.parametrize("shape", [(4,), (1,), (2, 6)])
def test_weights_that_do_not_fit(shape: tuple[int, ...]) -> None:
    g, m, v, _ = fields()
    w = torch.ones(shape)
    for call in (
        lambda: weighted.metric_speed(v, m, w),
        lambda: weighted.upper_gradient(g, m, w),
        lambda: weighted.head_mobility(v, torch.ones(1, 3, 3), w),
    ):
        with pytest.raises(InvalidInput, match=r"weights have shape.*but there are 5 particles"):
            call()


def test_head_weights_that_do_not_fit() -> None:
    g, m, v, w = fields()
    theta = torch.tensor([0.5, 0.5])
    for call in (
        lambda: weighted.effective_mobility(m, theta),
        lambda: weighted.horizontal_lift(v, m, theta),
        lambda: weighted.weighted_gradient(g, m, theta),
        lambda: weighted.covariance_defect(g, m, theta),
        lambda: weighted.upper_gradient(g, m, w, theta),
        lambda: weighted.metric_speed(v, m, w, theta),
    ):
        with pytest.raises(InvalidInput, match="but there are 3 heads"):
            call()


def test_arguments_are_not_changed() -> None:
    arguments = fields()
    before = [a.clone() for a in arguments]
    g, m, v, w = arguments
    weighted.upper_gradient(g, m, w)
    weighted.horizontal_lift(v, m)
    weighted.covariance_defect(g, m)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


def test_needs_neither_flows_nor_schemes() -> None:
    code = (
        "import sys; from jko import weighted; weighted.effective_mobility; "
        "print(*(m for m in sys.modules if m.startswith('jko.')))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    loaded = result.stdout.split()
    above = ("energies", "metrics", "flows", "schemes", "driver", "transport")
    assert "jko.weighted" in loaded
    assert not [name for name in loaded if name.split(".")[1] in above]


def test_every_public_function_is_tested() -> None:
    """Here, and in the other files of this folder."""
    elsewhere = {
        "EquivalenceConstants",
        "ValueDefect",
        "WeightedDistance",
        "equivalence_constants",
        "symmetry_defect",
        "value_defect",
        "weighted_distance",
    }
    assert set(weighted.__all__) == elsewhere | {
        "covariance_defect",
        "effective_mobility",
        "head_mobility",
        "horizontal_lift",
        "metric_speed",
        "upper_gradient",
        "weighted_gradient",
    }


A = [[[1.0, 0.0], [0.0, 1.0]]]
VECTORS, ONES = torch.ones(1, 2, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: weighted.head_mobility(A[0], VECTORS), "points"),
        (lambda: weighted.head_mobility(VECTORS[0], A), "D"),
        (lambda: weighted.head_mobility(VECTORS[0], VECTORS, [0.5, 0.5]), "weights"),
        (lambda: weighted.head_mobility(VECTORS[0], VECTORS, at=A[0]), "at"),
        (lambda: weighted.effective_mobility(A[0]), "mobility"),
        (lambda: weighted.effective_mobility(ONES, [1.0]), "head_weights"),
        (lambda: weighted.horizontal_lift(A[0], ONES), "velocity"),
        (lambda: weighted.weighted_gradient(A, ONES), "head_gradient"),
        (lambda: weighted.upper_gradient(VECTORS, [[1.0, 1.0]]), "mobility"),
        (lambda: weighted.metric_speed(VECTORS[0], ONES, [0.5, 0.5]), "weights"),
        (lambda: weighted.covariance_defect(np.array(A), ONES), "head_gradient"),
        (lambda: weighted.equivalence_constants(A), "D"),
        (lambda: weighted.equivalence_constants(VECTORS, [1.0]), "head_weights"),
        (lambda: weighted.symmetry_defect(A), "D"),
        (lambda: weighted.value_defect(A, VECTORS), "V"),
    ],
)
def test_arrays_and_lists_are_refused(call: Callable[[], object], name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{name} must be an instance of Tensor, got .*; use torch.as_tensor"):
        call()
