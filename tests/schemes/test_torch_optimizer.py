"""Optimizers of torch.optim as minimizers: judged by the same residual, in agreement with Anderson."""

from __future__ import annotations

import pytest
import torch

import jko
from jko.metrics import AbstractMetric
from jko.status import Status

METRICS = [jko.Wasserstein2(), jko.WeightedWasserstein(), jko.HeadwiseWasserstein()]
OPTIMIZERS = {
    "lbfgs": jko.TorchOptimizer(torch.optim.LBFGS, lr=1.0),
    "lbfgs-wolfe": jko.TorchOptimizer(torch.optim.LBFGS, lr=1.0, line_search_fn="strong_wolfe"),
    "adam": jko.TorchOptimizer(torch.optim.Adam, lr=1e-3, max_steps=2000),
    "sgd": jko.TorchOptimizer(torch.optim.SGD, lr=0.9),
}


def flow(metric: AbstractMetric, sign: int, heads: int = 3) -> jko.GradientFlow:
    D = jko.initial_heads(heads, 3, 2) * 0.5
    return jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(D), sign=sign), metric)


def tokens(n: int = 20, weights: torch.Tensor | None = None) -> jko.ParticleMeasure:
    return jko.ParticleMeasure(jko.initial_tokens(n, 3, 5), weights)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.title)
def test_agrees_with_anderson(metric, sign: int, name: str) -> None:
    start = tokens()
    reference = jko.JKO(0.01).step(flow(metric, sign), start)
    step = jko.JKO(0.01, minimizer=OPTIMIZERS[name], fallback=None).step(flow(metric, sign), start)
    assert step.info.status is Status.SUCCESS, step.info.detail
    assert step.info.residual <= 1e-6
    gap = (step.measure.points - reference.measure.points).abs().max()
    assert gap < 1e-5 * reference.info.largest_displacement
    assert gap > 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stays_on_its_device(name: str, accelerator: torch.device) -> None:
    scheme = jko.JKO(0.01, minimizer=OPTIMIZERS[name], fallback=None)
    # One head is solved in far fewer passes than many.
    here, there = (scheme.step(flow(METRICS[1], 1, 1), tokens(5).to(device=d)) for d in ("cpu", accelerator))
    assert there.info.status is Status.SUCCESS, there.info.detail
    assert there.measure.device.type == accelerator.type
    assert torch.allclose(there.measure.points.cpu(), here.measure.points, rtol=0, atol=1e-8)


def test_single_precision() -> None:
    start = tokens().to(dtype=torch.float32)
    for minimizer in (jko.TorchOptimizer(torch.optim.LBFGS, lr=1.0), OPTIMIZERS["sgd"]):
        step = jko.JKO(0.01, minimizer=minimizer, fallback=None).step(flow(METRICS[1], 1), start)
        assert step.info.status is Status.SUCCESS, step.info.detail
        assert step.measure.dtype == torch.float32
        assert step.info.residual <= 1e-5


def test_tracers_meet_the_tolerance_and_change_nothing() -> None:
    weights = torch.cat([torch.zeros(4, dtype=torch.float64), torch.full((16,), 1 / 16, dtype=torch.float64)])
    minimizer = OPTIMIZERS["sgd"]
    both = jko.JKO(0.01, minimizer=minimizer, fallback=None).step(flow(METRICS[1], 1), tokens(20, weights))
    alone = jko.ParticleMeasure(tokens().points[4:])
    single = jko.JKO(0.01, minimizer=minimizer, fallback=None).step(flow(METRICS[1], 1), alone)
    assert both.info.status is Status.SUCCESS
    assert torch.allclose(both.measure.points[4:], single.measure.points, rtol=0, atol=1e-8)


def test_a_step_above_the_tolerance_says_so() -> None:
    minimizer = jko.TorchOptimizer(torch.optim.Adam, lr=1e-6, max_steps=5)
    step = jko.JKO(0.01, minimizer=minimizer, fallback=None).step(flow(METRICS[0], 1), tokens())
    assert step.info.status is Status.NOT_CONVERGED
    assert "residual" in step.info.detail
    assert step.info.evaluations == 5
    assert torch.equal(step.measure.points, tokens().points)


def test_an_optimizer_that_diverges_is_not_believed() -> None:
    minimizer = jko.TorchOptimizer(torch.optim.SGD, lr=50.0)
    step = jko.JKO(0.05, minimizer=minimizer, fallback=None).step(flow(METRICS[0], -1), tokens())
    assert not step.info.status.ok
    rescued = jko.JKO(0.05, minimizer=minimizer).step(flow(METRICS[0], -1), tokens())
    assert rescued.info.status.ok


def test_a_stationary_state_takes_no_pass() -> None:
    flat = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(torch.zeros(1, 3, 3))), METRICS[0])
    for minimizer in OPTIMIZERS.values():
        step = jko.JKO(0.1, minimizer=minimizer, fallback=None).step(flat, tokens())
        assert step.info.status is Status.SUCCESS
        assert step.info.evaluations == 0
        assert torch.allclose(step.measure.points, tokens().points, rtol=0, atol=1e-15)


@pytest.mark.parametrize("copies", [1, 10, 100])
def test_the_displacement_does_not_depend_on_the_number_of_copies(copies: int) -> None:
    """Absolute tolerances of an optimizer must not meet gradients that carry 1/n."""
    points = torch.tensor([[0.6, 0.1], [-0.2, 0.7]], dtype=torch.float64).repeat(copies, 1)
    energy = 0.001 * jko.AttentionEnergy(jko.ConstantHeads(torch.eye(2)[None]))
    problem = jko.GradientFlow(energy, jko.Wasserstein2(), jko.Euclidean())
    minimizer = OPTIMIZERS["lbfgs"]
    step = jko.JKO(0.1, minimizer=minimizer, fallback=None).step(problem, jko.ParticleMeasure(points))
    expected = torch.tensor([[-3.3915e-5, -4.0524e-5], [-1.1545e-5, -6.4206e-5]], dtype=torch.float64)
    assert torch.allclose(step.info.displacement[:2], expected, rtol=1e-2, atol=0)


def test_bad_options_are_refused_before_any_work() -> None:
    with pytest.raises(jko.InvalidInput, match="refuses its options"):
        jko.TorchOptimizer(torch.optim.SGD, lr=-1.0)
    with pytest.raises(jko.InvalidInput, match="refuses its options"):
        jko.TorchOptimizer(torch.optim.Adam, no_such_option=1)
    with pytest.raises(jko.InvalidInput, match="factory"):
        jko.TorchOptimizer("Adam")
    with pytest.raises(jko.InvalidInput, match="rtol"):
        jko.TorchOptimizer(torch.optim.Adam, rtol=0.0)


def test_grad_mode_is_left_alone() -> None:
    with torch.no_grad():
        jko.JKO(0.01, minimizer=OPTIMIZERS["lbfgs"]).step(flow(METRICS[0], 1), tokens())
        assert not torch.is_grad_enabled()
    jko.JKO(0.01, minimizer=OPTIMIZERS["lbfgs"]).step(flow(METRICS[0], 1), tokens())
    assert torch.is_grad_enabled()
