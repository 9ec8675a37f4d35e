"""Ground costs: values, blocks and gradients, from coincident to antipodal pairs."""

from __future__ import annotations

import math

import pytest
import torch
from transport.problems import COSTS, MANIFOLDS, case, check_gradient, cloud, generator

import jko
from jko.manifolds import AbstractManifold
from jko.transport import GroundCost


def factor(problem) -> torch.Tensor:
    b, target = problem.mobility, problem.target_mobility
    if b is None:
        return torch.ones(problem.source.n, problem.target.n, dtype=torch.float64)
    return b[:, None].expand(-1, problem.target.n) if target is None else (b[:, None] + target) / 2


@pytest.mark.parametrize("kind", COSTS)
@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_values_are_squared_distances_times_factors(manifold, kind):
    problem = case(manifold, kind).problem()
    cost = problem.cost()
    squares = problem.manifold.squared_distance(problem.source.points[:, None], problem.target.points[None])
    expected = factor(problem) * squares
    assert torch.allclose(cost.matrix(), expected, rtol=1e-14, atol=1e-15)
    assert torch.allclose(cost.swapped().matrix(), expected.mT, rtol=1e-14, atol=1e-15)
    rows, columns = torch.tensor([0, 3, 6]), torch.tensor([4, 4, 0])
    assert torch.allclose(cost.pairs(rows, columns), expected[rows, columns], rtol=1e-14, atol=1e-15)
    part = cost.restricted(rows, torch.tensor([True, False, True, True, False]))
    assert torch.allclose(part.matrix(), expected[rows][:, [0, 2, 3]], rtol=1e-14, atol=1e-15)
    assert cost.largest() >= float(expected.max())


@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_blocks_cover_the_rows_once(manifold):
    cost = case(manifold, "symmetric", n=23, m=7).problem().cost()
    for entries in (1, 7, 50, 10**6):
        blocks = list(cost.blocks(entries))
        assert [row for block in blocks for row in range(23)[block]] == list(range(23))
        # Vectorized arctangents round the last entries of a block differently.
        assert torch.allclose(torch.cat([cost.block(block) for block in blocks]), cost.matrix(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("kind", COSTS)
@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_self_costs_are_symmetric(manifold, kind):
    cost = case(manifold, kind).problem().cost()
    for own, points in ((cost.among_targets(), cost.target), (cost.among_sources(), cost.source)):
        matrix = own.matrix()
        assert torch.allclose(matrix, matrix.mT, rtol=1e-14, atol=0)
        assert bool((matrix.diagonal() == 0).all())
        assert own.source is points


@pytest.mark.parametrize("kind", COSTS)
@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_gradients_with_a_plan(manifold, kind):
    one = case(manifold, kind)
    plan = torch.rand(5, 7, generator=generator(9), dtype=torch.float64)

    def value(x: torch.Tensor) -> float:
        return float((plan * one.problem(x).cost().matrix().mT).sum())

    cost = one.problem().cost().swapped()
    every = slice(0, 5)
    gradient = cost.gradient(every, plan.clone(), cost.squares(every))
    check_gradient(value, one.x, gradient, one.manifold)
    rows, columns = (index.flatten() for index in torch.meshgrid(torch.arange(5), torch.arange(7), indexing="ij"))
    pairs = plan.flatten()[:, None] * cost.pair_gradients(rows, columns)
    assert torch.allclose(gradient, pairs.reshape(5, 7, 3).sum(1), rtol=1e-12, atol=1e-13)
    part = slice(2, 4)
    assert torch.allclose(cost.gradient(part, plan[part].clone(), cost.squares(part)), gradient[part], atol=1e-14)


def test_the_check_of_gradients_can_fail():
    one = case("sphere")

    def value(x: torch.Tensor) -> float:
        return float(one.problem(x).cost().matrix().sum())

    cost = one.problem().cost().swapped()
    every = slice(0, 5)
    right = cost.gradient(every, torch.ones(5, 7, dtype=torch.float64), cost.squares(every))
    check_gradient(value, one.x, right, one.manifold)
    for wrong in (right / 2, -right, right + 0.1 * one.x, torch.zeros_like(right)):
        with pytest.raises(AssertionError):
            check_gradient(value, one.x, wrong, one.manifold)


@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_field_report_h11_coincident_points_give_exactly_zero(manifold):
    x = cloud(6, 3, manifold)
    x[1] = x[0]
    cost = GroundCost(x, x, MANIFOLDS[manifold])
    every = slice(0, 6)
    gradient = cost.gradient(every, torch.eye(6, dtype=torch.float64), cost.squares(every))
    assert torch.equal(gradient, torch.zeros_like(x))
    assert torch.equal(cost.pair_gradients(torch.arange(6), torch.arange(6)), torch.zeros_like(x))
    assert torch.equal(cost.matrix()[0, 1], torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-9, 1e-7, 1e-5, 1e-2])
def test_field_report_h14_antipodal_points_give_finite_gradients(gap):
    e1 = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    angle = math.pi - gap
    y = torch.tensor([[-math.cos(gap), math.sin(gap), 0.0]], dtype=torch.float64)
    cost = GroundCost(e1, y, jko.Sphere())
    assert float(cost.matrix()) == pytest.approx(angle**2, abs=1e-6)
    one = torch.ones(1, 1, dtype=torch.float64)
    gradient = cost.gradient(slice(0, 1), one, cost.squares(slice(0, 1)))
    assert bool(torch.isfinite(gradient).all())
    if gap:
        expected = torch.tensor([[0.0, -2 * angle, 0.0]], dtype=torch.float64)
        assert torch.allclose(gradient, expected, rtol=0, atol=1e-9)
    else:
        # No direction is preferred, so none is claimed.
        assert torch.equal(gradient, torch.zeros_like(gradient))
    assert bool(torch.isfinite(cost.pair_gradients(torch.tensor([0]), torch.tensor([0]))).all())


def test_field_report_h12_differences_do_not_cancel():
    shift = 1e8
    y = torch.tensor([[0.0], [1.0], [shift]], dtype=torch.float64)
    x = y + 0.1
    assert torch.allclose(
        GroundCost(y, x, jko.Euclidean()).matrix().diagonal(), torch.full((3,), 0.01, dtype=torch.float64), rtol=1e-6
    )
    far = torch.rand(5, 3, generator=generator(0), dtype=torch.float64)
    near = GroundCost(far, far + 1e-3, jko.Euclidean())
    moved = GroundCost(far + 1e6, (far + 1e6) + 1e-3, jko.Euclidean())
    plan = torch.eye(5, dtype=torch.float64)
    every = slice(0, 5)
    there = moved.gradient(every, plan.clone(), moved.squares(every))
    assert torch.allclose(there, near.gradient(every, plan.clone(), near.squares(every)), rtol=1e-6)


class Scaled(AbstractManifold):
    """A manifold that the cost knows nothing about: R^d with distances times 3."""

    def squared_distance(self, x, y):
        return 9 * (x - y).square().sum(-1)

    def project_vector(self, x, v):
        return v


Scaled.__abstractmethods__ = frozenset()


def test_any_manifold_serves():
    y, x = cloud(4, 0), cloud(3, 1)
    cost, plain = (GroundCost(y, x, space) for space in (Scaled(), jko.Euclidean()))
    assert torch.allclose(cost.matrix(), 9 * plain.matrix(), rtol=1e-14)
    plan = torch.rand(4, 3, generator=generator(0), dtype=torch.float64)
    every = slice(0, 4)
    gradient = cost.gradient(every, plan.clone(), cost.squares(every))
    assert torch.allclose(gradient, 9 * plain.gradient(every, plan.clone(), plain.squares(every)), rtol=1e-13)
