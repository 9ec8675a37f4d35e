"""KeOps against the formulas and the blocked sums. Each shape costs a compilation: few of them serve all tests."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from jko.errors import InvalidInput, MissingDependency
from jko.kernels import FunctionKernel, GaussianKernel, LogarithmicKernel, PowerKernel
from jko.reductions import Auto, Blocked, KeOps, PairSums, auto, keops_available, keops_probe, pairs_by
from tests.oracles.attention import TOLERANCE, Problem, assert_close, exponents, problem, second_moments, sums
from tests.reductions.test_contract import NAMES, assert_sums, rates

F64 = torch.float64
D_ = 3

keops = [
    pytest.mark.keops,
    pytest.mark.skipif(not keops_available().available, reason=f"KeOps: {keops_available().reason}"),
]


def with_keops(test: Any) -> Any:
    for mark in keops:
        test = mark(test)
    return test


every_side = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "general"])
every_cloud = pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])


def some(symmetric: bool, own: bool, weights: str = "tracers", n: int = 50, H: int = 3) -> Problem:
    return problem(n, D_, H, symmetric=symmetric, own=own, weights=weights)


# sums of attention


@with_keops
@every_side
@every_cloud
def test_exponential_sums(symmetric: bool, own: bool) -> None:
    p = some(symmetric, own)
    actual = KeOps().exponential_sums(p.points, p.weights, p.D)
    assert_sums(actual, sums(p.points, p.weights, p.D), TOLERANCE[F64])
    assert actual.symmetric == symmetric
    assert actual.second is None
    mass = KeOps().exponential_sums(p.points, p.weights, p.D, first=False)
    assert mass.first is None
    assert mass.symmetric == symmetric
    assert_close(mass.mass, actual.mass, TOLERANCE[F64])
    more = KeOps().exponential_sums(p.points, p.weights, p.D, second=True)
    for name, expected in second_moments(p.points, p.weights, p.D).items():
        assert_close(getattr(more, name), expected, TOLERANCE[F64])
    for name in NAMES:
        assert_close(getattr(more, name), getattr(actual, name), TOLERANCE[F64])


@with_keops
def test_single_precision() -> None:
    p = some(False, False)
    q = p.to(torch.float32)
    actual = KeOps().exponential_sums(q.points, q.weights, q.D)
    assert_sums(actual, sums(p.points, p.weights, p.D), TOLERANCE[torch.float32])
    assert actual.mass.dtype == torch.float32


@with_keops
@every_side
@every_cloud
def test_directional_sums(symmetric: bool, own: bool) -> None:
    p, direction = some(symmetric, own), problem(50, D_, 3, own=own, seed=1).points
    actual = KeOps().directional_sums(p.points, p.weights, p.D, direction)
    assert_sums(actual, rates(p, direction), TOLERANCE[F64])


@with_keops
@every_side
def test_sums_at_other_points(symmetric: bool) -> None:
    p, targets = some(symmetric, False), problem(7, D_, 3, seed=2).points
    kernel = exponents(targets, p.D, p.points).exp()
    assert_close(KeOps().cross_mass(targets, p.points, p.weights, p.D), kernel @ p.weights, TOLERANCE[F64])
    actual, expected = (m.cross_sums(targets, p.points, p.weights, p.D) for m in (KeOps(), Blocked()))
    assert_sums(actual, {name: getattr(expected, name) for name in NAMES}, TOLERANCE[F64])


@with_keops
@every_cloud
def test_largest_exponent(own: bool) -> None:
    p = some(False, own)
    assert KeOps().largest_exponent(p.points, p.D) == pytest.approx(float(exponents(p.points, p.D).max()), rel=1e-15)


@with_keops
def test_overflow_and_underflow() -> None:
    x = torch.tensor([[30.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=F64)
    D = torch.eye(3, dtype=F64)[None]
    w = torch.full((2,), 0.5, dtype=F64)
    assert KeOps().exponential_sums(x, w, -D).mass.tolist() == [[0.5, 1.0]]
    assert KeOps().exponential_sums(x, w, D).mass.tolist() == [[torch.inf, 1.0]]
    assert KeOps().largest_exponent(x, D) == 900.0


@with_keops
@pytest.mark.parametrize("n", [1, 5])
def test_one_particle_and_one_mass(n: int) -> None:
    p = problem(n, D_, 2, symmetric=False)
    weights = torch.zeros(n, dtype=F64)
    weights[0] = 1.0
    for name, arguments in (
        ("exponential_sums", (p.points, weights, p.D)),
        ("directional_sums", (p.points, weights, p.D, p.points)),
        ("cross_sums", (p.points, p.points, weights, p.D)),
        ("cross_sums", (p.points[:1], p.points, p.weights, p.D)),
    ):
        actual, expected = (getattr(member, name)(*arguments) for member in (KeOps(), Blocked()))
        assert_sums(actual, {key: getattr(expected, key) for key in NAMES}, TOLERANCE[F64])
    mass = KeOps().cross_mass(p.points[:1], p.points, p.weights, p.D)
    assert_close(mass, exponents(p.points[:1], p.D, p.points).exp() @ p.weights, TOLERANCE[F64])
    assert KeOps().largest_exponent(p.points, p.D) == pytest.approx(float(exponents(p.points, p.D).max()), rel=1e-15)
    kernel, own = LogarithmicKernel(), torch.arange(n)
    points = (p.points, p.points[:1], weights[:1], torch.where(own == 0, 0, -1))
    actual, expected = (pairs_by(member, kernel).sums(kernel, *points, 1) for member in (KeOps(), Blocked()))
    assert_close(actual.gradient, expected.gradient, 1e-14)


@with_keops
def test_tracers_add_nothing_even_where_exp_overflows() -> None:
    p = some(False, False)
    points, massive = p.points.clone(), p.weights > 0
    points[~massive] *= 1e5
    actual = KeOps().exponential_sums(points, p.weights, p.D)
    expected = KeOps().exponential_sums(points[massive], p.weights[massive], p.D)
    for name in NAMES:
        assert_close(getattr(actual, name)[..., massive], getattr(expected, name), 1e-13)


@with_keops
def test_name_and_silence(capfd: pytest.CaptureFixture[str]) -> None:
    p = some(True, False)
    KeOps().exponential_sums(p.points, p.weights, p.D)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    assert KeOps().name == "KeOps"
    assert not hasattr(KeOps(), "__dict__")


# sums of kernels


@with_keops
@pytest.mark.parametrize("kernel", [LogarithmicKernel(), PowerKernel(1.5)], ids=lambda kernel: kernel.name)
def test_kernel_sums(kernel: Any) -> None:
    p = problem(40, D_, 1, seed=3)
    x = p.points.clone()
    if not kernel.singular:
        x[5] = x[9]
    own = torch.arange(40)
    arguments = (kernel, x, x, p.weights, own)
    actual, expected = (pairs_by(member, kernel).sums(*arguments, 2) for member in (KeOps(), Blocked()))
    assert_close(actual.value, expected.value, 1e-13)
    assert_close(actual.gradient, expected.gradient, 1e-13)
    assert_close(actual.curvature, expected.curvature, 1e-13)


@with_keops
def test_derivatives_of_kernel_sums() -> None:
    p, kernel = problem(40, D_, 1, seed=3), LogarithmicKernel()
    moving = (problem(40, D_, 1, seed=4).points, problem(40, D_, 1, seed=5).points)
    arguments = (kernel, p.points, p.points, p.weights, torch.arange(40), moving)
    actual, expected = (pairs_by(member, kernel).derivative(*arguments) for member in (KeOps(), Blocked()))
    assert_close(actual, expected, 1e-13)


@with_keops
def test_functions_are_not_for_keops() -> None:
    kernel = FunctionKernel(lambda x, y: (x * y).sum(-1))
    with pytest.raises(InvalidInput, match="Python function"):
        pairs_by(KeOps(), kernel)


# choice and failure


def test_the_cpu_is_served_by_blocked_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "keops_available", lambda: pytest.fail("no reason to try KeOps"))
    p, member = problem(20_000, 1, 1), Auto()
    member.cross_mass(p.points[:2], p.points, p.weights, p.D)
    assert member.name == "auto (blocked)"


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Auto prefer KeOps everywhere."""
    monkeypatch.setattr(auto, "_suits_keops", lambda points: True)


@with_keops
@pytest.mark.usefixtures("wanted")
def test_auto_says_that_keops_was_used() -> None:
    p, member = some(True, False), Auto()
    assert member.name == "auto (blocked)"
    actual = member.exponential_sums(p.points, p.weights, p.D)
    assert member.name == "auto (KeOps)"
    assert_sums(actual, sums(p.points, p.weights, p.D), TOLERANCE[F64])
    kernel = FunctionKernel(lambda x, y: (x * y).sum(-1))
    pairs_by(member, kernel).sums(kernel, p.points, p.points, p.weights, None, 1)
    assert member.name == "auto (KeOps and blocked)"


@pytest.mark.usefixtures("wanted")
def test_auto_without_keops(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = keops_probe.KeOpsProbe(False, "no compiler")
    for module in (auto, keops_probe):
        monkeypatch.setattr(module, "keops_available", lambda: probe)
    p, member = some(True, False), Auto()
    assert_sums(member.exponential_sums(p.points, p.weights, p.D), sums(p.points, p.weights, p.D), TOLERANCE[F64])
    assert member.name == "auto (blocked)"
    with pytest.raises(MissingDependency, match="no compiler"):
        KeOps()


@pytest.mark.usefixtures("wanted")
def test_a_formula_that_fails_falls_back_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **options: Any) -> PairSums:
        raise ModuleNotFoundError("pykeops_cpp_123")

    monkeypatch.setattr(auto, "keops_available", lambda: keops_probe.KeOpsProbe(True, ""))
    monkeypatch.setattr(keops_probe, "keops_available", lambda: keops_probe.KeOpsProbe(True, ""))
    monkeypatch.setattr(
        KeOps, "exponential_sums", lambda *args, **options: keops_probe.run_keops(("test", "broken"), broken)
    )
    p, member = some(True, False), Auto()
    with caplog.at_level(logging.WARNING, logger="jko"):
        for _ in range(2):
            actual = member.exponential_sums(p.points, p.weights, p.D)
            assert_sums(actual, sums(p.points, p.weights, p.D), TOLERANCE[F64])
    assert len(caplog.records) == 1
    assert "pykeops_cpp_123" in caplog.text
    assert member.name == "auto (blocked)"


def test_kernels_and_reductions_that_do_not_fit() -> None:
    from tests.oracles.reductions import Counted

    with pytest.raises(InvalidInput, match="attention only"):
        pairs_by(Counted(Blocked(), []), GaussianKernel(1.0))
