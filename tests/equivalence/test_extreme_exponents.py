"""Velocities that are quotients of sums of exponentials, where the exponentials leave the range of floats."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from torch import Tensor

import jko
from jko.metrics import AbstractMetric
from jko.reductions import AbstractReduction, keops_available
from tests.oracles.attention import assert_close, average
from tests.oracles.reductions import Counted
from tests.schemes.problems import METRICS, succeeded

F64 = torch.float64
SPACE = jko.Euclidean()
THETA = [0.2, 0.5, 0.3]
WEIGHTS = torch.tensor([9, 5, 0, 17, 3, 20, 10], dtype=F64) / 64
every_symmetry = pytest.mark.parametrize("symmetric", [True, False])


def problem(largest: float, symmetric: bool, *, n: int = 7, H: int = 3) -> tuple[jko.ParticleMeasure, Tensor]:
    """Particles of unequal weights, one of them a tracer, and heads with exponents of both signs up to `largest`."""
    generator = np.random.default_rng((n, H, int(symmetric)))
    x, D = generator.standard_normal((n, 3)), generator.standard_normal((H, 3, 3))
    D = (D + D.transpose(0, 2, 1)) / 2 if symmetric else D
    D *= largest / np.abs(np.einsum("id,hde,je->hij", x, D, x)).max((1, 2))[:, None, None]
    # Numbers that float32 holds: both precisions have the same data.
    x, D = (torch.from_numpy(a).float().double() for a in (x, D))
    return jko.ParticleMeasure(x, WEIGHTS if n == 7 else None), D


def quotients(y: jko.ParticleMeasure, D: Tensor, theta: list[float]) -> dict[str, Any]:
    """Velocities and outputs at sign = +1 in 60 digits: exponents have no bounds there."""
    with mp.workdps(60):
        w, heads = [mp.mpf(v) for v in y.weights.tolist()], [mp.matrix(A) for A in D.tolist()]
        x = [mp.matrix(v) for v in y.points.tolist()]
        rows: dict[str, list[list[float]]] = {"softmax": [], "headwise": [], "weighted": []}
        for z in x:
            outputs, forces, masses = [], [], []
            for A in heads:
                ahead = [v * mp.exp((z.T * A * p)[0]) for v, p in zip(w, x, strict=True)]
                back = [v * mp.exp((p.T * A * z)[0]) for v, p in zip(w, x, strict=True)]
                first, other = (sum((k * p for k, p in zip(K, x, strict=True)), mp.zeros(3, 1)) for K in (ahead, back))
                m = mp.fsum(ahead)
                masses.append(m)
                outputs.append(A * first / m)
                forces.append((A * first + A.T * other) / 2)
            mean = [
                sum((c * v for c, v in zip(theta, part, strict=True)), mp.zeros(3, 1)) for part in (outputs, forces)
            ]
            inverse = mp.fsum(c / m for c, m in zip(theta, masses, strict=True))
            each = sum((c * f / m for c, f, m in zip(theta, forces, masses, strict=True)), mp.zeros(3, 1))
            for name, v in (("softmax", mean[0]), ("headwise", each), ("weighted", mean[1] * inverse)):
                rows[name].append([-e for e in v])
    return rows


def as_floats(rows: list[list[Any]]) -> Tensor:
    return torch.tensor([[float(e) for e in row] for row in rows], dtype=F64)


def assert_rows_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Every particle by its own size: velocities of one measure differ by hundreds of orders."""
    assert actual.shape == expected.shape
    for row, other in zip(actual.double(), expected, strict=True):
        assert_close(row, other, tolerance)


def field(D: Tensor, theta: list[float] | None, reduction: AbstractReduction | None = None) -> jko.VelocityFlow:
    return jko.VelocityFlow(jko.AttentionField(jko.ConstantHeads(D, theta), reduction=reduction), SPACE)


def gradient(
    D: Tensor,
    theta: list[float] | None,
    metric: AbstractMetric,
    reduction: AbstractReduction | None = None,
    sign: int = 1,
) -> jko.GradientFlow:
    return jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(D, theta), sign, reduction), metric, SPACE)


@every_symmetry
@pytest.mark.parametrize("largest", [5.0, 200.0, 480.0, 800.0, 2000.0])
@pytest.mark.parametrize("n", [1, 7])
def test_the_softmax_for_any_exponents(largest: float, symmetric: bool, n: int, dtype: torch.dtype) -> None:
    y, D = problem(largest, symmetric, n=n)
    tolerance = 1e-12 if dtype == F64 else 1e-5
    velocity = field(D, THETA).velocity(y.to(dtype), 0.0)
    assert velocity.dtype == dtype
    assert_rows_close(velocity, as_floats(quotients(y, D, THETA)["softmax"]), tolerance)


@every_symmetry
@pytest.mark.parametrize("largest", [5.0, 200.0, 480.0, 800.0, 2000.0])
@pytest.mark.parametrize("n", [1, 7])
@pytest.mark.parametrize("name", ["headwise", "weighted"])
def test_velocities_are_right_where_they_are_floats(
    name: str, largest: float, symmetric: bool, n: int, dtype: torch.dtype
) -> None:
    y, D = problem(largest, symmetric, n=n)
    velocity = gradient(D, THETA, METRICS[name]).velocity(y.to(dtype), 0.0)
    exact = quotients(y, D, THETA)[name]
    limit = torch.finfo(dtype).max
    checked = 0
    for row, expected in zip(velocity, exact, strict=True):
        if max(abs(e) for e in expected) < limit:
            checked += 1
            assert_rows_close(row[None], as_floats([expected]), 1e-12 if dtype == F64 else 1e-5)
        else:
            assert not bool(row.isfinite().all())
    # Where every D_h is symmetric, DK_h / m_h is the softmax output: never large.
    if (name == "headwise" and symmetric) or (n == 1 and name == "headwise") or largest < 20:
        assert checked == n


@every_symmetry
@pytest.mark.parametrize("s", [1.0, -1.0])
def test_the_unit_matrix_far_out(s: float, symmetric: bool) -> None:
    # |x| = 30: all exponents are near +-900.
    x = 30 * torch.nn.functional.normalize(torch.tensor([[1.0, 0.0, 0.1], [1.0, 0.2, 0.0], [1.0, 0.0, 0.0]], dtype=F64))
    D = s * torch.eye(3, dtype=F64)[None] + (0.0 if symmetric else 1e-3 * torch.eye(3, dtype=F64).roll(1, 0)[None])
    y = jko.ParticleMeasure(x, [0.3, 0.7, 0.0])
    exact = quotients(y, D, [1.0])
    for flow, name in (
        (field(D, None), "softmax"),
        (gradient(D, None, METRICS["headwise"]), "headwise"),
        (gradient(D, None, METRICS["weighted"]), "weighted"),
    ):
        expected = as_floats(exact[name])
        assert_rows_close(flow.velocity(y, 0.0), expected, 1e-12)
        for scheme in (jko.ExplicitEuler(1e-3), jko.ExponentialEuler(1e-3), jko.RK4(1e-3)):
            step = succeeded(scheme.step(flow, y))
            if not isinstance(scheme, jko.RK4):
                assert_close(step.measure.points, x + 1e-3 * expected, 1e-13)
            assert not any(math.isnan(value) for value in step.info.columns.values())
        run = jko.solve(flow, y, jko.ExplicitEuler(1e-3), t1=3e-3)
        assert run.status is jko.Status.SUCCESS
        if name != "softmax":
            assert set(run.states["energy"].tolist()) == ({math.inf} if s > 0 else {0.0})
            assert run.states["covariance_defect"].tolist() == pytest.approx([0.0] * 4, abs=1e-9)


@every_symmetry
def test_every_reduction_and_no_pass_where_exponents_are_small(symmetric: bool) -> None:
    y, D = problem(1500.0, symmetric)
    reductions: list[AbstractReduction] = [jko.Blocked(), jko.Auto(), jko.Blocked(block_bytes=4096)]
    if keops_available().available:
        reductions.append(jko.KeOps())
    for reduction in reductions:
        for build in (field, lambda D, theta, r: gradient(D, theta, METRICS["headwise"], r)):
            actual = build(D, THETA, reduction).velocity(y, 0.0)
            assert torch.equal(actual.nan_to_num(7.0), build(D, THETA, jko.Blocked()).velocity(y, 0.0).nan_to_num(7.0))
    calls: list[None] = []
    small, D = problem(20.0, symmetric)
    for build in (field, lambda D, theta, r: gradient(D, theta, METRICS["headwise"], r)):
        build(D, THETA, Counted(jko.Blocked(), calls)).velocity(small, 0.0)
    assert len(calls) == 2


def test_a_tracer_sets_no_shift_but_has_a_velocity() -> None:
    y, D = problem(100.0, True)
    far = jko.ParticleMeasure(
        torch.cat([y.points, 100 * y.points[:1]]), torch.cat([y.weights, torch.zeros(1, dtype=F64)])
    )
    exact = as_floats(quotients(far, D, THETA)["softmax"])
    for flow in (field(D, THETA), gradient(D, THETA, METRICS["headwise"])):
        velocity = flow.velocity(far, 0.0)
        assert_rows_close(velocity, exact, 1e-11)
        assert_close(velocity[:-1], flow.velocity(y, 0.0), 1e-13)


def test_batches_and_sums_of_energies() -> None:
    y, D = problem(900.0, False)
    heads = torch.stack([D, 0.9 * D])
    for metric in ("headwise", "weighted"):
        together = gradient(heads, THETA, METRICS[metric]).velocity(y, 0.0)
        for k in range(2):
            alone = gradient(heads[k], THETA, METRICS[metric]).velocity(y, 0.0)
            assert torch.equal(together[k].nan_to_num(7.0), alone.nan_to_num(7.0))
    # One head: v = -(2 DK + grad V) / m with DK = D x e^l and grad V = x; l = 900, then l = -900.
    x = torch.tensor([[30.0, 0.0]], dtype=F64)
    potential = jko.PotentialEnergy(lambda x: x.square().sum(-1) / 2)
    for s, expected in ((1.0, -2 * x), (-1.0, None)):
        attention = jko.AttentionEnergy(jko.ConstantHeads(s * torch.eye(2)[None].double()))
        for metric in ("headwise", "weighted"):
            flow = jko.GradientFlow(2.0 * attention + potential, METRICS[metric], SPACE)
            velocity = flow.velocity(jko.ParticleMeasure(x), 0.0)
            if expected is not None:
                assert_close(velocity, expected, 1e-12)
            else:
                # grad V / m = 30 e^900 is no float, and the message says so.
                assert not bool(velocity.isfinite().all())
                assert "quotients by the mobility reach exp(900)" in flow.explain_non_finite(
                    jko.ParticleMeasure(x), 0.0
                )


def test_a_quotient_that_overflows_is_a_status() -> None:
    # <x, D y> and <y, D x> differ by 1600: m of one particle is e^0 or less, the other half of DK e^800.
    D = torch.tensor([[[0.0, 800.0], [-800.0, 0.0]]], dtype=F64)
    y = jko.ParticleMeasure([[1.0, 0.0], [0.0, 1.0]])
    flow = gradient(D, None, METRICS["headwise"])
    step = jko.ExplicitEuler(0.1).step(flow, y)
    assert step.info.status is jko.Status.NON_FINITE
    assert step.measure is y
    assert "quotients by the mobility reach exp(800)" in step.info.detail
    assert succeeded(jko.ExplicitEuler(0.1).step(field(D, None), y)).info.largest_displacement > 0


@pytest.mark.parametrize("sign", [1, -1])
def test_columns_are_those_of_the_plain_sums(sign: int) -> None:
    # At exponents that both ways can take, they agree; the energy and its slopes of each metric among them.
    y, D = problem(300.0, False)
    for name in ("weighted", "headwise"):
        flow = gradient(D, THETA, METRICS[name], None, sign)
        plain = flow.fields(y, 0.0)
        assert plain.shifted is None
        shifted = type(plain).of(plain.evaluation, y, SPACE, 0.0, flow.energy.shifted_heads(y, 0.0))
        one, two = flow.state_of(plain).columns, flow.state_of(shifted).columns
        assert one == pytest.approx(two, rel=1e-11)
        for a, b in zip(METRICS[name].velocity(plain), METRICS[name].velocity(shifted), strict=True):
            assert_close(a, b, 1e-12)
    heads = flow.energy.evaluate(y, 0.0).heads
    assert heads is not None
    mean = average(heads.gradient, torch.tensor(THETA, dtype=F64))
    v, q = flow.energy.shifted_heads(y, 0.0).mean_gradient()
    assert_rows_close(v * q.exp()[:, None], mean, 1e-12)
