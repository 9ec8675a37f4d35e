"""The helpers themselves: each can fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.oracles.attention import (
    Problem,
    assert_close,
    average,
    exponents,
    head_curvatures,
    head_energies,
    head_gradients,
    problem,
    second_moments,
    softmax_outputs,
    sums,
    tangent,
)
from tests.oracles.memory import Recorder


@pytest.mark.parametrize(
    ("actual", "expected"),
    [([1.0, 2.0], [1.0, 2.1]), ([1.0, math.nan], [1.0, 1.0]), ([1.0], [1.0, 1.0]), ([0.0, 1e-9], [0.0, 0.0])],
)
def test_the_assertion_can_fail(actual: list[float], expected: list[float]) -> None:
    with pytest.raises(AssertionError):
        assert_close(torch.tensor(actual), torch.tensor(expected), 1e-3)


def test_the_assertion_is_relative_to_the_largest_entry() -> None:
    assert_close(torch.tensor([1e6, 0.5]), torch.tensor([1e6, 0.0]), 1e-6)
    with pytest.raises(AssertionError):
        assert_close(torch.tensor([1e6, 1.5]), torch.tensor([1e6, 0.0]), 1e-6)


def test_problems_are_what_their_arguments_say() -> None:
    p = problem(7, 3, 2, symmetric=False, own=True, weights="tracers", sphere=True)
    assert p.points.shape == (2, 7, 3)
    assert not torch.equal(p.D, p.D.mT)
    assert (p.weights == 0).sum() == 2
    assert_close(p.weights.sum(), 1.0, 1e-15)
    assert_close(p.points.norm(dim=-1), torch.ones(2, 7), 1e-15)
    q = problem(7, 3, 2)
    assert torch.equal(q.D, q.D.mT)
    assert len(set(q.weights.tolist())) == 7
    assert len(set(problem(7, 3, 2, weights="equal").weights.tolist())) == 1


def test_formulas_by_loops() -> None:
    p = problem(3, 2, 2, symmetric=False)
    x, w, D = (a.numpy() for a in (p.points, p.weights, p.D))
    kernel = [[[math.exp(x[i] @ D[h] @ x[j]) for j in range(3)] for i in range(3)] for h in range(2)]
    mass = [[sum(w[j] * kernel[h][i][j] for j in range(3)) for i in range(3)] for h in range(2)]
    energy = [sum(w[i] * mass[h][i] for i in range(3)) / 2 for h in range(2)]
    gradient = [
        [
            sum(w[j] * (kernel[h][i][j] * D[h] @ x[j] + kernel[h][j][i] * D[h].T @ x[j]) for j in range(3)) / 2
            for i in range(3)
        ]
        for h in range(2)
    ]
    output = [
        [sum(w[j] * kernel[h][i][j] * D[h] @ x[j] for j in range(3)) / mass[h][i] for i in range(3)] for h in range(2)
    ]
    assert_close(exponents(p.points, p.D).exp(), torch.from_numpy(np.array(kernel)), 1e-15)
    assert_close(sums(p.points, p.weights, p.D)["mass"], torch.from_numpy(np.array(mass)), 1e-15)
    assert_close(head_energies(p.points, p.weights, p.D), torch.from_numpy(np.array(energy)), 1e-15)
    assert_close(head_gradients(p.points, p.weights, p.D), torch.from_numpy(np.array(gradient)), 1e-15)
    assert_close(softmax_outputs(p.points, p.weights, p.D), torch.from_numpy(np.array(output)), 1e-15)


def test_curvatures_are_second_derivatives_of_the_first_variation() -> None:
    p = problem(4, 3, 2, symmetric=False)
    actual = head_curvatures(p.points, p.weights, p.D)
    for h in range(2):
        for i in range(4):

            def potential(z: Tensor, D: Tensor = p.D[h : h + 1]) -> Tensor:
                there = exponents(z[None], D, p.points).exp() @ p.weights
                back = p.weights @ exponents(p.points, D, z[None]).exp()
                return (there.squeeze() + back.squeeze()) / 2

            hessian = torch.autograd.functional.hessian(potential, p.points[i])
            assert_close(actual[h, i], hessian, 1e-13)
    second = second_moments(p.points, p.weights, p.D)
    assert second["second"].shape == second["second_transposed"].shape == (2, 6, 4)
    # With all particles at one place the moments are powers of that place.
    x = p.points[:1].expand(4, 3)
    kernel = exponents(x, p.D).exp()[:, 0, 0]
    packed = torch.stack([x[0, a] * x[0, b] for a, b in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))])
    for values in second_moments(x, p.weights, p.D).values():
        assert_close(values, (kernel[:, None] * packed)[..., None].expand(2, 6, 4), 1e-14)


def test_averages_and_projections() -> None:
    values = torch.tensor([[1.0, 2.0], [5.0, 8.0]])
    assert torch.equal(average(values, None), torch.tensor([3.0, 5.0]))
    assert torch.equal(average(values, torch.tensor([0.25, 0.75])), torch.tensor([4.0, 6.5]))
    x = torch.tensor([[0.6, 0.8]])
    assert_close(tangent(x, torch.tensor([[1.0, 0.0]])), torch.tensor([[0.64, -0.48]]), 1e-6)


def test_the_recorder_sees_large_arrays() -> None:
    p = Problem(torch.ones(50, 2), torch.ones(50), torch.ones(3, 2, 2))
    with Recorder() as recorder:
        sums(p.points, p.weights, p.D)
    assert recorder.largest == 3 * 50 * 50
    assert recorder.exponentials == [(3, 50, 50)]
