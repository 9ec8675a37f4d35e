from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from jko.averages import mass_average
from jko.energies import AttentionEnergy
from jko.errors import InvalidInput
from jko.flows import GradientFlow
from jko.heads import ConstantHeads
from jko.manifolds import Euclidean, Sphere
from jko.measure import ParticleMeasure
from jko.metrics import AbstractMetric, Fields, HeadwiseWasserstein, Wasserstein2, WeightedWasserstein
from jko.metrics.norms import squared_norm
from tests.oracles.attention import assert_close, average, head_energies, problem, sums, tangent
from tests.oracles.energies import Quadratic
from tests.oracles.flows import METRICS, mass_product, quantities

F64 = torch.float64
N, D_, H = 6, 3, 3
TWO = torch.tensor([0.5, 0.25, 0.25], dtype=F64)
QUADRATIC = Quadratic(torch.tensor([1.0, -2.0, 0.5], dtype=F64))
CASES = [
    pytest.param(sign, symmetric, theta, sphere, id=f"{sign:+d}-{symmetric}-{theta is None}-{sphere}")
    for sign in (1, -1)
    for symmetric in (True, False)
    for theta in (None, TWO)
    for sphere in (True, False)
]
every_case = pytest.mark.parametrize(("sign", "symmetric", "theta", "sphere"), CASES)
every_metric = pytest.mark.parametrize("name", METRICS)


def build(
    sign: int,
    symmetric: bool,
    theta: Tensor | None,
    sphere: bool,
    *,
    dtype: torch.dtype = F64,
    device: torch.device | str = "cpu",
) -> tuple[Fields, dict[str, Tensor], ParticleMeasure]:
    p = problem(N, D_, H, symmetric=symmetric, weights="tracers", sphere=sphere)
    measure = ParticleMeasure(p.points, p.weights).to(dtype=dtype, device=device)
    evaluation = AttentionEnergy(ConstantHeads(p.D, theta), sign).evaluate(measure, 0.0)
    fields = Fields.of(evaluation, measure, Sphere() if sphere else Euclidean(), 0.0)
    return fields, quantities(p.points, p.weights, p.D, theta, sphere=sphere), measure


def test_every_metric_is_here() -> None:
    assert {type(metric).__name__ for metric in METRICS.values()} == {
        c.__name__ for c in AbstractMetric.__subclasses__() if c.__module__.startswith("jko.")
    }


# fields


@every_case
def test_fields(sign: int, symmetric: bool, theta: Tensor | None, sphere: bool) -> None:
    fields, q, _ = build(sign, symmetric, theta, sphere)
    assert fields.normalized is not None
    assert_close(fields.gradient, sign * q["gradient"], 1e-13)
    assert_close(fields.normalized, sign * q["normalized"], 1e-13)
    assert_close(fields.effective_mobility, q["b"], 1e-13)  # type: ignore[arg-type]
    covariance = q["normalized"] - q["gradient"] / q["b"][:, None]
    assert_close(fields.covariance(), sign * covariance, 1e-12)
    # C = v_B - v_T
    difference = METRICS["weighted"].velocity(fields) - METRICS["headwise"].velocity(fields)
    assert_close(fields.covariance(), difference, 1e-13)


# the three geometries


@every_metric
@every_case
def test_velocity_slope_and_mobility(name: str, sign: int, symmetric: bool, theta: Tensor | None, sphere: bool) -> None:
    fields, q, measure = build(sign, symmetric, theta, sphere)
    metric = METRICS[name]
    assert_close(metric.velocity(fields), sign * q[name], 1e-13)
    assert_close(metric.squared_slope(fields), q[f"slope2_{name}"], 1e-13)
    assert metric.squared_slope(fields).dtype == F64
    mobility = {"w2": torch.ones(N, dtype=F64), "weighted": q["b"], "headwise": q["m"]}[name]
    assert_close(metric.mobility(fields), mobility, 1e-13)
    assert metric.lifted == (name == "headwise")
    if sphere:
        normal = (metric.velocity(fields) * measure.points).sum(-1)
        assert_close(normal, torch.zeros(N), 1e-14, scale=float(q[name].abs().max()))


@every_metric
@every_case
def test_the_slope_is_the_largest_rate_of_descent(
    name: str, sign: int, symmetric: bool, theta: Tensor | None, sphere: bool
) -> None:
    # The velocity is the steepest: <grad, v> = -|v|^2 = -slope^2, and nothing at its cost is steeper.
    fields, q, measure = build(sign, symmetric, theta, sphere)
    metric, w = METRICS[name], measure.weights
    mobility = metric.mobility(fields)
    slope2 = metric.squared_slope(fields)
    if name == "headwise":
        steepest, gradient = -sign * q["heads"] / q["m"][..., None], sign * q["heads"]
    else:
        steepest, gradient = metric.velocity(fields), fields.gradient

    def rate(xi: Tensor) -> Tensor:
        product = (gradient * xi).sum(-1)
        return (w * (average(product, theta) if name == "headwise" else product)).sum()

    assert_close(rate(steepest), -slope2, 1e-13)

    def cost(xi: Tensor) -> Tensor:
        each = mobility * xi.square().sum(-1)
        return (w * (average(each, theta) if name == "headwise" else each)).sum()

    assert_close(cost(steepest), slope2, 1e-13)
    generator = np.random.default_rng(1)
    for _ in range(20):
        xi = steepest + 0.3 * torch.from_numpy(generator.standard_normal(steepest.shape))
        xi = tangent(measure.points, xi) if sphere else xi
        bound = slope2 * cost(xi)
        assert float(rate(xi) ** 2) <= float(bound) * (1 + 1e-12)


@every_metric
def test_slopes_by_difference_quotients(name: str) -> None:
    # Rows 1 and 2 descend E along their velocity, row 3 every E_h along that of its own head.
    fields, q, measure = build(1, False, TWO, True)
    p = problem(N, D_, H, symmetric=False, weights="tracers", sphere=True)
    h, sphere = 1e-4, Sphere()
    if name == "headwise":
        velocity = -q["heads"] / q["m"][..., None]
    else:
        velocity = METRICS[name].velocity(fields).expand(H, N, D_)
    energies = []
    for step in (h, -h, 2 * h, -2 * h):
        moved = sphere.exp(measure.points, step * velocity)
        energies.append(torch.stack([head_energies(moved[k], p.weights, p.D[k : k + 1])[0] for k in range(H)]))
    quotient = (8 * (energies[0] - energies[1]) - (energies[2] - energies[3])) / (12 * h)
    assert_close(-average(quotient, TWO), METRICS[name].squared_slope(fields), 1e-9)


@every_metric
def test_precisions_and_devices(name: str, dtype: torch.dtype, device: torch.device) -> None:
    fields, q, _ = build(-1, False, TWO, True, dtype=dtype, device=device)
    metric = METRICS[name]
    velocity = metric.velocity(fields)
    tolerance = 1e-13 if dtype == F64 else 1e-5
    assert_close(velocity, -q[name], tolerance)
    assert velocity.dtype == dtype
    assert velocity.device.type == device.type
    slope2 = metric.squared_slope(fields)
    assert_close(slope2, q[f"slope2_{name}"], tolerance)
    assert slope2.dtype == F64
    mobility = metric.mobility(fields)
    assert mobility.dtype == dtype


@pytest.mark.parametrize("symmetric", [True, False])
def test_one_head_has_one_geometry(symmetric: bool) -> None:
    p = problem(N, D_, 1, symmetric=symmetric, sphere=True)
    measure = ParticleMeasure(p.points, p.weights)
    evaluation = AttentionEnergy(ConstantHeads(p.D)).evaluate(measure, 0.0)
    fields = Fields.of(evaluation, measure, Sphere(), 0.0)
    weighted, headwise = METRICS["weighted"], METRICS["headwise"]
    assert_close(weighted.velocity(fields), headwise.velocity(fields), 1e-14)
    assert_close(weighted.squared_slope(fields), headwise.squared_slope(fields), 1e-14)
    assert_close(weighted.mobility(fields), headwise.mobility(fields)[0], 1e-15)
    assert_close(fields.covariance(), torch.zeros(N, D_), 1e-14, scale=1.0)
    gap = METRICS["w2"].velocity(fields) - weighted.velocity(fields)
    assert float(gap.abs().max()) > 0.1


@every_metric
def test_batched_equals_looped(name: str) -> None:
    generator = np.random.default_rng(0)
    x = Sphere().project_point(torch.from_numpy(generator.standard_normal((2, 3, 4, 3))))
    w = torch.from_numpy(generator.dirichlet(np.ones(4), (2, 3)))
    D = torch.from_numpy(generator.standard_normal((3, 2, 3, 3)))
    metric = METRICS[name]
    measure = ParticleMeasure(x, w)
    batched = Fields.of(AttentionEnergy(ConstantHeads(D)).evaluate(measure, 0.0), measure, Sphere(), 0.0)
    assert metric.squared_slope(batched).shape == (2, 3)
    for i in range(2):
        for j in range(3):
            one = ParticleMeasure(x[i, j], w[i, j])
            single = Fields.of(AttentionEnergy(ConstantHeads(D[j])).evaluate(one, 0.0), one, Sphere(), 0.0)
            assert_close(metric.velocity(batched)[i, j], metric.velocity(single), 1e-14)
            assert_close(metric.squared_slope(batched)[i, j], metric.squared_slope(single), 1e-14)
            assert_close(metric.mobility(batched)[i, j], metric.mobility(single), 1e-14)
            assert_close(batched.covariance()[i, j], single.covariance(), 1e-13)


# energies without heads, other parts


def test_energies_without_heads() -> None:
    measure = ParticleMeasure(problem(N, D_, 1, sphere=True).points)
    fields = Fields.of(QUADRATIC.evaluate(measure, 1.0), measure, Sphere(), 1.0)
    gradient = tangent(measure.points, 2 * QUADRATIC.diagonal * measure.points)
    assert fields.normalized is None
    assert fields.effective_mobility is None
    assert bool((fields.covariance() == 0).all())
    assert_close(Wasserstein2().velocity(fields), -gradient, 1e-15)
    with pytest.raises(InvalidInput, match=r"WeightedWasserstein\(\) needs an energy with heads"):
        WeightedWasserstein().velocity(fields)
    for method in ("velocity", "mobility", "squared_slope"):
        with pytest.raises(InvalidInput, match=r"HeadwiseWasserstein\(\) needs an energy with exactly one"):
            getattr(HeadwiseWasserstein(), method)(fields)


def test_other_parts_are_divided_by_the_mobilities_of_the_heads() -> None:
    p = problem(N, D_, H, sphere=True)
    measure = ParticleMeasure(p.points, p.weights)
    energy = 0.5 * AttentionEnergy(ConstantHeads(p.D, TWO)) + QUADRATIC
    fields = Fields.of(energy.evaluate(measure, 0.5), measure, Sphere(), 0.5)
    q = quantities(p.points, p.weights, p.D, TWO)
    rest = 1.5 * tangent(p.points, QUADRATIC.diagonal * p.points)
    assert_close(Wasserstein2().velocity(fields), -(0.5 * q["gradient"] + rest), 1e-13)
    total = 0.5 * q["gradient"] + rest
    assert_close(WeightedWasserstein().velocity(fields), -total / q["b"][:, None], 1e-13)
    # Every head carries the rest: mean_h (rest / m_h) = rest / b.
    assert_close(HeadwiseWasserstein().velocity(fields), -(0.5 * q["normalized"] + rest / q["b"][:, None]), 1e-13)


# mobilities of one's own


def test_a_mobility_of_ones_own() -> None:
    p = problem(N, D_, H, sphere=True)
    seen = []

    def mobility(measure: ParticleMeasure, t: float) -> Tensor:
        seen.append((measure, t))
        return 1 + t + measure.points[:, 0] ** 2

    measure = ParticleMeasure(p.points, p.weights)
    a = AttentionEnergy(ConstantHeads(p.D))
    b = 1.5 + p.points[:, 0] ** 2
    for energy in (a, a + a, QUADRATIC, a + QUADRATIC):
        flow = GradientFlow(energy, WeightedWasserstein(mobility))
        velocity = flow.velocity(measure, 0.5)
        gradient = tangent(p.points, energy.gradient(measure, 0.5))
        assert_close(velocity, -gradient / b[:, None], 1e-14)
        assert_close(flow.slope(measure, 0.5) ** 2, (p.weights * gradient.square().sum(-1) / b).sum(), 1e-14)
        assert_close(flow.metric.mobility(flow.fields(measure, 0.5)), b, 1e-15)
    assert all(u is measure and t == 0.5 for u, t in seen)


def test_the_mobility_of_the_heads_as_a_function() -> None:
    p = problem(N, D_, H, sphere=True)
    measure = ParticleMeasure(p.points, p.weights)
    energy = AttentionEnergy(ConstantHeads(p.D))

    def mobility(u: ParticleMeasure, t: float) -> Tensor:
        return 1 / (1 / sums(u.points, u.weights, p.D)["mass"]).mean(0)

    own = GradientFlow(energy, WeightedWasserstein(mobility))
    assert_close(own.velocity(measure, 0.0), GradientFlow(energy).velocity(measure, 0.0), 1e-13)


@pytest.mark.parametrize("precision", [torch.int64, torch.float32, F64])
def test_a_mobility_takes_the_precision_of_the_particles(precision: torch.dtype) -> None:
    measure = ParticleMeasure(problem(N, D_, 1, sphere=True).points.float())
    flow = GradientFlow(QUADRATIC, WeightedWasserstein(lambda u, t: torch.full((u.n,), 2, dtype=precision)))
    assert flow.velocity(measure, 0.0).dtype == torch.float32
    plain = GradientFlow(QUADRATIC, Wasserstein2()).velocity(measure, 0.0)
    assert_close(flow.velocity(measure, 0.0), plain / 2, 1e-6)


@pytest.mark.parametrize(
    ("mobility", "message"),
    [
        (lambda u, t: torch.ones(u.n, 1), r"shape \(6,\), got shape \(6, 1\)"),
        (lambda u, t: torch.ones(u.n - 1), r"shape \(6,\), got shape \(5,\)"),
        (lambda u, t: torch.tensor(1.0), r"shape \(6,\), got shape \(\)"),
        (lambda u, t: torch.zeros(u.n), r"finite positive values .* smallest value 0"),
        (lambda u, t: -torch.ones(u.n), r"finite positive values .* smallest value -1"),
        (lambda u, t: torch.full((u.n,), math.inf), "finite positive values"),
        (lambda u, t: torch.full((u.n,), math.nan), "finite positive values .* smallest value nan"),
        (lambda u, t: 2.0, "must return a tensor, got float"),
        (lambda u, t: np.ones(u.n), "must return a tensor, got ndarray"),
        (lambda u, t: None, "must return a tensor, got NoneType"),
    ],
)
def test_mobilities_that_make_no_sense(mobility: Callable[..., Any], message: str) -> None:
    measure = ParticleMeasure(problem(6, D_, 1, sphere=True).points)
    flow = GradientFlow(QUADRATIC, WeightedWasserstein(mobility))
    for call in (flow.velocity, flow.slope, flow.state):
        with pytest.raises(InvalidInput, match=message):
            call(measure, 0.0)


@pytest.mark.parametrize("mobility", [2.0, torch.ones(3), "b"])
def test_mobilities_must_be_functions(mobility: Any) -> None:
    with pytest.raises(InvalidInput, match=r"mobility must be a function \(measure, t\)"):
        WeightedWasserstein(mobility)


# refusals and names


@pytest.mark.parametrize("metric", [WeightedWasserstein(), HeadwiseWasserstein()])
def test_metrics_that_need_the_heads_of_one_attention_energy(metric: AbstractMetric) -> None:
    a = AttentionEnergy(ConstantHeads(torch.eye(3)[None]))
    for energy, count in ((QUADRATIC, 0), (QUADRATIC + 2 * QUADRATIC, 0), (a + a, 2), (a + 2 * (a + QUADRATIC), 2)):
        with pytest.raises(InvalidInput, match=rf"has {count}; use Wasserstein2\(\), or WeightedWasserstein\(mob"):
            metric.check(energy)
        with pytest.raises(InvalidInput, match=type(metric).__name__):
            GradientFlow(energy, metric)
        Wasserstein2().check(energy)
        WeightedWasserstein(lambda u, t: torch.ones(u.n)).check(energy)
    for energy in (a, 2 * a, a + QUADRATIC, -1 * (QUADRATIC + a)):
        metric.check(energy)


@every_metric
def test_names_and_immutability(name: str) -> None:
    metric = METRICS[name]
    assert metric.title == {"w2": "W2", "weighted": "W_{m,2}", "headwise": "head-wise"}[name]
    assert not hasattr(metric, "__dict__")
    with pytest.raises((AttributeError, TypeError)):
        metric.mobility_function = None  # type: ignore[attr-defined]


# norms


def test_norms_are_taken_in_double_precision(device: torch.device) -> None:
    v = torch.tensor([[1e25, 1e25], [3.0, 4.0]], dtype=torch.float32, device=device)
    assert_close(squared_norm(v), torch.tensor([2e50, 25.0], dtype=F64), 1e-7)
    w = torch.tensor([0.25, 0.75], dtype=torch.float32, device=device)
    average_ = mass_average(w, squared_norm(v))
    assert average_.dtype == F64
    assert_close(average_, 0.5e50, 1e-7)


def test_products_of_the_helpers() -> None:
    u = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert float(mass_product(torch.tensor([0.5, 0.25]), u, u)) == 0.5 * 5 + 0.25 * 25
