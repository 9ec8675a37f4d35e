"""Heads that are finished before the others: left out of the passes that follow, their result untouched."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import jko
import jko.schemes.minimizers.anderson as anderson_module
from jko.schemes.objective import StepObjective, Trial
from jko.status import Status
from tests.schemes.problems import SIGNS, attention, gap, minimized, objective_of, succeeded, tokens

TAU, N = 0.1, 12
ANDERSON = jko.Anderson()
every_sign = pytest.mark.parametrize("sign", SIGNS)


@pytest.fixture(autouse=True)
def _few_pairs_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave heads out even where so few pairs would not pay."""
    _let_pay(monkeypatch, 0)


def _let_pay(monkeypatch: pytest.MonkeyPatch, pairs: int) -> None:
    monkeypatch.setattr(anderson_module, "_CPU_PAIRS", pairs)
    monkeypatch.setattr(anderson_module, "_DEVICE_PAIRS", pairs)


def uneven(count: int) -> Tensor:
    """Head matrices from weak to strong, so that some heads are finished before others."""
    sizes = torch.logspace(-1.5, 0, count, dtype=torch.float64) if count > 1 else torch.ones(1, dtype=torch.float64)
    return 0.5 * sizes[:, None, None] * jko.initial_heads(count, 3, 1)


def problem_of(flow: jko.GradientFlow, measure: jko.ParticleMeasure) -> tuple[StepObjective, Trial]:
    return objective_of(flow, measure, TAU, ANDERSON.tolerance(measure.dtype), curvature=True)


class Watch:
    """Every evaluation of heads: how many, their matrices, as keys, and where they were evaluated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.calls: list[dict[bytes, Tensor]] = []
        kind = type(jko.AttentionEnergy(jko.ConstantHeads(uneven(1))).by_head())
        original = kind.evaluate

        def spy(energy: Any, measure: jko.ParticleMeasure, t: float, **more: Any) -> Any:
            keys = [D.numpy().tobytes() for D in energy.attention.heads.at(t)]
            self.sizes.append(len(measure.points))
            self.calls.append(dict(zip(keys, measure.points, strict=True)))
            return original(energy, measure, t, **more)

        monkeypatch.setattr(kind, "evaluate", spy)


def residual_of(problem: StepObjective, D: Tensor, sign: int, xi: Tensor, b: Tensor) -> float:
    """Relative residual of one head, by autograd of its objective written down anew; float64, no tracers."""
    y, w = problem.movement.base.double(), problem.movement.weights.double()
    leaf, b = xi.double().clone().requires_grad_(), b.double()
    r = leaf.square().sum(-1, keepdim=True).sqrt()
    x = r.cos() * y + r.sin() / r * leaf
    energy = sign / 2 * w @ (x @ D @ x.T).exp() @ w
    (force,) = torch.autograd.grad(energy, leaf)
    force = force / w[:, None]
    force = force - (force * y).sum(-1, keepdim=True) * y
    cost = xi.double() * b[:, None] / problem.tau
    norms = [float((w / b) @ v.square().sum(-1)) ** 0.5 for v in (cost + force, cost, force)]
    return norms[0] / max(norms[1:])


@every_sign
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [1, 4, 10])
@pytest.mark.parametrize("case", ["equal", "weights of heads", "tracer", "shared part"])
def test_steps_are_the_same(
    sign: int, dtype: torch.dtype, count: int, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = [*range(count)] if case == "weights of heads" and count > 1 else None
    head_weights = None if weights is None else torch.tensor(weights, dtype=torch.float64) / sum(weights)
    flow = attention(uneven(count), "headwise", sign, head_weights=head_weights)
    if case == "shared part":
        well = jko.PotentialEnergy(lambda x: x[..., 0])
        flow = jko.GradientFlow(2 * flow.energy + 0.1 * well, flow.metric)
    masses = torch.arange(N, dtype=torch.float64) / math.comb(N, 2) if case == "tracer" else None
    start = jko.ParticleMeasure(tokens(N), masses).to(dtype)
    runs = []
    for pairs in (0, 10**9):
        _let_pay(monkeypatch, pairs)
        runs.append(jko.solve(flow, start, jko.JKO(TAU), t1=2 * TAU))
    short, full = (run.records for run in runs)
    rtol = ANDERSON.tolerance(dtype)
    assert bool((short.residual <= rtol).all())
    assert bool((short.certified == 1).all())
    way = float(full.largest_displacement.sum())
    assert gap(runs[0].points[-1], runs[1].points[-1]) < 20 * rtol * way
    assert bool((short.head_energy - full.head_energy).abs().max() < 1e3 * rtol * way)
    if count == 1:
        assert torch.equal(runs[0].points[-1], runs[1].points[-1])
        assert torch.equal(short.evaluations, full.evaluations)
    else:
        assert float(short.evaluations.sum()) < float(full.evaluations.sum())


@every_sign
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [4, 10])
def test_every_head_meets_the_tolerance(sign: int, dtype: torch.dtype, count: int) -> None:
    D = uneven(count)
    problem, origin = problem_of(attention(D, "headwise", sign), jko.ParticleMeasure(tokens(N)).to(dtype))
    found = minimized(ANDERSON, problem, origin)
    assert found.status is Status.SUCCESS
    assert count == 4 or found.passes != int(found.passes)
    residuals = [
        residual_of(problem, D[h], sign, found.trial.xi[h], problem.movement.mobility[h]) for h in range(count)
    ]
    reported = [residual for residual, _ in found.trial.residuals]
    rtol = problem.rtol
    assert max(reported) == found.trial.residual <= rtol
    assert max(residuals) <= rtol * (1.001 if dtype == torch.float64 else 1.2)
    assert gap(torch.tensor(residuals), reported) < (1e-3 if dtype == torch.float64 else 0.2) * rtol
    # The oracle can fail.
    assert residual_of(problem, D[0], sign, 1.001 * found.trial.xi[0], problem.movement.mobility[0]) > 1e-4


@every_sign
def test_a_finished_head_is_not_evaluated_again(sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    D = uneven(10)
    problem, origin = problem_of(attention(D, "headwise", sign), jko.ParticleMeasure(tokens(N)))
    watch = Watch(monkeypatch)
    found = minimized(ANDERSON, problem, origin)
    assert watch.sizes[0] == 10 > watch.sizes[-1]
    assert found.passes == sum(watch.sizes) / 10
    for before, after in zip(watch.calls, watch.calls[1:], strict=False):
        assert before.keys() >= after.keys()
    # Each head has the places of the last pass that it took part in, to the last bit.
    for h in range(10):
        last = [call for call in watch.calls if D[h].numpy().tobytes() in call][-1]
        assert torch.equal(found.trial.points[h], last[D[h].numpy().tobytes()])


def test_the_passes_of_a_step_are_counted_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    flow, y = attention(uneven(10), "headwise"), jko.ParticleMeasure(tokens(N))
    scheme = jko.JKO(TAU)
    state = scheme.start(flow, y, 0.0)
    watch = Watch(monkeypatch)
    step = succeeded(scheme.step(flow, y, 0.0, state=state))
    work = sum(watch.sizes) / 10
    # The heads do not move: the pass at the old measure is at hand, the one at the averaged state is not.
    assert step.info.evaluations == work + 1
    assert work < len(watch.sizes)


def test_heads_without_a_force_are_finished_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    D = torch.cat([torch.zeros(2, 3, 3, dtype=torch.float64), uneven(3)])
    problem, origin = problem_of(attention(D, "headwise"), jko.ParticleMeasure(tokens(N)))
    watch = Watch(monkeypatch)
    found = minimized(ANDERSON, problem, origin)
    assert found.status.ok
    assert max(watch.sizes) == 3
    assert found.passes == sum(watch.sizes) / 5
    assert torch.equal(found.trial.xi[:2], torch.zeros_like(found.trial.xi[:2]))


@pytest.mark.parametrize(("pairs", "left_out"), [(0, True), (9 * N * N, True), (9 * N * N + 1, False)])
def test_heads_are_left_out_only_where_it_pays(pairs: int, left_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten heads rest, the tenth does not."""
    _let_pay(monkeypatch, pairs)
    D = torch.cat([torch.zeros(9, 3, 3, dtype=torch.float64), uneven(1)])
    problem, origin = problem_of(attention(D, "headwise"), jko.ParticleMeasure(tokens(N)))
    watch = Watch(monkeypatch)
    found = minimized(ANDERSON, problem, origin)
    assert found.status.ok
    assert set(watch.sizes) == {1 if left_out else 10}
    assert found.passes == sum(watch.sizes) / 10


def test_less_than_a_quarter_of_the_heads_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for resting, size in ((1, 5), (2, 4)):
        D = torch.cat([torch.zeros(resting, 3, 3, dtype=torch.float64), uneven(1).expand(4, 3, 3)])
        problem, origin = problem_of(attention(D, "headwise"), jko.ParticleMeasure(tokens(N)))
        with monkeypatch.context() as context:
            watch = Watch(context)
            assert minimized(ANDERSON, problem, origin).status.ok
        assert set(watch.sizes) == {size}


def test_a_minimization_that_fails_still_has_all_heads() -> None:
    problem, origin = problem_of(attention(uneven(10), "headwise"), jko.ParticleMeasure(tokens(N)))
    whole = minimized(ANDERSON, problem, origin)
    for passes in (2, 3, 4):
        found = minimized(jko.Anderson(max_passes=passes), problem, origin)
        assert found.trial.xi.shape == origin.xi.shape
        assert found.passes <= passes
        assert found.status is Status.NOT_CONVERGED
        assert found.memory is None
        assert found.trial.residual > problem.rtol
        done = [h for h, (residual, _) in enumerate(found.trial.residuals) if residual <= problem.rtol]
        assert gap(found.trial.xi[done], whole.trial.xi[done]) < 1e-8 if done else True


def test_the_fallback_takes_over_with_finished_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    flow, y = attention(uneven(6), "headwise"), jko.ParticleMeasure(tokens(N))
    short = succeeded(jko.JKO(TAU, minimizer=jko.Anderson(max_passes=4)).step(flow, y))
    plain = succeeded(jko.JKO(TAU).step(flow, y))
    assert short.info.evaluations > plain.info.evaluations
    assert gap(short.measure.points, plain.measure.points) < 1e-8


def test_secants_of_finished_heads_are_carried_on() -> None:
    problem, origin = problem_of(attention(uneven(10), "headwise"), jko.ParticleMeasure(tokens(N)))
    first = minimized(ANDERSON, problem, origin)
    assert first.memory is not None
    assert first.memory.images.shape[0] == 10
    assert bool(torch.isfinite(first.memory.images).all())
    again = minimized(ANDERSON, problem, origin, memory=first.memory)
    assert again.status.ok
    assert again.passes < first.passes
    assert gap(again.trial.xi, first.trial.xi) < 1e-8


def test_parts_of_a_trial_make_it_whole() -> None:
    problem, origin = problem_of(attention(uneven(4), "headwise"), jko.ParticleMeasure(tokens(N)))
    trial = problem.evaluate(problem.fixed_point(origin))
    parts = [([3, 0], trial.members([3, 0])), ([2], trial.members([2])), ([1], trial.members([1]))]
    whole = Trial.joined(parts)
    for name in ("xi", "points", "ambient", "pull", "potential"):
        assert torch.equal(getattr(whole, name), getattr(trial, name))
    for name in ("energy", "objective", "residuals", "residual", "mass_residual"):
        assert getattr(whole, name) == getattr(trial, name)
    # A part is the trial of the problem of these heads.
    part = problem.members([3, 0]).evaluate(trial.xi[[3, 0]])
    assert gap(part.pull, trial.members([3, 0]).pull) < 1e-14
    assert part.residual == pytest.approx(parts[0][1].residual, rel=1e-12)
    assert part.objective == pytest.approx(parts[0][1].objective, rel=1e-14)
