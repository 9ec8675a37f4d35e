"""Further checks of a step: what they show, and that each is able to fail."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import jko
from jko.schemes.checks import AbstractCheck, CheckResult, FinishedStep
from jko.schemes.checks.splitting import _Search
from jko.schemes.objective import StepObjective
from jko.status import Status
from tests.oracles.memory import Recorder

METRICS = [jko.Wasserstein2(), jko.WeightedWasserstein(), jko.HeadwiseWasserstein()]
ALL = (jko.DeGiorgi(), jko.LocalMinimality(), jko.Splitting(samples=300), jko.Uniqueness())


def attention(D: torch.Tensor, sign: int = 1) -> jko.AttentionEnergy:
    return jko.AttentionEnergy(jko.ConstantHeads(D), sign=sign)


def small_step(metric, sign: int = 1, tau: float = 0.01, checks=ALL, heads: int = 3, n: int = 12, scale: float = 0.3):
    D = scale * jko.initial_heads(heads, 3, 1)
    measure = jko.ParticleMeasure(jko.initial_tokens(n, 3, 4))
    scheme = jko.JKO(tau, minimizer=jko.Anderson(rtol=1e-10), checks=checks)
    return scheme.step(jko.GradientFlow(attention(D, sign), metric), measure)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.title)
def test_a_small_step_shows_everything(metric, sign: int) -> None:
    info = small_step(metric, sign).info
    assert {name: result.passed for name, result in info.checks.items()} == dict.fromkeys(info.checks, True)
    assert info.certified == 1
    assert abs(info.de_giorgi_defect) < 1e-12
    assert 0.9 < info.smallest_eigenvalue < 1.1
    assert 0 <= info.splitting_gain < 1e-13
    assert 0.5 < info.uniqueness_margin < 1


def test_checks_become_columns_of_the_records() -> None:
    flow = jko.GradientFlow(attention(0.3 * jko.initial_heads(2, 3, 1)))
    measure = jko.ParticleMeasure(jko.initial_tokens(8, 3, 4))
    solution = jko.solve(flow, measure, jko.JKO(0.05, checks=(jko.DeGiorgi(),)), t1=0.1)
    assert solution.records.de_giorgi_defect.abs().max() < 1e-9
    assert "smallest_eigenvalue" not in solution.records


@pytest.mark.parametrize("metric", METRICS[:2], ids=lambda metric: metric.title)
@pytest.mark.parametrize("beta", [1.0, 3.0, 5.0])
def test_coincident_tokens_split_exactly_above_the_threshold(beta: float, metric) -> None:
    """Coincident tokens, D = beta I, sign = +1: a saddle if and only if tau beta e^beta > b."""
    points = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).expand(5, 3)
    mobility = 1.0 if isinstance(metric, jko.Wasserstein2) else math.exp(beta)
    flow = jko.GradientFlow(attention(beta * torch.eye(3)[None]), metric)
    checks = (jko.LocalMinimality(), jko.Splitting())
    for factor in (0.5, 0.98, 1.02, 2.0):
        tau = factor * mobility / (beta * math.exp(beta))
        info = jko.JKO(tau, checks=checks).step(flow, jko.ParticleMeasure(points)).info
        assert info.status is Status.SUCCESS
        assert info.smallest_eigenvalue == pytest.approx(1 - factor, abs=1e-9)
        assert info.certified == float(factor < 1)
        assert (info.splitting_gain > 1e-6) == (factor > 1)
        assert {result.passed for result in info.checks.values()} == {factor < 1}


def test_attraction_never_splits() -> None:
    points = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).expand(5, 3)
    flow = jko.GradientFlow(attention(5.0 * torch.eye(3)[None], sign=-1), jko.Wasserstein2())
    info = jko.JKO(1.0, checks=(jko.LocalMinimality(), jko.Splitting())).step(flow, jko.ParticleMeasure(points)).info
    assert info.certified == 1


def test_frank_wolfe_gap_bounds_the_distance_to_the_infimum() -> None:
    """Splitting a coincident pair lowers the objective by at most the gap, and the gap is no wild overestimate."""
    beta, factor = 1.0, 1.5
    tau = factor / (beta * math.exp(beta))
    flow = jko.GradientFlow(attention(beta * torch.eye(3)[None]), jko.Wasserstein2())
    start = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).expand(2, 3)
    saddle = jko.JKO(tau, checks=(jko.Splitting(),)).step(flow, jko.ParticleMeasure(start))
    nudged = jko.Sphere().exp(start, torch.tensor([[0.0, 0.3, 0.0], [0.0, -0.3, 0.0]], dtype=torch.float64))
    split = jko.JKO(tau).step(flow, jko.ParticleMeasure(start), guess=jko.ParticleMeasure(nudged))
    objective = {
        name: float(flow.energy.value(step.measure, 0.0)) + step.info.squared_distance / (2 * tau)
        for name, step in (("saddle", saddle), ("split", split))
    }
    drop = objective["saddle"] - objective["split"]
    assert drop > 1e-3
    assert drop <= saddle.info.frank_wolfe_gap
    assert saddle.info.frank_wolfe_gap < 20 * drop


def test_a_step_without_a_unique_stationary_point_is_not_called_unique() -> None:
    info = small_step(METRICS[0], tau=0.5, checks=(jko.Uniqueness(),), scale=1.0).info
    assert info.uniqueness_margin <= 0
    assert info.certified == 0


def test_uniqueness_where_it_is_claimed_is_true() -> None:
    """From many starts inside the balls, a step that is called unique reaches one and the same point."""
    D = 0.3 * jko.initial_heads(2, 3, 1)
    measure = jko.ParticleMeasure(jko.initial_tokens(6, 3, 4))
    flow = jko.GradientFlow(attention(D))
    scheme = jko.JKO(0.02, minimizer=jko.Anderson(rtol=1e-11), checks=(jko.Uniqueness(),))
    first = scheme.step(flow, measure)
    assert first.info.uniqueness_margin > 0
    sphere = jko.Sphere()
    for seed in range(5):
        noise = 0.2 * sphere.project_vector(measure.points, sphere.random_point((6,), 3, seed))
        guess = jko.ParticleMeasure(sphere.exp(measure.points, noise))
        other = scheme.step(flow, measure, guess=guess)
        assert torch.allclose(other.measure.points, first.measure.points, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
def test_bending_bound_holds(sign: int) -> None:
    """The uniqueness margin is a lower bound: it never exceeds the smallest eigenvalue of the step's Hessian."""
    info = small_step(METRICS[0], sign, tau=0.03, checks=(jko.LocalMinimality(), jko.Uniqueness())).info
    assert info.uniqueness_margin < info.smallest_eigenvalue


def finished(metric, **changes) -> FinishedStep:
    """A finished step whose trial is replaced by a wrong one."""
    D = 0.3 * jko.initial_heads(3, 3, 1)
    measure = jko.ParticleMeasure(jko.initial_tokens(12, 3, 4))
    captured: list[FinishedStep] = []
    scheme = jko.JKO(0.05, minimizer=jko.Anderson(rtol=1e-10), checks=(_Capture(captured),))
    scheme.step(jko.GradientFlow(attention(D), metric), measure)
    step = captured[0]
    return replace(step, **{name: change(step) for name, change in changes.items()})


class _Capture(AbstractCheck):
    """Keeps the finished step it is shown."""

    def __init__(self, store: list[FinishedStep]) -> None:
        self.store = store

    @property
    def name(self) -> str:
        return "capture"

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    def examine(self, step: FinishedStep) -> CheckResult:
        self.store.append(step)
        return CheckResult(True, {}, 0)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.title)
def test_de_giorgi_sees_a_wrong_step(metric) -> None:
    right = finished(metric)
    assert jko.DeGiorgi().examine(right).passed
    scaled = finished(metric, trial=lambda step: step.objective.evaluate(1.01 * step.trial.xi))
    assert jko.DeGiorgi().examine(scaled).passed is False
    swapped = finished(metric, trial=lambda step: step.objective.evaluate(step.trial.xi.flip(-2)))
    assert jko.DeGiorgi().examine(swapped).passed is False


def test_de_giorgi_nodes() -> None:
    step = finished(METRICS[1])
    few, many = (abs(jko.DeGiorgi(nodes=nodes).examine(step).columns["de_giorgi_defect"]) for nodes in (1, 6))
    assert many < 1e-3 * few


def test_splitting_sees_a_particle_in_the_wrong_place() -> None:
    def displaced(step: FinishedStep):
        xi = step.trial.xi.clone()
        basis = step.objective.manifold.tangent_basis(step.objective.movement.base)
        xi[:, 3] += 0.5 * basis[3, :, 0]
        return step.objective.evaluate(xi)

    result = jko.Splitting(samples=300).examine(finished(METRICS[1], trial=displaced))
    assert result.passed is False
    assert result.columns["splitting_gain"] > 1e-3
    assert "leaving its particle" in result.detail


def test_local_minimality_agrees_with_the_dense_hessian() -> None:
    """The Hessian of the objective by autograd, in coordinates where the transport term is the identity."""
    D = 0.8 * jko.initial_heads(1, 2, 1)
    angles = torch.tensor([0.1, 0.7, 2.0, 4.0], dtype=torch.float64)
    measure = jko.ParticleMeasure(torch.stack([angles.cos(), angles.sin()], -1))
    tau = 0.2
    step = jko.JKO(tau, minimizer=jko.Anderson(rtol=1e-12), checks=(jko.LocalMinimality(),)).step(
        jko.GradientFlow(attention(D), jko.Wasserstein2()), measure
    )
    new = torch.atan2(step.measure.points[:, 1], step.measure.points[:, 0])

    def energy(theta: torch.Tensor) -> torch.Tensor:
        x = torch.stack([theta.cos(), theta.sin()], -1)
        return torch.exp(x @ D[0] @ x.T).sum() / 32

    hessian = torch.autograd.functional.hessian(energy, new)
    scaled = torch.eye(4, dtype=torch.float64) + 4 * tau * hessian
    assert step.info.smallest_eigenvalue == pytest.approx(float(torch.linalg.eigvalsh(scaled)[0]), rel=1e-9)


def test_checks_in_flat_space() -> None:
    measure = jko.ParticleMeasure(torch.tensor([[0.3, -0.2], [0.1, 0.4], [-0.5, 0.2]], dtype=torch.float64))
    flow = jko.GradientFlow(attention(0.5 * torch.eye(2)[None]), jko.Wasserstein2(), jko.Euclidean())
    info = jko.JKO(0.01, checks=ALL).step(flow, measure).info
    assert info.status is Status.SUCCESS
    assert {name: result.passed for name, result in info.checks.items()} == dict.fromkeys(info.checks, True)


def test_checks_that_do_not_apply_say_so() -> None:
    D = 0.3 * jko.initial_heads(2, 3, 1)
    both = attention(D) + 0.5 * attention(D)
    flow = jko.GradientFlow(both, jko.Wasserstein2())
    info = jko.JKO(0.01, checks=(jko.Uniqueness(),)).step(flow, jko.ParticleMeasure(jko.initial_tokens(6, 3, 4))).info
    assert info.checks["uniqueness"].passed is None
    assert info.certified == 0
    assert "one attention energy" in info.detail


@pytest.mark.parametrize("metric", METRICS[:2], ids=lambda metric: metric.title)
def test_splitting_counts_its_passes(metric) -> None:
    n, check = 6, jko.Splitting(samples=18, iterations=5)
    bare, looked = Recorder(), Recorder()
    with bare:
        small_step(metric, checks=(), n=n)
    with looked:
        info = small_step(metric, checks=(check,), n=n).info
    pairs = sum(math.prod(shape) for shape in looked.exponentials) - sum(
        math.prod(shape) for shape in bare.exponentials
    )
    # Three heads; the lattice and the particles themselves, then three descents.
    assert info.checks["splitting"].passes == pairs / (3 * n**2) == (n + 18) / n + 3 * (1 + 5)


def test_splitting_looks_to_both_sides_on_the_circle() -> None:
    found: list[FinishedStep] = []
    D = 0.3 * jko.initial_heads(1, 2, 1)
    measure = jko.ParticleMeasure(jko.initial_tokens(5, 2, 4))
    jko.JKO(0.01, checks=(_Capture(found),)).step(jko.GradientFlow(attention(D), jko.Wasserstein2()), measure)
    _, first, last = _Search.of(found[0]).starts(samples=10)
    x = found[0].trial.points
    sides = [(x[..., 0] * z[..., 1] - x[..., 1] * z[..., 0]).sign() for z in (first, last)]
    assert torch.equal(sides[0], -sides[1])
    assert bool(sides[0].abs().all())


@pytest.mark.parametrize("n", [4, 30], ids=["dense", "Lanczos"])
def test_local_minimality_survives_a_hessian_that_is_not_finite(n: int, monkeypatch) -> None:
    def spoiled(self, trial, direction):
        return torch.full_like(trial.xi, math.nan)

    monkeypatch.setattr(StepObjective, "hessian_product", spoiled)
    info = small_step(jko.WeightedWasserstein(), checks=(jko.LocalMinimality(),), n=n).info
    assert info.status is Status.SUCCESS
    assert info.checks["local minimality"].passed is None
    assert math.isnan(info.smallest_eigenvalue)
    assert info.certified == 0


def test_what_is_undecided_is_not_a_number() -> None:
    flow = jko.GradientFlow(jko.FunctionEnergy(lambda x, w, t: (w * x[:, 0]).sum()), jko.Wasserstein2())
    measure = jko.ParticleMeasure(jko.initial_tokens(4, 3, 4))
    info = jko.JKO(0.01, checks=(jko.Splitting(), jko.Uniqueness())).step(flow, measure).info
    assert {name: result.passed for name, result in info.checks.items()} == {"splitting": None, "uniqueness": None}
    assert math.isnan(info.splitting_gain)
    assert math.isnan(info.frank_wolfe_gap)
    assert math.isnan(info.uniqueness_margin)


def test_bad_checks_are_refused() -> None:
    with pytest.raises(jko.InvalidInput, match="tolerance must be a number, got 'a'"):
        jko.LocalMinimality(tolerance="a")
    with pytest.raises(jko.InvalidInput, match="check"):
        jko.JKO(0.1, checks=(jko.DeGiorgi,))
    with pytest.raises(jko.InvalidInput, match="nodes"):
        jko.DeGiorgi(nodes=0)
    with pytest.raises(jko.InvalidInput, match="samples"):
        jko.Splitting(samples=0)
