"""What has no derivative refuses tensors that ask for one: a gradient never vanishes without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jko
from jko import weighted
from jko.errors import InvalidInput
from jko.transport import ExactOT, transport_cost

F64 = torch.float64
X = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=F64)
W = torch.tensor([0.25, 0.75], dtype=F64)
D = torch.eye(3, dtype=F64).expand(2, 3, 3).clone()
TIMES = torch.tensor([0.0, 1.0], dtype=F64)
NOISE = torch.zeros(10, 2, 3, 3, dtype=F64)


def symmetric_drift(heads: Tensor, t: float) -> Tensor:
    return 0 * heads


# Every public place that takes an array: how, the array, and its name in the message.
PLACES: dict[str, tuple[Callable[[Any], Any], Tensor, str]] = {
    "points": (jko.ParticleMeasure, X, "points"),
    "weights": (lambda w: jko.ParticleMeasure(X, w), W, "weights"),
    "moved": (jko.ParticleMeasure(X).moved, X, "points"),
    "constant": (jko.ConstantHeads, D, "D"),
    "head weights": (lambda w: jko.ConstantHeads(D, w), W, "head_weights"),
    "table": (lambda d: jko.TabulatedHeads(TIMES, d), D.expand(2, 2, 3, 3), "D"),
    "times": (lambda t: jko.TabulatedHeads(t, D.expand(2, 2, 3, 3)), TIMES, "times"),
    "Ornstein-Uhlenbeck": (lambda d: jko.OrnsteinUhlenbeckHeads(d, dt=0.1, t1=1.0), D, "D0"),
    "mean": (lambda m: jko.OrnsteinUhlenbeckHeads(D, mean=m, dt=0.1, t1=1.0), D[0], "mean"),
    "increments": (lambda n: jko.OrnsteinUhlenbeckHeads.from_increments(D, n, dt=0.1), NOISE, "dW_sym"),
    "oscillating": (lambda d: jko.OscillatingHeads(d, dt=0.1, t1=1.0), D, "D0"),
    "phases": (lambda p: jko.OscillatingHeads(D, dt=0.1, t1=1.0, phases=p), W, "phases"),
    "Ito": (lambda d: jko.ItoHeads(d, symmetric_drift, lambda heads, t: 1.0, dt=0.1, t1=1.0), D, "D0"),
    "mobility": (
        lambda b: transport_cost(X, X, transport=ExactOT(), manifold=jko.Sphere(), mobility=b),
        torch.ones(2, dtype=F64),
        "mobility",
    ),
    "distance": (lambda x: weighted.weighted_distance(x, X, D), X, "points0"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_that_requires_a_gradient_is_refused_by_name(place: str) -> None:
    call, values, name = PLACES[place]
    call(values.clone())
    with pytest.raises(InvalidInput, match=rf"{name} .*requires a gradient.*{name}\.detach\(\)"):
        call(values.clone().requires_grad_())


def test_the_functions_of_the_weighted_metric_stay_differentiable() -> None:
    x, d = X.clone().requires_grad_(), D.clone().requires_grad_()
    mobility = weighted.head_mobility(x, d)
    effective = weighted.effective_mobility(mobility)
    # One head matrix for both heads: b = m_h = sum_j w_j e^{<x_i, x_j>}, whose derivative in D is x_i x_j^T m.
    (in_x, in_d) = torch.autograd.grad(effective.sum(), (x, d))
    assert float(in_x.abs().max()) > 0.1
    assert float(in_d.abs().max()) > 0.1
    assert torch.autograd.gradcheck(lambda a: weighted.effective_mobility(weighted.head_mobility(a, D)), x)


@pytest.mark.parametrize("manifold", [jko.Sphere(), jko.Euclidean()])
def test_manifolds_stay_differentiable(manifold: Any) -> None:
    xi = torch.tensor([[0.0, 0.3, 0.1], [0.2, 0.0, -0.4]], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: manifold.squared_distance(manifold.exp(X, v), X), xi)
