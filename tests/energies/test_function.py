from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from jko.energies import FunctionEnergy
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure
from tests.oracles.attention import assert_close

F64 = torch.float64
MU = ParticleMeasure([[0.5, -1.0], [2.0, 0.25], [-0.5, 0.0]], [0.5, 0.25, 0.25])


def potential(points: Tensor, weights: Tensor, t: float) -> Tensor:
    return (1 + t) * weights @ points.square().sum(-1) / 2


def test_a_potential_written_as_a_function() -> None:
    evaluation = FunctionEnergy(potential).evaluate(MU, 1.0, curvature=True)
    assert_close(evaluation.gradient, 2 * MU.points, 1e-15)
    assert_close(evaluation.first_variation, MU.points.square().sum(-1), 1e-15)
    assert_close(evaluation.value, MU.weights @ MU.points.square().sum(-1), 1e-15)
    assert evaluation.curvature is None
    assert FunctionEnergy(potential).first_variation_at(MU.points, MU, 1.0) is None


def test_without_the_weights_the_first_variation_is_not_known() -> None:
    energy = FunctionEnergy(lambda x, w, t: x.square().sum())
    evaluation = energy.evaluate(MU, 0.0)
    assert bool(evaluation.first_variation.isnan().all())
    assert_close(evaluation.gradient, 2 * MU.points / MU.weights[:, None], 1e-15)
    assert_close(energy.hessian_product(MU, 0.0, MU.points), evaluation.gradient, 1e-15)


def test_without_the_points_nothing_moves() -> None:
    energy = FunctionEnergy(lambda x, w, t: w.square().sum())
    evaluation = energy.evaluate(MU, 0.0)
    assert_close(evaluation.gradient, torch.zeros(3, 2), 0.0)
    assert_close(evaluation.first_variation, 2 * MU.weights, 1e-15)
    assert_close(energy.hessian_product(MU, 0.0, MU.points), torch.zeros(3, 2), 0.0)


def test_a_linear_function_has_no_hessian() -> None:
    energy = FunctionEnergy(lambda x, w, t: w @ x.sum(-1))
    assert_close(energy.hessian_product(MU, 0.0, MU.points), torch.zeros(3, 2), 0.0)


def test_the_default_is_that_it_moves() -> None:
    assert FunctionEnergy(potential).moves
    assert not FunctionEnergy(potential, moves=False).moves


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x, w, t: x.sum(-1), r"fn must return a scalar tensor, got shape \(3,\)"),
        (lambda x, w, t: 1.0, "fn must return a scalar tensor, got float"),
        (lambda x, w, t: float(x.detach().sum()), "got float"),
        (lambda x, w, t: x.sum().detach(), "in a way autograd sees"),
    ],
)
def test_functions_that_are_no_energies(fn: Any, message: str) -> None:
    for call in (FunctionEnergy(fn).evaluate, lambda mu, t: FunctionEnergy(fn).hessian_product(mu, t, mu.points)):
        with pytest.raises(InvalidInput, match=message):
            call(MU, 0.0)


@pytest.mark.parametrize("fn", [None, 3, "energy"])
def test_something_else(fn: Any) -> None:
    with pytest.raises(InvalidInput, match="fn must be a function"):
        FunctionEnergy(fn)
