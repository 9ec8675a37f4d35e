"""Steps that were once silently wrong: extreme scales, light particles, a guess that was lost, states not finite."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import jko
from jko.status import Status

SPHERE = jko.Sphere()


def attention(D: torch.Tensor, head_weights: list[float] | None = None, sign: int = 1) -> jko.AttentionEnergy:
    return jko.AttentionEnergy(jko.ConstantHeads(D, head_weights), sign=sign)


@pytest.mark.parametrize("beta", [-300.0, -400.0, 340.0])
@pytest.mark.parametrize("metric", [jko.WeightedWasserstein(), jko.HeadwiseWasserstein()], ids=lambda m: m.title)
def test_squares_that_leave_the_range_do_not_hide_the_residual(beta: float, metric) -> None:
    raw = torch.tensor([[1.0, 0, 0], [1, 0.2, 0], [1, 0, 0.2]], dtype=torch.float64)
    measure = jko.ParticleMeasure(SPHERE.project_point(raw))
    flow = jko.GradientFlow(attention(beta * torch.eye(3)[None]), metric)
    speed = float(flow.velocity(measure, 0.0).norm(dim=-1).max())
    assert speed > 0
    info = jko.JKO(1e-6, checks=(jko.LocalMinimality(),)).step(flow, measure).info
    assert info.status is Status.SUCCESS, info.detail
    assert 0 < info.residual <= 1e-8
    assert info.largest_displacement == pytest.approx(1e-6 * speed, rel=0.05)


def test_an_averaged_state_that_is_not_finite_is_a_failure() -> None:
    D = torch.zeros(2, 3, 3, dtype=torch.float64)
    D[0], D[1] = torch.diag(torch.tensor([1.0, -3, 0])), torch.diag(torch.tensor([0.0, 1200, 0]))
    flow = jko.GradientFlow(attention(D, [0.99, 0.01]), jko.HeadwiseWasserstein())
    start = jko.ParticleMeasure(SPHERE.project_point(torch.tensor([[1.0, 0.1, 0]], dtype=torch.float64)))
    solution = jko.solve(flow, start, jko.JKO(5.0), t1=5.0, throw=False)
    assert not solution.status.ok
    assert solution.states.energy.isfinite().all()
    assert "exponent" in solution.failure.detail


@pytest.mark.parametrize("seed", [6, 9, 12, 23])
@pytest.mark.parametrize("light", [1e-18, 1e-12, 1e-5])
def test_light_particles_meet_the_tolerance_too(light: float, seed: int) -> None:
    weights = torch.full((6,), 0.2 * (1 - light), dtype=torch.float64)
    weights[5] = light
    measure = jko.ParticleMeasure(jko.initial_tokens(6, 3, seed=seed), weights)
    flow = jko.GradientFlow(attention(jko.initial_heads(1, 3, seed=seed)), jko.Wasserstein2())
    step = jko.JKO(0.3).step(flow, measure)
    assert step.info.status is Status.SUCCESS, step.info.detail
    xi = step.info.displacement[5]
    y, x = measure.points[5], step.measure.points[5]
    D = flow.energy.heads.at(0.0)[0]
    K = torch.exp(step.measure.points @ D @ x) * weights
    force = SPHERE.exp_adjoint(y, xi, (K[:, None] * (step.measure.points @ D)).sum(0))
    defect = (xi / 0.3 + force).norm() / torch.maximum(xi.norm() / 0.3, force.norm())
    assert defect < 1e-6


@pytest.mark.parametrize("minimizer", [jko.Anderson(), jko.TrustNewton()], ids=["anderson", "trust"])
def test_a_guess_survives_the_fallback(minimizer) -> None:
    y = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).expand(5, 3)
    noise = SPHERE.random_point((5,), 3, seed=2)
    guess = jko.ParticleMeasure(SPHERE.project_point(y + 0.3 * noise))
    flow = jko.GradientFlow(attention(5.0 * torch.eye(3)[None]), jko.Wasserstein2())
    scheme = jko.JKO(0.1, minimizer=minimizer, checks=(jko.LocalMinimality(),))
    info = scheme.step(flow, jko.ParticleMeasure(y), guess=guess).info
    assert info.status is Status.SUCCESS, info.detail
    assert info.squared_distance > 0.1
    # Turning the whole cloud about the old place changes nothing, so one eigenvalue is 0; at a saddle it is -73.
    assert info.smallest_eigenvalue > -1e-6


def test_checks_in_single_precision() -> None:
    flow = jko.GradientFlow(attention(0.3 * jko.initial_heads(2, 3, seed=3)))
    measure = jko.ParticleMeasure(jko.initial_tokens(6, 3, seed=1)).to(dtype=torch.float32)
    checks = (jko.DeGiorgi(), jko.LocalMinimality(), jko.Splitting(samples=200), jko.Uniqueness())
    info = jko.JKO(0.01, checks=checks).step(flow, measure).info
    assert {result.passed for result in info.checks.values()} == {True}


def test_results_pickle_and_copy() -> None:
    flow = jko.GradientFlow(attention(jko.initial_heads(2, 3, seed=3)))
    measure = jko.ParticleMeasure(jko.initial_tokens(6, 3, seed=1))
    solution = jko.solve(flow, measure, jko.JKO(0.1), t1=0.2, config={"seed": 1})
    for other in (pickle.loads(pickle.dumps(solution)), copy.deepcopy(solution)):
        assert torch.equal(other.points, solution.points)
        assert torch.equal(other.records.energy, solution.records.energy)
        assert other.records.status == solution.records.status
        assert dict(other.config) == {"seed": 1}
    info = pickle.loads(pickle.dumps(jko.JKO(0.1).step(flow, measure).info))
    assert info.residual <= 1e-8
    error = pickle.loads(pickle.dumps(jko.SolveFailed("text", solution=None, status=Status.MAX_STEPS)))
    assert (str(error), error.status) == ("text", Status.MAX_STEPS)
    assert "SUCCESS" in repr(solution)
    assert len(repr(solution)) < 300
    assert "energy" in repr(solution.records)


@pytest.mark.parametrize("tau", [1e200, 1e300, 1.7e308])
def test_absurd_steps_end_in_a_status(tau: float) -> None:
    flow = jko.GradientFlow(attention(jko.initial_heads(2, 3, seed=3)))
    measure = jko.ParticleMeasure(jko.initial_tokens(6, 3, seed=1))
    info = jko.JKO(1.0).step(flow, measure, tau=tau).info
    assert info.status.advice


def test_a_step_to_the_antipode_is_a_step() -> None:
    turning = jko.AttentionField(
        jko.ConstantHeads(torch.zeros(1, 2, 2)), values=jko.ConstantHeads(torch.tensor([[[0.0, -1], [1, 0]]]))
    )
    step = jko.RK4(3.9240217052187756).step(jko.VelocityFlow(turning), jko.ParticleMeasure([[1.0, 0.0]]))
    assert step.info.status is Status.SUCCESS


def test_optimizers_that_cannot_work_are_refused_before_any_work() -> None:
    for factory, options in ((torch.optim.SparseAdam, {}), (torch.optim.SGD, {"lr": 0.1, "differentiable": True})):
        with pytest.raises(jko.InvalidInput, match="refuses its options"):
            jko.TorchOptimizer(factory, **options)
    assert jko.TorchOptimizer(torch.optim.Adam, rtol=None).rtol == 1e-6
    flow = jko.GradientFlow(attention(jko.initial_heads(2, 3, seed=3)))
    with pytest.raises(jko.InvalidInput, match="tau"):
        jko.JKO(0.1).step(flow, jko.ParticleMeasure(jko.initial_tokens(6, 3, seed=1)), tau="0.1")
