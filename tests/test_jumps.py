"""Heads and potentials that jump at known times: every step stays on its side, and the records close across them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad, solve_ivp
from scipy.optimize import brentq
from torch import Tensor

import jko
from jko.diagnostics import compare
from jko.driver import Checkpoint, resume
from jko.errors import InvalidInput
from jko.heads import AbstractHeads, SelectedHeads
from jko.schemes import AbstractScheme, Step
from jko.verify import Verdict, weak_form
from tests.oracles.flows import quantities
from tests.oracles.orders import assert_order
from tests.oracles.reductions import Counted
from tests.runs.kills import differences
from tests.schemes.problems import METRICS, SIGNS, gap, tokens


def exact(tau: float) -> jko.JKO:
    """A step that is solved to rounding."""
    return jko.JKO(tau, minimizer=jko.Anderson(1e-13))


# One particle x = 1 in R^1: theta = 0 before t = 0.5. A strong attraction has no step: theta is less for sign = -1.
CASES = ((1, 1.0), (-1, 0.3))
JUMP = 0.4 / 3
T1 = 0.4
STEPS = (8, 16, 32, 64)
SCHEMES = {"jko": exact, "euler": jko.ExplicitEuler, "exponential": jko.ExponentialEuler, "rk4": jko.RK4}

every_case = pytest.mark.parametrize(("sign", "theta"), CASES)
every_metric = pytest.mark.parametrize("metric", METRICS)
every_sign = pytest.mark.parametrize("sign", SIGNS)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


@dataclass(frozen=True, slots=True, eq=False)
class Switched(AbstractHeads):
    """A path of the user's own: matrices up to a time, others from there on, with jumps declared or not."""

    before: Tensor
    after: Tensor
    time: float
    declared: bool = True
    head_weights: Tensor | None = None
    t1: float = math.inf
    moves: bool = True

    @property
    def jumps(self) -> tuple[float, ...]:
        return (self.time,) if self.declared else ()

    def at(self, t: float) -> Tensor:
        return (self.after if t >= self.time else self.before).clone()


def line(energy: jko.energies.AbstractEnergy) -> jko.GradientFlow:
    return jko.GradientFlow(energy, jko.Wasserstein2(), jko.Euclidean())


def number(theta: float) -> Tensor:
    """One head in one dimension."""
    return torch.full((1, 1, 1), theta, dtype=torch.float64)


def switched(t: float, theta: float) -> float:
    return theta if t >= 0.5 else 0.0


def declarations(sign: int, theta: float) -> dict[str, jko.energies.AbstractEnergy]:
    """The same force x -> -sign theta x exp(theta x^2) from t = 0.5 on, said in every way."""
    zero, one = number(0.0), number(theta)
    table = jko.TabulatedHeads((0, 0.5, 0.5, 1), torch.stack([zero, zero, one, one]))
    constant = jko.AttentionEnergy(jko.ConstantHeads(one), sign)

    def V(x: Tensor, t: float) -> Tensor:
        return sign / 2 * (switched(t, theta) * x[..., 0].square()).exp()

    return {
        "table": jko.AttentionEnergy(table, sign),
        "own path": jko.AttentionEnergy(Switched(zero, one, 0.5), sign),
        "selected": jko.AttentionEnergy(SelectedHeads(table, (0,)), sign),
        "scaled": jko.Scaled(constant, lambda t: float(t >= 0.5), jumps=(0.5,)),
        "potential": jko.PotentialEnergy(V, jumps=(0.5,)),
        "function": jko.FunctionEnergy(lambda x, w, t: w @ V(x, t), jumps=(0.5,)),
        "sum": jko.AttentionEnergy(table, sign) + jko.PotentialEnergy(lambda x: 0 * x[..., 0]),
        "twice": 2 * (0.5 * jko.AttentionEnergy(table, sign)),
    }


def implicit(x: float, tau: float, sign: int, theta: float) -> float:
    """z with z - x + tau sign theta z exp(theta z^2) = 0, the step of the scalar problem."""
    ends = (0.0, x) if sign == 1 else (x, 1.2 * x)
    return float(brentq(lambda z: z - x + tau * sign * theta * z * math.exp(theta * z * z), *ends, xtol=1e-15))


ONE = jko.ParticleMeasure(torch.ones(1, 1, dtype=torch.float64))


@every_case
@pytest.mark.parametrize("how", declarations(1, 1.0))
def test_a_declared_jump_cuts_the_step_and_each_part_takes_its_own_side(how: str, sign: int, theta: float) -> None:
    energy = declarations(sign, theta)[how]
    assert energy.jumps == (0.5,)
    run = jko.solve(line(energy), ONE, exact(0.2), t0=0.4, t1=0.6)
    assert run.times.tolist() == [0.4, 0.5, 0.6]
    assert float(run.points[1]) == 1.0
    assert float(run.points[-1]) == pytest.approx(implicit(1.0, 0.1, sign, theta), abs=1e-12)


@every_case
def test_an_undeclared_jump_falls_to_the_end_point_rule(sign: int, theta: float) -> None:
    heads = Switched(number(0.0), number(theta), 0.5, declared=False)
    run = jko.solve(line(jko.AttentionEnergy(heads, sign)), ONE, exact(0.2), t0=0.4, t1=0.6)
    assert run.times.tolist() == [0.4, 0.6]
    assert float(run.points[-1]) == pytest.approx(implicit(1.0, 0.2, sign, theta), abs=1e-12)


def test_the_numbers_of_the_documentation() -> None:
    # x' = -x exp(x^2) over 0.1: the time from x to 1 is int_x^1 dz / (z exp(z^2)).
    limit = brentq(lambda x: quad(lambda z: math.exp(-z * z) / z, x, 1)[0] - 0.1, 0.5, 1, xtol=1e-14)
    assert limit == pytest.approx(0.800203, abs=1e-6)
    assert implicit(1.0, 0.2, 1, 1.0) == pytest.approx(0.742370, abs=1e-6)
    assert implicit(1.0, 0.1, 1, 1.0) == pytest.approx(0.833187, abs=1e-6)
    run = jko.solve(line(declarations(1, 1.0)["table"]), ONE, jko.RK4(0.001), t0=0.4, t1=0.6)
    assert float(run.points[-1]) == pytest.approx(limit, abs=2e-12)


def matrices() -> tuple[Tensor, Tensor]:
    """Heads before and after, that are not symmetric and far apart."""
    before, after = 0.6 * np.random.default_rng(5).standard_normal((2, 2, 3, 3))
    return torch.from_numpy(before), torch.from_numpy(after)


def start() -> jko.ParticleMeasure:
    return jko.ParticleMeasure(tokens(5, 3, 1))


def table(jump: float = JUMP) -> jko.TabulatedHeads:
    before, after = matrices()
    return jko.TabulatedHeads((0, jump, jump, 1), torch.stack([before, before, after, after]))


def jumping(metric: str = "weighted", sign: int = 1, jump: float = JUMP, reduction: Any = None) -> jko.GradientFlow:
    return jko.GradientFlow(jko.AttentionEnergy(table(jump), sign, reduction), METRICS[metric])


@functools.cache
def limit(metric: str, sign: int) -> Tensor:
    """The end of the flow: an adaptive method of order 8, restarted at the jump."""
    x, weights = start().points.numpy().ravel(), start().weights
    for D, (a, b) in zip(matrices(), itertools.pairwise((0.0, JUMP, T1)), strict=True):

        def velocity(t: float, z: np.ndarray, D: Tensor = D) -> np.ndarray:
            points = torch.from_numpy(z.reshape(5, 3).copy())
            fields = quantities(points / points.norm(dim=-1, keepdim=True), weights, D, None, sphere=True)
            return sign * fields[metric].numpy().ravel()

        x = solve_ivp(velocity, (a, b), x, method="DOP853", rtol=1e-13, atol=1e-14).y[:, -1]
    return torch.from_numpy(x.reshape(5, 3))


@every_metric
@every_sign
@every_scheme
def test_a_declared_jump_keeps_the_order_that_an_undeclared_one_loses(scheme: str, sign: int, metric: str) -> None:
    order = 4 if scheme == "rk4" else 1
    hidden = Switched(*matrices(), JUMP, declared=False)
    taus, flows = (
        [T1 / steps for steps in STEPS],
        (jumping(metric, sign), jko.GradientFlow(jko.AttentionEnergy(hidden, sign), METRICS[metric])),
    )
    ends = [[jko.solve(flow, start(), SCHEMES[scheme](tau), t1=T1).points[-1] for tau in taus] for flow in flows]
    declared, undeclared = ([float((end - limit(metric, sign)).norm()) for end in row] for row in ends)
    assert_order(taus, declared, order)
    with pytest.raises(AssertionError):
        assert_order(taus, undeclared, order)


@every_metric
@every_sign
@every_scheme
def test_the_records_close_row_by_row_and_the_jump_is_in_the_time_part(scheme: str, sign: int, metric: str) -> None:
    flow = jumping(metric, sign)
    run = jko.solve(flow, start(), SCHEMES[scheme](0.05), t1=0.3)
    k = run.states.t.tolist().index(JUMP)
    assert k == 3
    assert len(run.times) == 8
    records, energy = run.records, run.states.energy
    assert gap(energy.diff(), records.energy - records.energy_previous + records.time_part) < 1e-15
    left = [float(flow.energy.value(run.measure(k), t)) for t in (math.nextafter(JUMP, 0), JUMP)]
    assert abs(left[1] - left[0]) > 0.01
    assert float(energy[k]) == pytest.approx(left[0], rel=1e-14)
    # The heads rest on both sides, so that nothing but the jump is in the time part.
    expected = torch.zeros(7, dtype=torch.float64)
    expected[k] = left[1] - left[0]
    assert gap(records.time_part, expected) < 1e-15
    # Without the jump in it, what the particles do to the energy is the dissipation up to O(tau).
    motion, tau = records.energy - records.energy_previous, run.states.t.diff()
    rates = -motion / tau
    sides = torch.cat([run.states.dissipation[:k], run.states.dissipation[k + 1 :]])
    assert float((rates[:k] - sides[:k]).abs().max()) < 0.1 * float(sides.abs().max())
    assert float((rates[k + 1 :] - sides[k:-1]).abs().max()) < 0.1 * float(sides.abs().max())


@every_scheme
def test_all_passes_across_a_jump_are_counted(scheme: str) -> None:
    calls: list[None] = []
    flow = jumping("w2", reduction=Counted(jko.Auto(), calls))
    run = jko.solve(flow, start(), SCHEMES[scheme](0.1), t1=0.3)
    assert run.steps == 4
    # The first pass, at the initial measure, belongs to no step.
    assert len(calls) - 1 == float(run.records.evaluations.sum())


@pytest.mark.parametrize(
    ("metric", "scheme"), [("weighted", "jko"), ("headwise", "jko"), ("w2", "euler"), ("w2", "rk4")]
)
def test_a_run_that_is_resumed_after_every_step_is_the_unbroken_one(tmp_path: Path, metric: str, scheme: str) -> None:
    flow, kind = jumping(metric), SCHEMES[scheme](0.05)
    whole = jko.solve(flow, start(), kind, t1=0.3)
    options = {"checkpoint": Checkpoint(tmp_path, every=1), "max_steps": 1, "throw": False}
    jko.solve(flow, start(), kind, t1=0.3, **options)
    for _ in range(6):
        part = resume(tmp_path, flow, kind, max_steps=1, throw=False)
    assert part.status is jko.Status.SUCCESS
    assert differences(part, whole) == []


@pytest.mark.parametrize("first", [0.0, 0.1, 0.12, JUMP, math.nextafter(JUMP, 1), JUMP + 0.05, 0.2, 0.25])
@pytest.mark.parametrize("scheme", ["jko", "rk4"])
def test_a_run_made_longer_is_the_longer_run(tmp_path: Path, scheme: str, first: float) -> None:
    flow, kind = jumping(), SCHEMES[scheme](0.05)
    jko.solve(flow, start(), kind, t1=first, checkpoint=Checkpoint(tmp_path, every=100))
    assert differences(resume(tmp_path, flow, kind, t1=0.3), jko.solve(flow, start(), kind, t1=0.3)) == []


@every_scheme
def test_ends_within_rounding_of_a_jump_are_on_their_own_side(scheme: str) -> None:
    before, after = (jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(D))) for D in matrices())
    jump, kind = 0.3, SCHEMES[scheme](0.1)
    for end in (math.nextafter(jump, 0), jump, 0.1 * 3):
        run = jko.solve(jumping(jump=jump), start(), kind, t1=end)
        assert float(run.times[-1]) == end
        assert gap(run.points[-1], jko.solve(before, start(), kind, t1=end).points[-1]) < 1e-10
        assert float(run.states.energy[-1]) == pytest.approx(float(before.energy.value(run.measure(-1), 0)), rel=1e-14)
    for begin in (math.nextafter(jump, 0), jump, 0.1 * 3):
        run = jko.solve(jumping(jump=jump), start(), kind, t0=begin, t1=0.5)
        assert run.steps == 2
        assert float(run.times[0]) == max(begin, jump)
        assert gap(run.points[-1], jko.solve(after, start(), kind, t1=0.2).points[-1]) < 1e-10


@pytest.mark.parametrize("kind", [jko.ExplicitEuler, jko.RK4])
def test_a_field_jumps_with_its_values(kind: Callable[[float], Any]) -> None:
    heads = jko.ConstantHeads(matrices()[0])
    flow = jko.VelocityFlow(jko.AttentionField(heads, table()))
    assert flow.jumps == (JUMP,)
    run = jko.solve(flow, start(), kind(0.05), t1=0.3)
    halves = [jko.VelocityFlow(jko.AttentionField(heads, jko.ConstantHeads(V))) for V in matrices()]
    first = jko.solve(halves[0], start(), kind(0.05), t1=JUMP)
    second = jko.solve(halves[1], first.measure(-1), kind(0.05), t0=JUMP, t1=0.3)
    assert gap(run.points[-1], second.points[-1]) < 1e-14


def test_parts_are_collected_sorted_and_each_once() -> None:
    V = jko.PotentialEnergy(lambda x, t: 0 * x[..., 0], jumps=(0.7, 0.2, 0.7))
    assert V.jumps == (0.2, 0.7)
    energy = jko.Scaled(V, lambda t: 1.0, jumps=[0.5]) + jko.AttentionEnergy(table(0.2))
    assert energy.jumps == jko.GradientFlow(energy).jumps == (0.2, 0.5, 0.7)
    assert jko.Scaled(energy, lambda t: 1.0, jumps=[0.1]).jumps == (0.1, 0.2, 0.5, 0.7)
    assert jko.AttentionEnergy(jko.ConstantHeads(torch.eye(3)[None])).jumps == ()
    field = jko.AttentionField(table(0.2), table(0.1))
    assert jko.VelocityFlow(field).jumps == field.jumps == (0.1, 0.2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: jko.PotentialEnergy(lambda x: x[..., 0], jumps=(0.5,)),
        lambda: jko.PotentialEnergy(lambda x, t: x[..., 0], moves=False, jumps=(0.5,)),
        lambda: jko.FunctionEnergy(lambda x, w, t: x.sum(), moves=False, jumps=(0.5,)),
        lambda: jko.Scaled(jko.AttentionEnergy(table()), 2.0, jumps=(0.5,)),
    ],
)
def test_what_does_not_depend_on_time_has_no_jumps(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput, match=r"jumps = \(0\.5,\) are given for something that does not depend on t"):
        make()


def test_runs_across_a_jump_are_compared_at_common_times() -> None:
    result = compare(
        start(), table(), t1=0.4, taus=(0.1, 0.05), metrics=(jko.Wasserstein2(),), samples=4, progress=None
    )
    for pair in result.metrics[0].pairs:
        # Between two steps, the cloud of the later one: the grid begins anew at the jump.
        assert pair.times.tolist() == pytest.approx([0.0, 0.1, JUMP + 0.1, JUMP + 0.2, 0.4])


@every_metric
def test_the_weak_form_is_taken_from_steps_that_stay_on_their_side(metric: str) -> None:
    spans: list[tuple[float, float, float]] = []

    def watched(tau: float) -> AbstractScheme:
        inner = exact(tau)

        class Watched(AbstractScheme):
            tau, title, check, start = inner.tau, inner.title, inner.check, inner.start

            def step(self, flow: Any, measure: Any, t: float, tau: float, state: Any = None, guess: Any = None) -> Step:
                taken = inner.step(flow, measure, t, tau, state, guess)
                spans.append((t, t + tau, state.flow_state.columns["energy"] - float(flow.energy.value(measure, t))))
                return taken

        return Watched()

    (finding,) = weak_form(jumping(metric), start(), (0.1,), 0.3, make_scheme=watched)
    assert finding.verdict is Verdict.HOLDS
    left = math.nextafter(JUMP, 0)
    assert [a for a, _, _ in spans] == [0.0, 0.1, JUMP, JUMP + 0.1]
    assert [b for _, b, _ in spans] == pytest.approx([0.1, left, JUMP + 0.1, 0.3], abs=1e-15)
    assert spans[1][1] < JUMP
    assert max(abs(c) for _, _, c in spans) < 1e-14


@every_scheme
def test_an_interval_below_the_rounding_of_tau_is_one_step(scheme: str) -> None:
    flow = jumping()
    run = jko.solve(flow, start(), SCHEMES[scheme](1.0), t1=1e-10)
    assert run.times.tolist() == [0.0, 1e-10]
    moved = (run.points[1] - run.points[0]) / 1e-10
    assert gap(moved, flow.velocity(start(), 0.0)) < 1e-4
