"""What a minimizing movement must do on small inputs, at its edges, and when it cannot be done."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import jko
from jko.errors import InvalidInput
from jko.status import Status
from tests.schemes.problems import METRICS, SIGNS, attention, gap, rotation, solver, succeeded, tokens

EUCLIDEAN = jko.Euclidean()
LINE = torch.ones(1, 1, 1, dtype=torch.float64)
PLANE = torch.eye(2, dtype=torch.float64)[None]
D2 = jko.initial_heads(2, 3, 1) * 0.5

every_metric = pytest.mark.parametrize("metric", METRICS)
every_sign = pytest.mark.parametrize("sign", SIGNS)
every_method = pytest.mark.parametrize("method", ["anderson", "trust"])


def circle(*angles: float) -> Tensor:
    return torch.tensor([[math.cos(a), math.sin(a)] for a in angles], dtype=torch.float64)


# factors 1/2 and 2


@every_method
def test_one_particle_on_the_line(method: str) -> None:
    flow = attention(LINE, "w2", 1, EUCLIDEAN)
    step = succeeded(jko.JKO(0.1, **solver(method)).step(flow, jko.ParticleMeasure([[1.0]])))
    x = float(step.measure.points)
    assert x == pytest.approx(0.833187, abs=5e-7)
    assert abs(x - 1 + 0.1 * x * math.exp(x * x)) < 1e-7
    # The cost without its 1/2, the energy without its 1/2, and an explicit step.
    assert all(abs(x - wrong) > 0.01 for wrong in (0.899107, 0.742370, 0.728172))
    explicit = jko.ExplicitEuler(0.1).step(flow, jko.ParticleMeasure([[1.0]]))
    assert float(explicit.measure.points) == pytest.approx(0.728172, abs=5e-7)


@every_method
@pytest.mark.parametrize(("sign", "angle", "chordal"), [(1, 0.569039, 0.569090), (-1, 0.427282, 0.427219)])
def test_two_particles_on_the_circle(method: str, sign: int, angle: float, chordal: float) -> None:
    y = jko.ParticleMeasure(circle(0.5, -0.5))
    step = succeeded(jko.JKO(0.1, **solver(method)).step(attention(PLANE, "w2", sign), y))
    angles = torch.atan2(step.measure.points[:, 1], step.measure.points[:, 0])
    assert gap(angles, [angle, -angle]) < 6e-7
    assert gap(angles, [chordal, -chordal]) > 2e-5


# measures: copies, tracers, labels


@every_method
@pytest.mark.parametrize(
    ("scale", "expected", "tolerance"),
    [
        (1.0, [[-0.029913, -0.034444], [-0.009755, -0.054233]], 1e-6),
        (0.001, [[-3.3915e-5, -4.0524e-5], [-1.1545e-5, -6.4206e-5]], 1e-9),
    ],
)
@pytest.mark.parametrize("copies", [1, 10, 100])
def test_displacement_does_not_depend_on_the_number_of_copies(
    method: str, scale: float, expected: list[list[float]], tolerance: float, copies: int
) -> None:
    energy = jko.Scaled(jko.AttentionEnergy(jko.ConstantHeads(PLANE)), scale)
    y = jko.ParticleMeasure([[0.6, 0.1], [-0.2, 0.7]] * copies)
    flow = jko.GradientFlow(energy, jko.Wasserstein2(), EUCLIDEAN)
    info = succeeded(jko.JKO(0.1, **solver(method)).step(flow, y)).info
    assert gap(info.displacement, expected * copies) < tolerance
    if scale == 1.0:
        assert info.energy_previous == pytest.approx(0.631141, abs=5e-7)
        assert info.squared_distance == pytest.approx(0.00255878, abs=5e-9)


@every_metric
@every_sign
@every_method
@pytest.mark.parametrize("copies", [2, 5])
def test_copies_move_alike(metric: str, sign: int, method: str, copies: int) -> None:
    # tau beta e^beta is far below the mobility, so that no minimizer splits a place.
    scheme = jko.JKO(0.05, **solver(method, 1e-11))
    flow = attention(D2, metric, sign)
    once = succeeded(scheme.step(flow, jko.ParticleMeasure(tokens(6)))).measure.points
    many = succeeded(scheme.step(flow, jko.ParticleMeasure(tokens(6).repeat(copies, 1)))).measure.points
    places = many.reshape(copies, 6, 3)
    assert gap(places, places[:1].expand_as(places)) < 1e-12
    assert gap(places[0], once) < 1e-11
    heavy = jko.ParticleMeasure(torch.cat([tokens(6), tokens(6)[:1]]), [1 / 12, *[1 / 6] * 5, 1 / 12])
    mixed = succeeded(scheme.step(flow, heavy)).measure.points
    assert gap(mixed[:6], once) < 1e-11
    assert gap(mixed[6], mixed[0]) < 1e-12


@every_metric
@pytest.mark.parametrize("copies", [2, 50])
def test_copies_move_alike_explicitly(metric: str, copies: int) -> None:
    flow = attention(jko.initial_heads(3, 3, 0), metric)
    scheme = jko.ExplicitEuler(0.1)
    once = scheme.step(flow, jko.ParticleMeasure(tokens(4))).measure.points
    many = scheme.step(flow, jko.ParticleMeasure(tokens(4).repeat(copies, 1))).measure.points
    assert gap(many, once.repeat(copies, 1)) < 1e-12


# Steps that are too large for fixed points alone; the trust region, which serves as the fallback, solves all of them.
TOO_LARGE = [
    *(("w2", 1, 0.2), ("w2", 1, 1.0), ("w2", -1, 0.2), ("w2", -1, 1.0), ("weighted", 1, 1.0), ("weighted", -1, 0.2)),
    *(("weighted", -1, 1.0), ("headwise", 1, 1.0), ("headwise", -1, 0.2), ("headwise", -1, 1.0)),
]


@pytest.mark.parametrize(
    ("metric", "sign", "tau", "method"),
    [
        (*row, method)
        for method in ("anderson", "trust")
        for row in itertools.product(METRICS, SIGNS, (0.01, 0.2, 1.0))
        if method == "trust" or row not in TOO_LARGE
    ],
)
def test_tracers_change_nothing_and_are_solved_as_well(metric: str, sign: int, tau: float, method: str) -> None:
    mass = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0], dtype=torch.float64)
    flow = attention(D2, metric, sign)
    scheme = jko.JKO(tau, **solver(method))
    without = succeeded(scheme.step(flow, jko.ParticleMeasure(tokens(4), mass[:4])))
    step = succeeded(scheme.step(flow, jko.ParticleMeasure(tokens(7), mass)))
    info = step.info
    assert info.residual <= 1e-8
    assert gap(step.measure.points[:4], without.measure.points) < 1e-6
    assert info.squared_distance == pytest.approx(without.info.squared_distance, abs=1e-7)
    # The tracers are stationary where they went, each for itself.
    state = flow.energy.evaluate(step.measure, tau)
    if metric == "w2":
        y, x = tokens(7), step.measure.points
        pull = jko.Sphere().exp_adjoint(y, info.displacement, state.gradient)
        defect = info.displacement / tau + pull
        assert float(defect[4:].norm()) < 1e-6
        assert float((x - y)[4:].norm()) > 1e-4


@pytest.mark.parametrize("seed", [1, 3])
def test_the_trust_region_solves_large_steps_with_tracers(seed: int) -> None:
    mass = torch.full((12,), 1 / 8, dtype=torch.float64)
    mass[8:] = 0
    for metric in METRICS:
        for sign in SIGNS:
            flow = attention(jko.initial_heads(3, 3, seed), metric, sign)
            y = jko.ParticleMeasure(jko.initial_tokens(12, 3, seed), mass)
            scheme = jko.JKO(0.3, **solver("trust"))
            alone = scheme.step(flow, jko.ParticleMeasure(y.points[:8]))
            step = scheme.step(flow, y)
            assert step.info.status is alone.info.status
            if alone.info.status.ok:
                assert gap(step.measure.points[:8], alone.measure.points) < 1e-6


def test_a_dead_particle_is_not_charged() -> None:
    y = jko.ParticleMeasure([[0.0], [1.0], [10.0]], [0.5, 0.5, 0.0])
    flow = attention(0.01 * LINE, "w2", 1, EUCLIDEAN)
    step = succeeded(jko.JKO(0.1).step(flow, y))
    alone = succeeded(jko.JKO(0.1).step(flow, jko.ParticleMeasure([[0.0], [1.0]])))
    assert gap(step.measure.points[:2], alone.measure.points) < 1e-12
    assert step.info.squared_distance == pytest.approx(alone.info.squared_distance, rel=1e-9)
    assert step.info.certified == 1


@every_metric
@every_sign
@settings(max_examples=8, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 7), d=st.integers(2, 4))
def test_rotations_and_relabeling(metric: str, sign: int, seed: int, n: int, d: int) -> None:
    x = tokens(n, d, seed)
    D = jko.initial_heads(2, d, seed % 1000) * 0.4
    w = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    w = w / w.sum()
    R = rotation(d, seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for scheme in (
        jko.JKO(0.05, minimizer=jko.Anderson(1e-11), fallback=jko.TrustNewton(1e-11)),
        jko.ExplicitEuler(0.05),
    ):
        plain = scheme.step(attention(D, metric, sign), jko.ParticleMeasure(x, w)).measure.points
        turned = scheme.step(attention(R @ D @ R.mT, metric, sign), jko.ParticleMeasure(x @ R.mT, w)).measure.points
        assert gap(turned, plain @ R.mT) < 1e-10
        relabeled = scheme.step(attention(D, metric, sign), jko.ParticleMeasure(x[order], w[order])).measure.points
        assert gap(relabeled, plain[order]) < 1e-10


@every_metric
def test_head_weights_count_heads(metric: str) -> None:
    D = jko.initial_heads(2, 3, 4) * 0.5
    three = attention(torch.stack([D[0], D[0], D[1]]), metric)
    weighted = attention(D, metric, head_weights=[2 / 3, 1 / 3])
    scheme = jko.JKO(0.1, minimizer=jko.Anderson(1e-11))
    one, two = (succeeded(scheme.step(flow, jko.ParticleMeasure(tokens(6)))) for flow in (three, weighted))
    assert gap(one.measure.points, two.measure.points) < 1e-10
    for name in ("squared_distance", "energy_previous", *(["head_energy"] if metric == "headwise" else [])):
        assert one.info.columns[name] == pytest.approx(two.info.columns[name], rel=1e-9)
    dead = attention(D, metric, head_weights=[1.0, 0.0])
    single = attention(D[:1], metric)
    one, two = (succeeded(scheme.step(flow, jko.ParticleMeasure(tokens(6)))) for flow in (dead, single))
    assert gap(one.measure.points, two.measure.points) < 1e-10


# steps that must not move


@every_metric
@every_method
def test_zero_heads_give_the_identity(metric: str, method: str) -> None:
    for manifold, y in ((EUCLIDEAN, tokens(5) * 3), (jko.Sphere(), tokens(5))):
        flow = attention(torch.zeros(2, 3, 3), metric, 1, manifold)
        step = succeeded(jko.JKO(0.1, **solver(method)).step(flow, jko.ParticleMeasure(y)))
        assert gap(step.measure.points, y) < 1e-15 * 4
        assert step.info.residual == 0
        assert step.info.largest_displacement == 0
        assert step.info.certified == 1
        assert all(math.isfinite(value) for value in step.info.columns.values())


@every_metric
@every_method
@every_sign
def test_identical_particles_under_the_unit_matrix_stay(metric: str, method: str, sign: int) -> None:
    x = tokens(1).expand(5, 3)
    flow = attention(torch.eye(3)[None].double(), metric, sign)
    step = succeeded(jko.JKO(0.1, **solver(method)).step(flow, jko.ParticleMeasure(x)))
    assert gap(step.measure.points, x) < 1e-15 * 4
    assert step.info.largest_displacement < 1e-15


@every_metric
@every_method
def test_a_stationary_state_does_not_chase_rounding(metric: str, method: str) -> None:
    angles = [2 * math.pi * k / 7 for k in range(7)]
    flow = attention(PLANE, metric)
    step = succeeded(jko.JKO(0.1, **solver(method)).step(flow, jko.ParticleMeasure(circle(*angles))))
    assert gap(step.measure.points, circle(*angles)) < 1e-14
    assert step.info.evaluations <= 3


# overflow, no minimizer


@every_method
@pytest.mark.parametrize(("dtype", "x", "exponent"), [(torch.float32, 10.0, 100), (torch.float64, 30.0, 900)])
def test_overflow_names_the_largest_exponent(method: str, dtype: torch.dtype, x: float, exponent: int) -> None:
    y = jko.ParticleMeasure(torch.tensor([[x, 0.0]], dtype=dtype))
    for scheme in (jko.JKO(0.1, **solver(method)), jko.ExplicitEuler(0.1)):
        step = scheme.step(attention(PLANE, "w2", 1, EUCLIDEAN), y)
        assert step.info.status is Status.NON_FINITE
        assert f"largest exponent {exponent}" in step.info.detail
        assert step.measure is y


def test_a_minimizer_behind_the_range_of_exp_is_found_or_refused() -> None:
    y = jko.ParticleMeasure([[10.0, 0.0]])
    step = jko.JKO(0.1).step(attention(PLANE, "w2", 1, EUCLIDEAN), y)
    if step.info.status.ok:
        assert gap(step.measure.points, [[1.931847, 0.0]]) < 1e-6
    else:
        assert "largest exponent 100" in step.info.detail
        assert step.measure is y


def test_underflow_is_the_identity() -> None:
    y = jko.ParticleMeasure([[30.0, 0.0]])
    step = succeeded(jko.JKO(0.1).step(attention(-PLANE, "w2", 1, EUCLIDEAN), y))
    assert gap(step.measure.points, [[30.0, 0.0]]) == 0
    assert step.info.energy_previous == 0


@pytest.mark.parametrize("fallback", [None, jko.TrustNewton()])
def test_no_minimizer(fallback: jko.TrustNewton | None) -> None:
    y = jko.ParticleMeasure([[1.0]])
    step = jko.JKO(0.1, fallback=fallback).step(attention(LINE, "w2", -1, EUCLIDEAN), y)
    assert not step.info.status.ok
    assert "Reduce tau" in step.info.status.advice
    assert step.measure is y
    assert step.info.trial is not None
    assert step.info.trial is not y
    assert math.isfinite(float(step.info.trial.points))
    assert step.info.certified == 0
    assert step.state.flow_state.measure.points.equal(y.points)


@every_method
def test_local_minimizer_of_an_unbounded_objective(method: str) -> None:
    flow = attention(LINE, "w2", -1, EUCLIDEAN)
    step = succeeded(jko.JKO(0.02, **solver(method)).step(flow, jko.ParticleMeasure([[1.0]])))
    assert float(step.measure.points) == pytest.approx(1.066528, abs=5e-7)


# the fallback and the statuses


@every_metric
@every_sign
@pytest.mark.parametrize("seed", [0, 1])
def test_fallback(metric: str, sign: int, seed: int) -> None:
    flow = attention(jko.initial_heads(1, 3, seed), metric, sign)
    y = jko.ParticleMeasure(jko.initial_tokens(20, 3, seed))
    alone = jko.JKO(1.0, fallback=None, minimizer=jko.Anderson(max_passes=20)).step(flow, y)
    assert alone.info.status is Status.NOT_CONVERGED
    assert alone.measure is y
    step = succeeded(jko.JKO(1.0, minimizer=jko.Anderson(max_passes=20)).step(flow, y))
    info = step.info
    assert info.residual <= 1e-8
    assert info.largest_displacement < math.pi
    assert info.largest_displacement == pytest.approx(float(info.displacement.norm(dim=-1).max()), rel=1e-14)
    assert info.evaluations > alone.info.evaluations
    after = info.head_energy if metric == "headwise" else step.state.flow_state.columns["energy"]
    assert after + info.squared_distance / 2 <= info.energy_previous
    assert info.trial is None


def test_not_converged_without_fallback() -> None:
    y = jko.ParticleMeasure(tokens(6))
    step = jko.JKO(0.1, minimizer=jko.Anderson(max_passes=1), fallback=None).step(attention(D2), y)
    assert step.info.status is Status.NOT_CONVERGED
    assert 1e-8 < step.info.residual < 1
    assert "above rtol = 1e-08" in step.info.detail
    assert step.info.evaluations == 1
    assert gap(step.info.trial.points, y.points) > 1e-4


@every_metric
def test_evaluations_are_all_counted(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In passes of all heads together: a pass of one head alone is its share of one."""
    flow = attention(D2, metric)
    counted: list[float] = []
    for kind in (jko.AttentionEnergy, type(flow.energy.by_head())):
        for name in ("evaluate", "hessian_product"):
            original = getattr(kind, name)

            def count(self, *arguments: object, original=original, **more: object) -> object:
                counted.append(getattr(self, "attention", self).heads.num_heads / len(D2))
                return original(self, *arguments, **more)

            monkeypatch.setattr(kind, name, count)
    y = jko.ParticleMeasure(tokens(6))
    for method in ("anderson", "trust"):
        scheme = jko.JKO(0.1, **solver(method))
        state = scheme.start(flow, y, 0.0)
        assert len(counted) == 1
        info = succeeded(scheme.step(flow, y, 0.0, state=state)).info
        assert info.evaluations == sum(counted) - 1
        counted.clear()


# arguments


@every_metric
@pytest.mark.parametrize("moving", [False, True])
def test_reusing_the_state(metric: str, moving: bool) -> None:
    D0 = jko.initial_heads(2, 3, 1)
    heads = jko.OrnsteinUhlenbeckHeads(D0, t1=1.0, dt=0.01) if moving else jko.ConstantHeads(D0)
    flow = jko.GradientFlow(jko.AttentionEnergy(heads), METRICS[metric])
    tight = jko.JKO(0.02, minimizer=jko.Anderson(1e-12), fallback=jko.TrustNewton(1e-12))
    for scheme in (tight, jko.JKO(0.02, **solver("trust")), jko.ExplicitEuler(0.02)):
        first = scheme.step(flow, jko.ParticleMeasure(tokens(6)), 0.0)
        again = succeeded(scheme.step(flow, first.measure, 0.02, state=first.state))
        fresh = succeeded(scheme.step(flow, first.measure, 0.02))
        # A saved evaluation is the same to the last bit; secant pairs of the step before only change the way.
        if scheme is tight:
            assert gap(again.measure.points, fresh.measure.points) < 1e-11
            assert again.info.energy_previous == fresh.info.energy_previous
        else:
            assert torch.equal(again.measure.points, fresh.measure.points)
            assert dict(again.info.columns) == dict(fresh.info.columns)


def test_states_of_something_else_are_refused() -> None:
    flow = attention(D2)
    for scheme in (jko.JKO(0.1), jko.ExplicitEuler(0.1)):
        step = scheme.step(flow, jko.ParticleMeasure(tokens(6)))
        with pytest.raises(InvalidInput, match="another measure"):
            scheme.step(flow, jko.ParticleMeasure(tokens(6)), 0.1, state=step.state)
        w = torch.tensor([0.5, *[0.1] * 5], dtype=torch.float64)
        with pytest.raises(InvalidInput, match="another measure"):
            scheme.step(flow, jko.ParticleMeasure(step.measure.points, w), 0.1, state=step.state)
        with pytest.raises(InvalidInput, match="another measure"):
            scheme.step(flow, step.measure.to(torch.float32), 0.1, state=step.state)
        with pytest.raises(InvalidInput, match=r"belongs to t = 0\.1"):
            scheme.step(flow, step.measure, 0.3, state=step.state)
        with pytest.raises(InvalidInput, match="another flow"):
            scheme.step(attention(2 * D2), step.measure, 0.1, state=step.state)


def test_bad_arguments() -> None:
    flow, y = attention(D2), jko.ParticleMeasure(tokens(6))
    for scheme in (jko.JKO(0.1), jko.ExplicitEuler(0.1)):
        for tau in (0, -0.1, math.nan, math.inf):
            with pytest.raises(InvalidInput, match="tau must be positive"):
                scheme.step(flow, y, tau=tau)
            with pytest.raises(InvalidInput, match="tau must be positive"):
                type(scheme)(tau)
        with pytest.raises(InvalidInput, match="t must be finite"):
            scheme.step(flow, y, math.nan)
        with pytest.raises(InvalidInput, match="batch"):
            scheme.step(flow, jko.ParticleMeasure(tokens(6).expand(2, 6, 3)))
        with pytest.raises(InvalidInput, match="ParticleMeasure"):
            scheme.step(flow, tokens(6))
        with pytest.raises(InvalidInput, match=r"points\[2\] has norm 2"):
            scheme.step(flow, jko.ParticleMeasure(tokens(6) * torch.tensor([1, 1, 2, 1, 1, 1])[:, None]))
    with pytest.raises(InvalidInput, match="guess must be None"):
        jko.ExplicitEuler(0.1).step(flow, y, guess=y)
    with pytest.raises(InvalidInput, match="guess has points of shape"):
        jko.JKO(0.1).step(flow, y, guess=jko.ParticleMeasure(tokens(5)))
    for transport in (jko.Matched(), jko.ExactOT()):
        with pytest.raises(InvalidInput, match="guess must be an instance of ParticleMeasure, got Tensor"):
            jko.JKO(0.1, transport=transport).step(flow, y, guess=y.points)
    others = torch.linspace(1, 2, y.n, dtype=torch.float64)
    heavy = jko.ParticleMeasure(y.points, others / others.sum())
    with pytest.raises(InvalidInput, match=r"guess has other weights than the measure.*ExactOT"):
        jko.JKO(0.1).step(flow, y, guess=heavy)
    with pytest.raises(InvalidInput, match="needs an energy and a metric"):
        jko.JKO(0.1).step(None, y)
    for name, value in (("minimizer", jko.Anderson), ("transport", jko.Matched), ("fallback", jko.TrustNewton)):
        with pytest.raises(InvalidInput, match=rf"{name} must be an instance of .*; write {value.__name__}\(\)"):
            jko.JKO(0.1, **{name: value})


@every_metric
@every_method
def test_a_guess_changes_the_way_and_not_the_result(metric: str, method: str) -> None:
    flow, y = attention(D2, metric), jko.ParticleMeasure(tokens(6))
    scheme = jko.JKO(0.1, **solver(method, 1e-11))
    plain = succeeded(scheme.step(flow, y))
    guided = succeeded(scheme.step(flow, y, guess=plain.measure))
    assert gap(guided.measure.points, plain.measure.points) < 1e-10
    if metric != "headwise":
        assert guided.info.evaluations < plain.info.evaluations


def test_tau_may_differ_from_the_scheme() -> None:
    flow, y = attention(D2), jko.ParticleMeasure(tokens(6))
    for kind in (jko.JKO, jko.ExplicitEuler):
        one, two = kind(0.1).step(flow, y, tau=0.03), kind(0.03).step(flow, y)
        assert torch.equal(one.measure.points, two.measure.points)


@every_metric
def test_columns_and_attributes(metric: str) -> None:
    info = succeeded(jko.JKO(0.1).step(attention(D2, metric), jko.ParticleMeasure(tokens(6)))).info
    assert ("head_energy" in info.columns) == (metric == "headwise")
    for name, value in info.columns.items():
        assert getattr(info, name) == value
    with pytest.raises(AttributeError, match="no column 'nothing'"):
        _ = info.nothing
    with pytest.raises(TypeError):
        info.columns["residual"] = 0.0
    cost = {"w2": 1.0, "weighted": None, "headwise": None}[metric]
    if cost is not None:
        assert info.squared_distance == pytest.approx(float(info.displacement.square().sum(-1).mean()), rel=1e-13)


@every_metric
def test_single_precision(metric: str) -> None:
    double = succeeded(jko.JKO(0.1).step(attention(D2, metric), jko.ParticleMeasure(tokens(6))))
    for dtype, tolerance in ((torch.float64, 1e-7), (torch.float32, 1e-5)):
        y = jko.ParticleMeasure(tokens(6)).to(dtype)
        for method in ("anderson", "trust"):
            step = succeeded(jko.JKO(0.1, **solver(method)).step(attention(D2, metric), y))
            assert step.measure.dtype == dtype
            assert gap(step.measure.points, double.measure.points) < tolerance
            assert step.info.certified == 1


@every_metric
@every_method
def test_a_step_stays_on_its_device(metric: str, method: str, accelerator: torch.device) -> None:
    scheme, flow, y = jko.JKO(0.05, **solver(method)), attention(D2, metric), jko.ParticleMeasure(tokens(6))
    step = succeeded(scheme.step(flow, y.to(torch.float32, accelerator)))
    assert step.measure.device.type == step.info.displacement.device.type == accelerator.type
    assert step.measure.dtype == torch.float32
    assert gap(step.measure.points, succeeded(scheme.step(flow, y)).measure.points) < 1e-5
    assert step.info.certified == 1


def test_the_objective_of_an_accepted_step_is_a_local_minimum() -> None:
    """No random direction lowers the objective, by values alone."""
    flow, y, tau = attention(D2, "w2", -1), jko.ParticleMeasure(tokens(6)), 0.1
    step = succeeded(jko.JKO(tau, minimizer=jko.Anderson(1e-11)).step(flow, y))

    def objective(points: Tensor) -> float:
        cost = float(jko.Sphere().squared_distance(points, y.points).mean())
        return float(flow.energy.value(y.moved(points), tau)) + cost / (2 * tau)

    best = objective(step.measure.points)
    assert best < objective(y.points)
    for seed in range(20):
        noise = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for size in (1e-3, 1e-1):
            nearby = jko.Sphere().project_point(step.measure.points + size * noise)
            assert objective(nearby) > best
