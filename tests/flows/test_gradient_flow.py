from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import iv
from torch import Tensor

import jko
from jko.energies import AttentionEnergy
from jko.errors import InvalidInput
from jko.flows import AbstractFlow, FlowState, GradientFlow
from jko.heads import ConstantHeads, TabulatedHeads
from jko.manifolds import Euclidean, Sphere
from jko.measure import ParticleMeasure
from jko.metrics import HeadwiseWasserstein, Wasserstein2, WeightedWasserstein
from tests.oracles.attention import assert_close, average, exponents, problem, tangent
from tests.oracles.energies import Quadratic
from tests.oracles.flows import METRICS, flow, mass_product, quantities
from tests.oracles.memory import Recorder

F64 = torch.float64
THETA = torch.tensor([0.5, 0.25, 0.25], dtype=F64)
CASES = [
    pytest.param(name, sign, symmetric, theta, id=f"{name}-{sign:+d}-{symmetric}-{theta is None}")
    for name in METRICS
    for sign in (1, -1)
    for symmetric in (True, False)
    for theta in (None, THETA)
]
every_case = pytest.mark.parametrize(("name", "sign", "symmetric", "theta"), CASES)
every_metric = pytest.mark.parametrize("name", METRICS)
STATE = {"energy", "slope2", "dissipation", "paper_slope2", "covariance_defect"}


def cloud(symmetric: bool = True, weights: str = "unequal", n: int = 6, H: int = 3) -> tuple[ParticleMeasure, Tensor]:
    p = problem(n, 3, H, symmetric=symmetric, weights=weights, sphere=True)
    return ParticleMeasure(p.points, p.weights), p.D


# velocity, slope, state


@every_case
def test_velocity_slope_and_state(name: str, sign: int, symmetric: bool, theta: Tensor | None) -> None:
    measure, D = cloud(symmetric, "tracers")
    f = flow(D, name, sign, head_weights=theta)
    q, w = quantities(measure.points, measure.weights, D, theta), measure.weights
    velocity = sign * q[name]
    assert_close(f.velocity(measure, 0.0), velocity, 1e-13)
    assert_close(f.slope(measure, 0.0), q[f"slope2_{name}"].sqrt(), 1e-13)
    state = f.state(measure, 0.0)
    assert isinstance(state, FlowState)
    assert state.measure is measure
    assert state.t == 0.0
    assert torch.equal(state.velocity, f.velocity(measure, 0.0))
    assert set(state.columns) == STATE
    assert all(type(value) is float for value in state.columns.values())
    expected = {
        "energy": f.energy.value(measure, 0.0),
        "slope2": q[f"slope2_{name}"],
        "dissipation": -mass_product(w, q["gradient"], q[name]),
        "paper_slope2": q["paper_slope2"],
        "covariance_defect": q["defect"],
    }
    for column, value in expected.items():
        assert_close(state.columns[column], float(value), 1e-12)
    assert f.value(measure, 0.0) == pytest.approx(state.columns["energy"], rel=1e-15)
    assert state.evaluation is not None
    again = f.state_of(f.fields(measure, 0.0, state.evaluation))
    assert again.columns == state.columns


@every_case
def test_the_energy_falls_at_the_rate_of_the_dissipation(
    name: str, sign: int, symmetric: bool, theta: Tensor | None
) -> None:
    measure, D = cloud(symmetric, "tracers")
    f, sphere, h = flow(D, name, sign, head_weights=theta), Sphere(), 1e-3
    state = f.state(measure, 0.0)

    def energy(step: float) -> float:
        return float(f.energy.value(measure.moved(sphere.exp(measure.points, step * state.velocity)), 0.0))

    quotient = (8 * (energy(h) - energy(-h)) - (energy(2 * h) - energy(-2 * h))) / (12 * h)
    assert quotient == pytest.approx(-state.columns["dissipation"], rel=1e-9, abs=1e-11)
    if name != "headwise":
        assert state.columns["dissipation"] == pytest.approx(state.columns["slope2"], rel=1e-12)


@every_case
def test_the_gap_between_dissipation_and_the_paper_slope(
    name: str, sign: int, symmetric: bool, theta: Tensor | None
) -> None:
    measure, D = cloud(symmetric)
    f = flow(D, "headwise", sign, head_weights=theta)
    fields, columns = f.fields(measure, 0.0), f.state(measure, 0.0).columns
    assert fields.normalized is not None
    assert fields.effective_mobility is not None
    gap = -mass_product(measure.weights * fields.effective_mobility, fields.covariance(), fields.normalized)
    assert columns["dissipation"] - columns["paper_slope2"] == pytest.approx(float(gap), rel=1e-11)


@every_metric
def test_both_signs_move_opposite_ways(name: str) -> None:
    measure, D = cloud(symmetric=False)
    plus, minus = flow(D, name), flow(D, name, -1)
    assert torch.equal(plus.velocity(measure, 0.0), -minus.velocity(measure, 0.0))
    assert plus.state(measure, 0.0).columns["energy"] == -minus.state(measure, 0.0).columns["energy"]
    for column in STATE - {"energy"}:
        assert plus.state(measure, 0.0).columns[column] == minus.state(measure, 0.0).columns[column]


def test_tokens_repel_at_plus_and_cluster_at_minus() -> None:
    measure = ParticleMeasure([[1.0, 0.0], [0.0, 1.0]])
    for name in METRICS:
        v = flow(torch.eye(2)[None], name).velocity(measure, 0.0)
        assert float(v[0, 1]) < 0
        assert float(flow(torch.eye(2)[None], name, -1).velocity(measure, 0.0)[0, 1]) > 0


def test_the_heads_are_those_of_the_time_asked_for() -> None:
    measure, D = cloud()
    other = cloud(n=7)[1]
    path = TabulatedHeads([0.0, 2.0], torch.stack([D, other]))
    for name, metric in METRICS.items():
        f = GradientFlow(AttentionEnergy(path), metric)
        assert f.moves
        frozen = flow((3 * D + other) / 4, name)
        assert not frozen.moves
        assert_close(f.velocity(measure, 0.5), frozen.velocity(measure, 0.0), 1e-13)
        assert f.state(measure, 0.5).t == 0.5
        with pytest.raises(InvalidInput, match="t = "):
            f.velocity(measure, 2.5)


def test_a_state_is_one_pass() -> None:
    measure, D = cloud()
    passes = {}
    for name in METRICS:
        f = flow(D, name)
        with Recorder() as recorder:
            f.state(measure, 0.0)
        passes[name] = len(recorder.exponentials)
        with Recorder() as recorder:
            f.energy.evaluate(measure, 0.0)
        assert len(recorder.exponentials) == passes[name] == 1


def test_an_evaluation_at_hand_is_not_made_again() -> None:
    measure, D = cloud()
    f = flow(D, "headwise")
    evaluation = f.energy.evaluate(measure, 0.0)
    with Recorder() as recorder:
        fields = f.fields(measure, 0.0, evaluation)
        f.state_of(fields)
    assert recorder.exponentials == []
    assert fields.evaluation is evaluation


@every_metric
def test_no_graph_is_left_behind(name: str) -> None:
    measure, D = cloud()
    f = flow(D, name)
    assert torch.is_grad_enabled()
    assert not f.velocity(measure, 0.0).requires_grad
    assert not f.slope(measure, 0.0).requires_grad


# invariances


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 8), d=st.integers(2, 5), H=st.integers(1, 4))
def test_rotations_permutations_and_repeated_particles(seed: int, n: int, d: int, H: int) -> None:
    generator = np.random.default_rng(seed)
    p = problem(n, d, H, symmetric=bool(seed % 2), sphere=True, seed=seed)
    R = torch.from_numpy(np.linalg.qr(generator.standard_normal((d, d)))[0])
    measure = ParticleMeasure(p.points, p.weights)
    turned = ParticleMeasure(Sphere().project_point(p.points @ R.T), p.weights)
    order = torch.from_numpy(generator.permutation(n))
    shuffled = ParticleMeasure(p.points[order], p.weights[order])
    w = torch.cat([p.weights, p.weights[:1] / 2])
    w[0] /= 2
    repeated = ParticleMeasure(torch.cat([p.points, p.points[:1]]), w)
    for name in METRICS:
        f = flow(p.D, name)
        v, columns = f.velocity(measure, 0.0), f.state(measure, 0.0).columns
        # The velocity is a difference of head gradients of this size.
        scale = float(f.energy.gradient(measure, 0.0).abs().max() + f.energy.value(measure, 0.0))
        assert_close(flow(R @ p.D @ R.T, name).velocity(turned, 0.0), v @ R.T, 1e-11, scale=scale)
        assert_close(f.velocity(shuffled, 0.0), v[order], 1e-12, scale=scale)
        assert_close(f.velocity(repeated, 0.0), torch.cat([v, v[:1]]), 1e-12, scale=scale)
        for column, value in f.state(repeated, 0.0).columns.items():
            assert value == pytest.approx(columns[column], rel=1e-10, abs=1e-12 * (1 + scale**2))


@every_case
def test_tracers_change_nothing_and_move_with_the_field(
    name: str, sign: int, symmetric: bool, theta: Tensor | None
) -> None:
    measure, D = cloud(symmetric, "tracers")
    f, massive = flow(D, name, sign, head_weights=theta), measure.weights > 0
    dropped = ParticleMeasure(measure.points[massive], measure.weights[massive])
    assert_close(f.velocity(measure, 0.0)[massive], f.velocity(dropped, 0.0), 1e-13)
    for column, value in f.state(measure, 0.0).columns.items():
        assert value == pytest.approx(f.state(dropped, 0.0).columns[column], rel=1e-13)
    # A tracer on a particle moves with it.
    both = ParticleMeasure(
        torch.cat([dropped.points, dropped.points[:1]]), torch.cat([dropped.weights, torch.zeros(1, dtype=F64)])
    )
    velocity = f.velocity(both, 0.0)
    assert_close(velocity[-1], velocity[0], 1e-13)


@every_metric
def test_tracers_where_exp_overflows_leave_the_columns_alone(name: str) -> None:
    D = torch.tensor([[[1.0, 0.0], [0.0, 0.5]], [[0.3, 0.2], [0.2, 0.0]]], dtype=F64)
    f = flow(D, name, manifold=Euclidean())
    x = torch.tensor([[1.0, 0.0], [0.5, -1.0], [5000.0, 0.0]], dtype=F64)
    measure = ParticleMeasure(x, [0.5, 0.5, 0.0])
    dropped = ParticleMeasure(x[:2], [0.5, 0.5])
    assert f.state(measure, 0.0).columns == pytest.approx(f.state(dropped, 0.0).columns, rel=1e-13)
    assert_close(f.velocity(measure, 0.0)[:2], f.velocity(dropped, 0.0), 1e-14)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_one_head_has_one_geometry(sign: int, symmetric: bool) -> None:
    measure, D = cloud(symmetric, H=1)
    weighted, headwise = flow(D, "weighted", sign), flow(D, "headwise", sign)
    assert_close(weighted.velocity(measure, 0.0), headwise.velocity(measure, 0.0), 1e-14)
    columns = weighted.state(measure, 0.0).columns
    assert headwise.state(measure, 0.0).columns == pytest.approx(columns, rel=1e-12, abs=1e-14)
    # Here the paper's identity closes.
    for column in ("dissipation", "paper_slope2"):
        assert columns[column] == pytest.approx(columns["slope2"], rel=1e-13)
    assert columns["covariance_defect"] < 1e-14


def test_for_symmetric_heads_the_head_wise_velocity_is_the_transformer() -> None:
    measure, D = cloud()
    attention = exponents(measure.points, D).add(measure.weights.log()).softmax(-1)
    output = torch.einsum("hij,hde,je->hid", attention, D, measure.points).mean(0)
    expected = -tangent(measure.points, output)
    assert_close(flow(D, "headwise").velocity(measure, 0.0), expected, 1e-13)


# closed forms


@pytest.mark.parametrize("s", [1, -1])
def test_equiangular_tokens(s: int) -> None:
    # d/dt <x_i, x_j> at n tokens of equal inner products, D = beta Id; s = -sign.
    n, gamma, betas = 5, 0.3, torch.tensor([1.0, 3.0], dtype=F64)
    gram = (1 - gamma) * torch.eye(n, dtype=F64) + gamma
    x = torch.linalg.cholesky(gram)
    measure = ParticleMeasure(x)
    common = 2 * s * (1 - gamma) * (1 + (n - 1) * gamma)
    kernel = (betas * gamma).exp()
    m = (betas.exp() + (n - 1) * kernel) / n
    expected = {
        "headwise": (betas * kernel / m).mean() / n,
        "weighted": (1 / m).mean() * (betas * kernel).mean() / n,
        "w2": (betas * kernel).mean() / n,
    }
    D = betas[:, None, None] * torch.eye(n, dtype=F64)
    for name, rate in expected.items():
        v = flow(D, name, -s).velocity(measure, 0.0)
        rates = v @ x.T + x @ v.T
        off = ~torch.eye(n, dtype=torch.bool)
        assert_close(rates[off], (common * rate).expand(n * (n - 1)), 1e-13)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("theta", [None, THETA])
@pytest.mark.parametrize("n", [1, 4])
def test_collapsed_clouds(sign: int, theta: Tensor | None, n: int) -> None:
    # All tokens at x: the Oja flow of a mean of the symmetric parts.
    p = problem(1, 3, 3, symmetric=False, sphere=True)
    x = p.points
    measure = ParticleMeasure(x.expand(n, 3), problem(n, 3, 1).weights)
    m = torch.einsum("nd,hde,ne->h", x, p.D, x).exp()
    S = (p.D + p.D.mT) / 2
    mean = {
        "headwise": average(S, theta),
        "weighted": average(1 / m, theta) * average(m[:, None, None] * S, theta),
        "w2": average(m[:, None, None] * S, theta),
    }
    for name, matrix in mean.items():
        f = flow(p.D, name, sign, head_weights=theta)
        expected = -sign * tangent(x, x @ matrix)
        assert_close(f.velocity(measure, 0.0), expected.expand(n, 3), 1e-13)
        assert f.state(measure, 0.0).columns["energy"] == pytest.approx(sign * float(average(m, theta)) / 2, rel=1e-13)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_modes_around_the_uniform_measure_on_the_circle(k: int) -> None:
    n, size, betas = 64, 1e-7, np.array([2.0, 1.0])
    angles = 2 * math.pi * np.arange(n) / n
    shift = size * np.cos(k * angles)
    points = np.stack([np.cos(angles + shift), np.sin(angles + shift)], -1)
    normal = torch.from_numpy(np.stack([-points[:, 1], points[:, 0]], -1))
    measure = ParticleMeasure(points)
    lambda_0, lambda_k = iv(0, betas), iv(k, betas)
    for count in (1, 2):
        zeroth, kth = lambda_0[:count], lambda_k[:count]
        rates = {
            "headwise": (kth / zeroth).mean(),
            "weighted": (1 / zeroth).mean() * kth.mean(),
            "w2": kth.mean(),
        }
        D = torch.from_numpy(betas[:count])[:, None, None] * torch.eye(2, dtype=F64)
        for name, rate in rates.items():
            angular = (flow(D, name).velocity(measure, 0.0) * normal).sum(-1)
            # For sign = +1 every mode decays.
            assert_close(angular, torch.from_numpy(-(k**2) * rate * shift), 1e-6)
        if count == 1:
            known = {1: 0.698, 2: 1.209, 3: 0.840}[k]
            assert k**2 * rates["headwise"] == pytest.approx(known, abs=1e-3)


# two tokens, Finding 1


def two_tokens(betas: tuple[float, ...], inner: float = 0.0) -> tuple[ParticleMeasure, Tensor]:
    D = torch.tensor(betas, dtype=F64)[:, None, None] * torch.eye(2, dtype=F64)
    return ParticleMeasure(torch.tensor([[1.0, 0.0], [inner, math.sqrt(1 - inner**2)]], dtype=F64)), D


def test_two_tokens_where_the_slope_of_the_paper_is_no_upper_gradient() -> None:
    measure, D = two_tokens((1.0, 3.0))
    headwise = flow(D, "headwise").state(measure, 0.0).columns
    weighted = flow(D, "weighted").state(measure, 0.0).columns
    b = flow(D, "weighted").fields(measure, 0.0).effective_mobility
    assert b is not None
    assert float(b[0]) == pytest.approx(3.160883, abs=1e-6)
    assert headwise["paper_slope2"] == weighted["paper_slope2"] == pytest.approx(0.133627, abs=1e-6)
    assert headwise["dissipation"] == pytest.approx(0.205610, abs=1e-6)
    assert weighted["slope2"] == weighted["dissipation"] == pytest.approx(0.316367, abs=1e-6)
    assert headwise["covariance_defect"] == weighted["covariance_defect"] == pytest.approx(0.196915, abs=1e-6)
    assert weighted["slope2"] > weighted["paper_slope2"]


def test_two_tokens_whose_energy_rises() -> None:
    measure, D = two_tokens((3.99, -1.97))
    f = flow(D, "headwise")
    columns = f.state(measure, 0.0).columns
    assert columns["dissipation"] == pytest.approx(-0.4182, abs=5e-5)
    assert columns["paper_slope2"] == pytest.approx(0.766, abs=5e-4)
    assert columns["covariance_defect"] == pytest.approx(1.353026, abs=1e-6)
    assert flow(D, "weighted").state(measure, 0.0).columns["slope2"] == pytest.approx(0.228, abs=5e-4)
    moved = measure.moved(Sphere().exp(measure.points, 1e-3 * f.velocity(measure, 0.0)))
    assert f.energy.value(moved, 0.0) > f.energy.value(measure, 0.0)


def test_the_transformer_rests_where_the_gradient_does_not_vanish() -> None:
    for inner, resting, moving in ((0.785554, "headwise", "w2"), (-0.118416, "w2", "headwise")):
        measure, D = two_tokens((3.99, -1.97), inner)
        assert float(flow(D, resting).velocity(measure, 0.0).abs().max()) < 1e-5
        assert float(flow(D, moving).velocity(measure, 0.0).abs().max()) > 0.1


# other energies and spaces


@every_case
def test_flat_space(name: str, sign: int, symmetric: bool, theta: Tensor | None) -> None:
    p = problem(6, 3, 3, symmetric=symmetric, weights="tracers")
    measure = ParticleMeasure(p.points, p.weights)
    f = flow(p.D, name, sign, manifold=Euclidean(), head_weights=theta)
    q = quantities(p.points, p.weights, p.D, theta, sphere=False)
    assert_close(f.velocity(measure, 0.0), sign * q[name], 1e-13)
    assert_close(f.slope(measure, 0.0), q[f"slope2_{name}"].sqrt(), 1e-13)
    columns = f.state(measure, 0.0).columns
    assert columns["paper_slope2"] == pytest.approx(float(q["paper_slope2"]), rel=1e-12)
    assert columns["covariance_defect"] == pytest.approx(float(q["defect"]), rel=1e-12)


def test_an_energy_without_heads() -> None:
    energy = Quadratic(torch.tensor([1.0, -2.0, 0.5], dtype=F64))
    measure = ParticleMeasure(problem(6, 3, 1).points)
    f = GradientFlow(energy, Wasserstein2(), Euclidean())
    state = f.state(measure, 1.0)
    # A column that a flow does not have is absent.
    assert set(state.columns) == {"energy", "slope2", "dissipation"}
    assert_close(state.velocity, -2 * energy.diagonal * measure.points, 1e-15)
    assert f.title == "W2"
    assert f.moves
    assert f.explain_non_finite(measure, 0.0) == "not finite: quadratic, of which no exponent is known"


def test_energies_that_are_switched_off_do_not_move() -> None:
    measure, D = cloud()
    for metric in METRICS.values():
        f = GradientFlow(jko.Scaled(AttentionEnergy(ConstantHeads(D)), lambda t: math.sin(math.pi * t)), metric)
        for t in (0.0, 1.0):
            state = f.state(measure, t)
            assert float(state.velocity.abs().max()) < 1e-14
            assert all(abs(value) < 1e-12 for value in state.columns.values())
        assert bool((f.velocity(measure, 0.0) == 0).all())
        # A negative coefficient is the other sign.
        assert_close(f.velocity(measure, 1.5), GradientFlow(-1 * f.energy.energy, metric).velocity(measure, 0.0), 1e-13)  # type: ignore[attr-defined]


@every_metric
def test_batches(name: str) -> None:
    generator = np.random.default_rng(0)
    x = Sphere().project_point(torch.from_numpy(generator.standard_normal((2, 4, 3))))
    D = torch.from_numpy(generator.standard_normal((2, 3, 3, 3)))
    measure, f = ParticleMeasure(x), flow(D, name)
    velocity, slope = f.velocity(measure, 0.0), f.slope(measure, 0.0)
    assert slope.shape == (2,)
    for k in range(2):
        single = flow(D[k], name)
        assert_close(velocity[k], single.velocity(ParticleMeasure(x[k]), 0.0), 1e-13)
        assert_close(slope[k], single.slope(ParticleMeasure(x[k]), 0.0), 1e-13)


@every_metric
def test_precisions_and_devices(name: str, dtype: torch.dtype, device: torch.device) -> None:
    exact, D = cloud(symmetric=False)
    measure, f = exact.to(dtype=dtype, device=device), flow(D, name, -1)
    velocity = f.velocity(measure, 0.0)
    assert velocity.dtype == dtype
    assert velocity.device.type == device.type
    tolerance = 1e-13 if dtype == F64 else 1e-5
    assert_close(velocity, f.velocity(exact, 0.0), tolerance)
    assert f.slope(measure, 0.0).dtype == F64
    assert f.state(measure, 0.0).columns == pytest.approx(f.state(exact, 0.0).columns, rel=tolerance)


# construction and refusals


def test_defaults() -> None:
    energy = AttentionEnergy(ConstantHeads(torch.eye(3)[None]))
    f = jko.GradientFlow(energy)
    assert isinstance(f, AbstractFlow)
    assert isinstance(f.metric, WeightedWasserstein)
    assert isinstance(f.manifold, Sphere)
    assert f.energy is energy
    assert not hasattr(f, "__dict__")
    with pytest.raises((AttributeError, TypeError)):
        f.energy = energy  # type: ignore[misc]


def test_titles_name_metric_and_sign() -> None:
    D = torch.eye(3)[None]
    assert [flow(D, name).title for name in METRICS] == [
        "W2, sign = +1",
        "W_{m,2}, sign = +1",
        "head-wise, sign = +1",
    ]
    assert flow(D, "w2", -1).title == "W2, sign = -1"
    both = AttentionEnergy(ConstantHeads(D)) + AttentionEnergy(ConstantHeads(D), sign=-1)
    assert GradientFlow(both, Wasserstein2()).title == "W2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((AttentionEnergy,), r"energy must be an instance of AbstractEnergy.*write AttentionEnergy\(\)"),
        ((3,), "energy must be an instance of AbstractEnergy, got 3"),
        ((None, Wasserstein2), r"metric must be an instance of AbstractMetric.*write Wasserstein2\(\)"),
        ((None, "w2"), "metric must be an instance of AbstractMetric, got 'w2'"),
        ((None, None, Sphere), r"manifold must be an instance of AbstractManifold.*write Sphere\(\)"),
        ((None, Sphere()), "metric must be an instance of AbstractMetric"),
    ],
)
def test_arguments_of_another_kind(arguments: tuple[Any, ...], message: str) -> None:
    energy = AttentionEnergy(ConstantHeads(torch.eye(3)[None]))
    arguments = tuple(energy if k == 0 and a is None else a for k, a in enumerate(arguments))
    with pytest.raises(InvalidInput, match=message):
        GradientFlow(*arguments)


@every_metric
def test_points_must_lie_on_the_manifold(name: str) -> None:
    measure = ParticleMeasure([[1.0, 0.0, 0.0], [0.0, 1.1, 0.0]])
    f = flow(torch.eye(3)[None], name)
    for call in (f.velocity, f.slope):
        with pytest.raises(InvalidInput, match=r"points\[1\] has norm 1\.1"):
            call(measure, 0.0)
    flow(torch.eye(3)[None], name, manifold=Euclidean()).velocity(measure, 0.0)
    for call in (f.velocity, f.slope):
        with pytest.raises(InvalidInput, match=r"ParticleMeasure, got Tensor; wrap it in ParticleMeasure$"):
            call(measure.points, 0.0)  # type: ignore[arg-type]


def test_dimensions_must_agree() -> None:
    with pytest.raises(InvalidInput, match="do not fit points"):
        flow(torch.eye(3)[None], "w2").velocity(ParticleMeasure([[1.0, 0.0]]), 0.0)


@pytest.mark.parametrize(
    ("precision", "above", "below"), [(torch.float32, "88.72", "-103.3"), (F64, "709.8", "-744.4")]
)
def test_overflow_and_underflow_are_explained(precision: torch.dtype, above: str, below: str) -> None:
    measure = ParticleMeasure(torch.tensor([[30.0, 0.0]], dtype=precision))
    limits = f"; exp overflows {precision} above {above} and underflows to 0 below {below}"
    f = flow(torch.eye(2)[None], "w2", manifold=Euclidean())
    assert f.explain_non_finite(measure, 0.0) == "largest exponent 900" + limits
    assert f.value(measure, 0.0) == math.inf
    assert not bool(f.velocity(measure, 0.0).isfinite().all())
    # Underflow: nothing moves in W_2, and a mobility is 0.
    f = flow(-torch.eye(2)[None], "w2", manifold=Euclidean())
    assert f.explain_non_finite(measure, 0.0) == "largest exponent -900" + limits
    assert f.value(measure, 0.0) == 0.0
    assert bool((f.velocity(measure, 0.0) == 0).all())
    # The quotient is a number where both of its parts are 0.
    weighted = flow(-torch.eye(2)[None], "weighted", manifold=Euclidean())
    assert torch.equal(weighted.velocity(measure, 0.0), measure.points)


def test_headwise_needs_heads() -> None:
    with pytest.raises(InvalidInput, match=r"HeadwiseWasserstein\(\) needs the heads of one attention energy"):
        GradientFlow(Quadratic(torch.ones(3)), HeadwiseWasserstein())
