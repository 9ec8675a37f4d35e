"""Kernels: stored, blocked and by KeOps; every one gives the same sums, right in the logarithms whatever underflows."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from transport.problems import COSTS, MANIFOLDS, case, cloud, generator, weights

import jko
from jko.errors import InvalidInput, MissingDependency
from jko.reductions import KeOpsProbe
from jko.transport import GroundCost, Sinkhorn, TransportProblem
from jko.transport.base import normalized
from jko.transport.entropic import choose
from jko.transport.entropic.ascent import ascend
from jko.transport.entropic.blocked import BlockedKernel
from jko.transport.entropic.dense import DenseKernel
from jko.transport.entropic.keops import KeOpsKernel
from jko.transport.entropic.symmetric import ascend_symmetric


def sides(manifold="sphere", kind="moving", n=23, m=17):
    problem = case(manifold, kind, n=n, m=m).problem()
    return problem.cost(), normalized(problem.source.weights), normalized(problem.target.weights)


def reference(cost, a, b, v, eps):
    """The same sums by logarithms over the whole matrix."""
    exponent = -cost.matrix() / eps
    u = -eps * torch.logsumexp(exponent + v / eps + b.log(), 1)
    log_columns = torch.logsumexp(exponent + (u / eps + a.log())[:, None], 0) + v / eps
    plan = (exponent + (u[:, None] + v) / eps).exp() * a[:, None] * b
    return u, log_columns, plan


def kernels(cost, a, b):
    return [DenseKernel.of(cost, a, b), BlockedKernel(cost, a, b)]


@pytest.mark.parametrize("eps", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("kind", COSTS)
@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_sums_of_every_kernel(manifold, kind, eps):
    cost, a, b = sides(manifold, kind)
    v = torch.randn(17, generator=generator(0), dtype=torch.float64)
    p = torch.randn(17, generator=generator(1), dtype=torch.float64)
    scale = torch.rand(17, generator=generator(2), dtype=torch.float64)
    u, log_columns, plan = reference(cost, a, b, v, eps)
    for kernel in kernels(cost, a, b):
        assert torch.allclose(kernel.softmin(v, eps), u, rtol=1e-12, atol=1e-12)
        point = kernel.evaluate(v, eps)
        assert torch.allclose(point.u, u, rtol=1e-12, atol=1e-12)
        assert torch.allclose(point.log_ratio, log_columns, rtol=1e-9, atol=1e-9)
        assert point.error == pytest.approx(float((plan.sum(0) - b).abs().sum()), abs=1e-9)
        assert point.value == pytest.approx(float(a @ u + b @ v), abs=1e-12)
        expected = plan.mT @ ((plan @ p) / a)
        assert torch.allclose(kernel.transfer(point)(p), expected, rtol=1e-7, atol=1e-10)
        matrix = scale[:, None] * (plan.mT @ (plan / a[:, None])) * scale
        assert torch.allclose(kernel.transfer_matrix(point, scale), matrix, rtol=1e-7, atol=1e-10)


def test_a_stored_kernel_follows_potentials_out_of_its_range():
    cost, a, b = sides(n=9, m=7)
    kernel = DenseKernel.of(cost, a, b)
    for eps in (1e-2, 1e-3, 1e-2):
        for size in (0.0, 0.1, 1.0, 5.0, 0.1):
            v = size * torch.randn(7, generator=generator(0), dtype=torch.float64)
            u, log_columns, _ = reference(cost, a, b, v, eps)
            point = kernel.evaluate(v, eps)
            assert torch.allclose(point.u, u, rtol=1e-12, atol=1e-12)
            assert torch.allclose(point.log_ratio, log_columns, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gap", [1.0, 100.0])
def test_columns_that_nobody_sees_are_summed_in_logarithms(gap):
    """exp(-gap^2 / eps) is 0 in double precision; its logarithm is not."""
    y = torch.tensor([[0.0], [0.1]], dtype=torch.float64)
    x = torch.tensor([[0.0], [gap]], dtype=torch.float64)
    half = torch.full((2,), 0.5, dtype=torch.float64)
    cost = GroundCost(y, x, jko.Euclidean())
    for kernel in kernels(cost, half, half):
        point = kernel.evaluate(torch.zeros(2, dtype=torch.float64), 1e-4)
        _, log_columns, _ = reference(cost, half, half, torch.zeros(2, dtype=torch.float64), 1e-4)
        assert torch.allclose(point.log_ratio, log_columns, rtol=1e-12)
        assert float(point.log_ratio[1]) < -700
        found = ascend(kernel, point, 1e-10, 1000)
        assert found.point.error <= 1e-10


@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_every_kernel_solves_alike(manifold):
    problem = case(manifold, "symmetric", n=25, m=33).problem()
    for eps in (1.0, 1e-2):
        for debias in (True, False):
            dense, lazy = (Sinkhorn(eps, debias=debias, lazy=lazy).solve(problem) for lazy in (False, True))
            assert dense.status.ok
            assert lazy.status.ok
            assert lazy.value == pytest.approx(dense.value, abs=1e-12)
            assert torch.allclose(lazy.gradient, dense.gradient, atol=1e-8)
            assert torch.allclose(lazy.weight_gradient, dense.weight_gradient, atol=1e-8)


@pytest.mark.keops
@pytest.mark.parametrize("kind", ["one-sided", "symmetric"])
def test_keops_gives_the_same_values_and_gradients(kind, capfd):
    keops = jko.reductions.keops_available()
    if not keops.available:
        pytest.skip(keops.reason)
    problem = case("sphere", kind, n=12, m=9).problem()
    members = [Sinkhorn(0.05, debias=kind == "symmetric", keops=keops) for keops in (False, True)]
    stored, lazy = (member.solve(problem) for member in members)
    assert lazy.status.ok
    assert lazy.value == pytest.approx(stored.value, abs=1e-12)
    assert torch.allclose(lazy.gradient, stored.gradient, atol=1e-8)
    assert torch.allclose(lazy.weight_gradient, stored.weight_gradient, atol=1e-8)
    cost, a, b = sides(kind=kind, n=12, m=9)
    kernel, v = KeOpsKernel(cost, a, b), torch.randn(9, generator=generator(0), dtype=torch.float64)
    u, log_columns, plan = reference(cost, a, b, v, 0.05)
    point = kernel.evaluate(v, 0.05)
    assert torch.allclose(point.u, u, rtol=1e-12, atol=1e-12)
    assert torch.allclose(point.log_ratio, log_columns, rtol=1e-10, atol=1e-10)
    assert torch.allclose(kernel.transfer(point)(v), plan.mT @ ((plan @ v) / a), atol=1e-10)
    assert torch.allclose(
        kernel.transfer_matrix(point, b), b[:, None] * (plan.mT @ (plan / a[:, None])) * b, atol=1e-10
    )
    assert capfd.readouterr().out == ""


def test_keops_refuses_what_it_cannot_form():
    cost, a, b = sides(n=1, m=5)
    with pytest.raises(InvalidInput, match="at least two points"):
        KeOpsKernel(cost, a, b)


def test_field_report_h26_without_keops(monkeypatch):
    """Demanded: one clear error before any work. Not demanded: the blocked sums serve."""
    nothing = KeOpsProbe(False, "no C++ compiler was found")

    def refuse() -> None:
        raise MissingDependency(f"KeOps is not available: {nothing.reason}")

    monkeypatch.setattr(choose, "require_keops", refuse)
    monkeypatch.setattr(choose, "keops_available", lambda: nothing)
    problem = case(n=6, m=5).problem()
    with pytest.raises(MissingDependency, match=r"no C\+\+ compiler"):
        Sinkhorn(0.1, keops=True).solve(problem)
    dense, lazy = (Sinkhorn(0.1, lazy=lazy).solve(problem) for lazy in (False, True))
    assert lazy.value == pytest.approx(dense.value, abs=1e-12)


def test_the_choice_goes_by_size(monkeypatch):
    cost, a, b = sides(n=20, m=10)
    assert isinstance(choose.make_kernel(cost, a, b), DenseKernel)
    assert isinstance(choose.make_kernel(cost, a, b, lazy=True), BlockedKernel)
    monkeypatch.setattr(choose, "_LARGEST_DENSE", 199)
    assert isinstance(choose.make_kernel(cost, a, b), BlockedKernel)
    assert isinstance(choose.make_kernel(cost, a, b, lazy=False), DenseKernel)


def test_the_ascent_raises_the_dual_and_meets_its_limits():
    cost, a, b = sides(n=40, m=30)
    kernel = DenseKernel.of(cost, a, b)
    start = kernel.evaluate(torch.zeros_like(b), 0.01)
    values = [ascend(kernel, start, 1e-10, most).point.value for most in (0, 1, 3, 10, 1000)]
    assert values == sorted(values)
    assert values[0] == start.value
    found = ascend(kernel, start, 1e-10, 1000)
    assert found.point.error <= 1e-10
    # Conjugate gradients and factorizations, each alone, arrive at the same point.
    for direct in (True, False):
        other = ascend(kernel, start, 1e-12, 1000, direct=direct)
        shift = other.point.v - found.point.v
        assert torch.allclose(shift, shift.mean().expand_as(shift), atol=1e-9)


def test_self_transport_halves_its_error():
    x, w = cloud(50, 0), weights(50, 1)
    kernel = DenseKernel.of(GroundCost(x, x, jko.Euclidean()), w, w)
    errors = [ascend_symmetric(kernel, 0.5, tolerance=1e-300, most=k).error for k in range(2, 20)]
    assert all(later <= 0.51 * earlier for earlier, later in pairwise(errors))
    found = ascend_symmetric(kernel, 0.5, tolerance=1e-12, most=100)
    plan = reference(GroundCost(x, x, jko.Euclidean()), w, w, found.potential, 0.5)[2]
    assert torch.allclose(plan, plan.mT, atol=1e-12)
    assert torch.allclose(plan.sum(0), w, atol=1e-12)
    assert math.isfinite(found.value)


def test_memory_is_that_of_blocks(monkeypatch):
    """Lazy solutions never ask for the matrix."""
    monkeypatch.setattr(GroundCost, "matrix", lambda self: pytest.fail("the matrix was formed"))
    y, x = (jko.ParticleMeasure(cloud(300, seed)) for seed in (0, 1))
    solution = Sinkhorn(1.0, lazy=True, tolerance=1e-6).solve(TransportProblem(y, x, jko.Euclidean()))
    assert solution.status.ok
