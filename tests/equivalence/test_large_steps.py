"""Steps from tiny to huge: right, or an honest status; never a silent bad step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

import jko
from jko.schemes import Step
from jko.transport import CouplingProblem

METRICS = {"w2": jko.Wasserstein2(), "weighted": jko.WeightedWasserstein(), "headwise": jko.HeadwiseWasserstein()}


def stiff(heads: int, metric: str, sign: int) -> jko.GradientFlow:
    D = jko.initial_heads(heads, 3, seed=0)
    return jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(D), sign=sign), METRICS[metric])


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("heads", "n", "steps"), [(1, 30, 10), (4, 30, 10), (30, 10, 2)])
@pytest.mark.parametrize("tau", [1.0, 10.0])
def test_huge_steps_from_the_stiff_start(tau: float, heads: int, n: int, steps: int, metric: str, sign: int) -> None:
    flow, measure = stiff(heads, metric, sign), jko.ParticleMeasure(jko.initial_tokens(n, 3, seed=0))
    scheme, good = jko.JKO(tau), 0
    for _ in range(steps):
        step = scheme.step(flow, measure)
        info = step.info
        if not info.status.ok:
            assert info.status.advice
            assert info.trial is not None
            assert torch.equal(step.measure.points, measure.points)
            break
        after = info.head_energy if metric == "headwise" else float(flow.energy.value(step.measure, 0.0))
        slack = 1e-12 * (abs(after) + abs(info.energy_previous))
        assert after + info.squared_distance / (2 * tau) <= info.energy_previous + slack
        assert info.residual <= 1e-8
        assert info.largest_displacement < math.pi
        good, measure = good + 1, step.measure
    assert good >= 0.9 * steps


@pytest.mark.parametrize("metric", METRICS)
def test_tiny_steps_are_proportional_to_tau(metric: str, dtype: torch.dtype) -> None:
    flow = stiff(3, metric, 1)
    measure = jko.ParticleMeasure(jko.initial_tokens(20, 3, seed=0)).to(dtype=dtype)
    whole, half = (jko.JKO(tau).step(flow, measure) for tau in (1e-6, 5e-7))
    velocity = flow.velocity(measure, 0.0)
    assert whole.info.status.ok
    assert half.info.status.ok
    ratio = (whole.info.displacement.norm() / half.info.displacement.norm()).item()
    tolerance = 0.05 if dtype == torch.float32 else 1e-3
    assert ratio == pytest.approx(2, rel=tolerance)
    mean = whole.info.displacement.mean(0) if metric == "headwise" else whole.info.displacement
    assert torch.allclose(mean / 1e-6, velocity, rtol=tolerance, atol=tolerance * float(velocity.abs().max()))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("metric", ["w2", "weighted"])
def test_the_potential_test_never_accepts_a_coupling_that_an_assignment_improves(metric: str, sign: int) -> None:
    """50 random steps for each sign and metric, from tame to wild; both verdicts occur over all of them."""
    generator = np.random.Generator(np.random.Philox(key=[7, sign + 1]))
    for k in range(50):
        scale, tau = generator.uniform(0.3, 1.2), 10 ** generator.uniform(-3, 0.5)
        D = scale * jko.initial_heads(2, 3, seed=k)
        flow = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(D), sign=sign), METRICS[metric])
        measure = jko.ParticleMeasure(jko.Sphere().random_point((10,), 3, seed=k))
        step = jko.JKO(tau).step(flow, measure)
        assert step.info.status.ok, step.info.detail
        mobility = flow.metric.mobility(flow.fields(measure, 0.0))
        chord = (step.measure.points[None] - measure.points[:, None]).norm(dim=-1)
        cost = (mobility[:, None] * (2 * torch.asin((chord / 2).clamp(max=1))) ** 2).numpy()
        rows, columns = linear_sum_assignment(cost)
        improvement = float(np.trace(cost) - cost[rows, columns].sum()) / max(float(np.trace(cost)), 1e-300)
        coupling = step.info.coupling
        if coupling.global_on_support:
            assert improvement <= 1e-9
            assert coupling.optimal is True
        else:
            assert coupling.largest_gain > 0
            assert coupling.optimal == (improvement <= 1e-9)
            assert ("the coupling is optimal" in step.info.detail) == coupling.optimal


def _problem(step: Step, flow: jko.GradientFlow, measure: jko.ParticleMeasure, **changes: torch.Tensor):
    fields = flow.fields(step.measure, 0.0)
    given = {
        "source": measure.points,
        "target": step.measure.points,
        "weights": measure.weights,
        "mobility": flow.metric.mobility(flow.fields(measure, 0.0)),
        "potential": fields.evaluation.first_variation,
        "tau": 0.05,
        "manifold": flow.manifold,
        "tolerance": 1e-8,
    }
    return CouplingProblem(**{**given, **changes})


def test_broken_steps_are_flagged_by_the_check_that_should_flag_them() -> None:
    flow = stiff(2, "weighted", 1)
    measure = jko.ParticleMeasure(jko.Sphere().random_point((12,), 3, seed=3))
    step = jko.JKO(0.05).step(flow, measure)
    assert jko.Matched().certify(_problem(step, flow, measure)).global_on_support
    # Swapped particles: the coupling itself is wrong, and an exact assignment says so.
    swapped = step.measure.points[[1, 0, *range(2, 12)]]
    fields = flow.fields(step.measure.moved(swapped), 0.0)
    verdict = jko.Matched().certify(
        _problem(step, flow, measure, target=swapped, potential=fields.evaluation.first_variation)
    )
    assert not verdict.global_on_support
    assert verdict.optimal is False
    # Perturbed positions and a wrong mobility: no stationary point, which the residual of the step sees.
    nudged = jko.Sphere().exp(step.measure.points, 0.05 * jko.Sphere().tangent_basis(step.measure.points)[..., 0])
    strict = jko.JKO(0.05, minimizer=jko.Anderson(max_passes=1), fallback=None)
    broken = strict.step(flow, measure, guess=jko.ParticleMeasure(nudged))
    assert broken.info.status is jko.Status.NOT_CONVERGED
    assert broken.info.residual > 1e-3
    wrong = jko.GradientFlow(flow.energy, jko.WeightedWasserstein(lambda mu, t: torch.full_like(mu.weights, 3.0)))
    other = strict.step(wrong, measure, guess=step.measure)
    assert other.info.status is jko.Status.NOT_CONVERGED
    assert other.info.residual > 1e-3
