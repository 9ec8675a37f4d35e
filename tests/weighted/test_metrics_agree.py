"""The metrics and flows use the formulas of the plain functions: equal values on random inputs, batched too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from jko import weighted
from jko.averages import head_average, mass_average
from jko.energies import AttentionEnergy
from jko.flows import GradientFlow
from jko.heads import ConstantHeads
from jko.manifolds import Euclidean, Sphere
from jko.measure import ParticleMeasure
from jko.metrics import Fields, HeadwiseWasserstein, WeightedWasserstein
from tests.oracles.attention import assert_close
from tests.oracles.weighted import F64, clouds, random_heads

CASES = [
    pytest.param(H, theta, batch, sphere, sign, id=f"{H}-{theta is None}-{batch}-{sphere}-{sign:+d}")
    for H, theta in ((1, None), (3, None), (3, [0.2, 0.5, 0.3]), (3, [0.4, 0.0, 0.6]))
    for batch in ((), (2,))
    for sphere, sign in ((True, 1), (False, 1), (True, -1))
]


def fields(
    H: int, theta: list[float] | None, batch: tuple[int, ...], sphere: bool, sign: int
) -> tuple[Fields, Tensor | None]:
    n, d, count = 5, 3, 2 if batch else 1
    x = clouds(count, n, d, seed=H).reshape(*batch, n, d) * (1 if sphere else 0.8)
    D = random_heads(H * count, d, seed=H).reshape(*batch, H, d, d)
    w = torch.tensor([0.3, 0.2, 0.0, 0.1, 0.4], dtype=F64)
    head_weights = None if theta is None else torch.tensor(theta, dtype=F64)
    measure = ParticleMeasure(x, w)
    evaluation = AttentionEnergy(ConstantHeads(D, head_weights), sign).evaluate(measure, 0.0)
    formed = Fields.of(evaluation, measure, Sphere() if sphere else Euclidean(), 0.0)
    assert formed.evaluation.heads is not None
    assert_close(formed.evaluation.heads.mobility, weighted.head_mobility(x, D, w), 1e-14)
    return formed, head_weights


@pytest.mark.parametrize(("H", "theta", "batch", "sphere", "sign"), CASES)
def test_the_same_values(H: int, theta: list[float] | None, batch: tuple[int, ...], sphere: bool, sign: int) -> None:
    f, head_weights = fields(H, theta, batch, sphere, sign)
    heads, w = f.evaluation.heads, f.measure.weights
    assert heads is not None
    m, b = heads.mobility, weighted.effective_mobility(heads.mobility, head_weights)
    gradient = f.manifold.project_vector(f.measure.points[..., None, :, :], heads.gradient)
    metric = WeightedWasserstein()
    assert_close(metric.mobility(f), b, 1e-14)
    descended = weighted.weighted_gradient(gradient, m, head_weights)
    assert f.normalized is not None
    assert_close(b[..., None] * f.normalized, descended, 1e-13)
    # v_B - v_T, the defect that the flows report.
    defect = weighted.covariance_defect(gradient, m, head_weights)
    scale = float(f.normalized.abs().max())
    assert_close(f.covariance(), defect, 1e-13, scale=scale)
    assert_close(metric.velocity(f) - HeadwiseWasserstein().velocity(f), defect, 1e-13, scale=scale)
    # The slope is the speed of the velocity, the cost of a displacement its squared speed.
    velocity = metric.velocity(f)
    assert_close(metric.squared_slope(f), weighted.metric_speed(velocity, m, w, head_weights) ** 2, 1e-13)
    cost = (w * metric.mobility(f) * velocity.square().sum(-1)).sum(-1)
    assert_close(cost, weighted.metric_speed(velocity, m, w, head_weights) ** 2, 1e-13)
    # The cost of the heads' own displacements is least for the horizontal lift, and then that of their mean.
    lift = weighted.horizontal_lift(velocity, m, head_weights)
    assert_close(mass_average(w, head_average(m * lift.square().sum(-1), head_weights)), cost, 1e-13)


@pytest.mark.parametrize("theta", [None, [0.2, 0.5, 0.3]])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_columns_of_a_flow(theta: list[float] | None, sign: int) -> None:
    f, head_weights = fields(3, theta, (), True, sign)
    heads, w = f.evaluation.heads, f.measure.weights
    assert heads is not None
    gradient = Sphere().project_vector(f.measure.points[None], heads.gradient)
    energy = AttentionEnergy(ConstantHeads(random_heads(3, 3, seed=3), head_weights), sign)
    flow = GradientFlow(energy, WeightedWasserstein())
    columns = flow.state(f.measure, 0.0).columns
    upper = weighted.upper_gradient(gradient, heads.mobility, w, head_weights)
    assert columns["paper_slope2"] == pytest.approx(float(upper) ** 2, rel=1e-12)
    defect = weighted.covariance_defect(gradient, heads.mobility, head_weights)
    size = weighted.metric_speed(defect, heads.mobility, w, head_weights)
    assert columns["covariance_defect"] == pytest.approx(float(size), rel=1e-12)
