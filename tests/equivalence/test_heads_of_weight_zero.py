"""A head of weight 0 is no head: results are those of the other heads alone, even where its exponentials overflow."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import jko
from jko import weighted
from jko.heads import AbstractHeads
from jko.metrics import MobilityField
from tests.oracles.attention import problem
from tests.schemes.problems import METRICS, succeeded

F64 = torch.float64
P = problem(6, 3, 2, weights="tracers", sphere=True)
Y = jko.ParticleMeasure(P.points, P.weights)
# Its exponents reach beyond 10^5: sums of inf, 0 and NaN.
DEAD = 1e6 * torch.diag(torch.tensor([1.0, -1.0, 2.0], dtype=F64))
SCHEMES = [jko.ExplicitEuler(0.01), jko.ExponentialEuler(0.01), jko.RK4(0.01), jko.JKO(0.01)]


def with_dead(D: Tensor, weights: list[float] | None, position: int) -> jko.ConstantHeads:
    """The heads with a dead one between them."""
    D = torch.cat([D[:position], DEAD[None], D[position:]])
    weights = [1 / (len(D) - 1)] * (len(D) - 1) if weights is None else weights
    return jko.ConstantHeads(D, [*weights[:position], 0.0, *weights[position:]])


CASES: list[tuple[AbstractHeads, AbstractHeads]] = [
    (with_dead(P.D[:1], None, 1), jko.ConstantHeads(P.D[:1])),
    (with_dead(P.D[:1], None, 0), jko.ConstantHeads(P.D[:1])),
    (with_dead(P.D, [0.3, 0.7], 1), jko.ConstantHeads(P.D, [0.3, 0.7])),
]


@pytest.mark.parametrize(("dead", "alone"), CASES)
@pytest.mark.parametrize("sign", [1, -1])
def test_energies(dead: AbstractHeads, alone: AbstractHeads, sign: int) -> None:
    potential = jko.PotentialEnergy(lambda x: x.square().sum(-1))
    for wrap in (lambda e: e, lambda e: 2.0 * e, lambda e: e + potential):
        one, two = (wrap(jko.AttentionEnergy(heads, sign)) for heads in (dead, alone))
        a, b = (e.evaluate(Y, 0.0, curvature=True) for e in (one, two))
        for name in ("value", "first_variation", "gradient", "curvature"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name
        assert torch.equal(one.value(Y, 0.0), two.value(Y, 0.0))
        assert torch.equal(one.hessian_product(Y, 0.0, P.points), two.hessian_product(Y, 0.0, P.points))
        fields = [e.first_variation_at(P.points[:2], Y, 0.0) for e in (one, two)]
        assert torch.equal(fields[0].gradient, fields[1].gradient)
        assert one.largest_exponent(Y, 0.0) == two.largest_exponent(Y, 0.0) < 10
    assert torch.equal(*(jko.AttentionEnergy(h, sign).log_value(Y, 0.0) for h in (dead, alone)))


@pytest.mark.parametrize(("dead", "alone"), CASES)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.title)
def test_steps(dead: AbstractHeads, alone: AbstractHeads, metric: str, scheme: Any) -> None:
    one, two = (
        succeeded(scheme.step(jko.GradientFlow(jko.AttentionEnergy(heads), METRICS[metric]), Y))
        for heads in (dead, alone)
    )
    assert torch.equal(one.measure.points, two.measure.points)
    assert one.info.columns == two.info.columns
    if one.info.displacement.ndim == 3:
        rest = one.info.displacement[[k for k, theta in enumerate(dead.head_weights) if theta == 0]]
        assert one.info.displacement.shape[0] == dead.num_heads
        assert not bool(rest.any())
    assert one.state.flow_state.columns == two.state.flow_state.columns
    assert torch.equal(one.state.flow_state.velocity, two.state.flow_state.velocity)


@pytest.mark.parametrize(("dead", "alone"), CASES)
def test_attention_fields_with_values_of_their_own(dead: AbstractHeads, alone: AbstractHeads) -> None:
    def values(heads: AbstractHeads) -> jko.ConstantHeads:
        return jko.ConstantHeads(heads.at(0.0).flip(-1))

    for V in (lambda heads: None, values):
        one, two = (jko.VelocityFlow(jko.AttentionField(heads, V(heads))) for heads in (dead, alone))
        assert torch.equal(one.velocity(Y, 0.0), two.velocity(Y, 0.0))


def test_the_ledger_of_a_step() -> None:
    def heads(D: Tensor, weights: list[float]) -> jko.ItoHeads:
        return jko.ItoHeads(D, lambda D, t: -D, lambda D, t: 0.1, 0.01, 0.02, head_weights=weights)

    one = heads(torch.cat([P.D[:1], 1e-3 * DEAD[None]]), [1.0, 0.0])
    flow = jko.GradientFlow(jko.AttentionEnergy(one), jko.HeadwiseWasserstein())
    columns = succeeded(jko.ExplicitEuler(0.01, ledger=True).step(flow, Y)).info.columns
    alone = jko.AttentionEnergy(jko.ConstantHeads(P.D[:1])).evaluate(Y, 0.0, moments=True).heads
    assert alone is not None
    assert alone.moments is not None
    increment = one.increment(0.0, 0.01)
    for name, matrices in (("drift", 0.01 * increment.drift[0]), ("martingale", increment.noise[0])):
        expected = float((alone.moments.first[0] * matrices).sum()) / 2
        assert columns[f"ledger_{name}"] == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
def test_averages_over_given_mobilities(value: float) -> None:
    m = torch.rand(1, 4, dtype=F64, generator=torch.Generator().manual_seed(0)) + 0.5
    g = torch.rand(1, 4, 3, dtype=F64, generator=torch.Generator().manual_seed(1))
    both, forces = (torch.cat([part, torch.full_like(part, value)]) for part in (m, g))
    theta = torch.tensor([1.0, 0.0])
    for name in ("weighted_gradient", "covariance_defect"):
        function = getattr(weighted, name)
        assert torch.equal(function(forces, both, theta), function(g, m))
    assert torch.equal(weighted.upper_gradient(forces, both, None, theta), weighted.upper_gradient(g, m))
    assert torch.equal(weighted.metric_speed(g[0], both, None, theta), weighted.metric_speed(g[0], m))
    assert torch.equal(weighted.horizontal_lift(g[0], both, theta)[:1], weighted.horizontal_lift(g[0], m))


@pytest.mark.parametrize(("dead", "alone"), CASES)
def test_mobilities_and_distances(dead: AbstractHeads, alone: AbstractHeads) -> None:
    fields = [MobilityField(jko.AttentionEnergy(heads), Y, 0.0).at(P.points[:2]) for heads in (dead, alone)]
    for one, two in zip(*fields, strict=True):
        assert torch.equal(one, two)
    x = P.points[:4]
    distances = [weighted.weighted_distance(x, x.roll(1, 0), heads, segments=4).value for heads in (dead, alone)]
    assert distances[0] == distances[1]
