"""The driver: what a run records, how it ends, and that nothing happens before its input is checked."""

from __future__ import annotations

import itertools
import logging
import math
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import jko
from jko.errors import InvalidInput, JKOError, SolveFailed
from jko.flows import AbstractFlow, FlowState
from jko.progress import AbstractProgress
from jko.status import Status
from jko.stopping import Progressed, Stationary
from tests.schemes.problems import METRICS, SIGNS, attention, gap, tokens

D0 = jko.initial_heads(2, 3, 1) * 0.5
LINE = torch.ones(1, 1, 1, dtype=torch.float64)
SCHEMES = {"jko": jko.JKO, "explicit": jko.ExplicitEuler}

every_metric = pytest.mark.parametrize("metric", METRICS)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())


def cloud(n: int = 6) -> jko.ParticleMeasure:
    return jko.ParticleMeasure(tokens(n))


def moving(metric: str = "weighted", sign: int = 1, t1: float = 1.0) -> jko.GradientFlow:
    heads = jko.OrnsteinUhlenbeckHeads(D0, sigma2=0.3, dt=0.01, t1=t1, seed=7)
    return jko.GradientFlow(jko.AttentionEnergy(heads, sign=sign), METRICS[metric])


def unbounded() -> tuple[jko.GradientFlow, jko.ParticleMeasure]:
    """Ascent on the line: one step of 0.02 exists, further ones do not."""
    return attention(LINE, "w2", -1, jko.Euclidean()), jko.ParticleMeasure([[1.0]])


# records


@every_metric
@every_scheme
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("frozen", [False, True])
def test_records(metric: str, scheme: Callable[[float], Any], sign: int, frozen: bool) -> None:
    flow = attention(D0, metric, sign) if frozen else moving(metric, sign)
    tau, steps = 0.05, 4
    run = jko.solve(flow, cloud(), scheme(tau), t1=tau * steps)
    records, states = run.records, run.states
    minimizing = scheme is jko.JKO
    assert run.status is Status.SUCCESS
    assert run.failure is None
    assert run.steps == steps
    assert run.title.startswith(scheme(tau).title)
    assert f"sign = {sign:+d}" in run.title
    of_states = {"t", "energy", "slope2", "dissipation", "paper_slope2", "covariance_defect"}
    of_steps = {"energy_previous", "squared_distance", "time_part", "evaluations"}
    assert set(states) == of_states
    assert of_states | of_steps <= set(records)
    assert ("residual" in records) == ("certified" in records) == minimizing
    assert ("head_energy" in records) == (minimizing and metric == "headwise")
    assert records.status == [Status.SUCCESS] * steps
    for name, column in records.numeric().items():
        assert column.shape == (steps,)
        assert column.dtype == torch.float64
        assert bool(torch.isfinite(column).all()), name
    for name in of_states:
        assert torch.equal(records[name], states[name][1:])
        assert states[name].shape == (steps + 1,)
    assert gap(states.t, [k * tau for k in range(steps + 1)]) < 1e-15
    # Every state column is at the NEW state and its own time.
    for k in range(steps + 1):
        fresh = flow.state(run.measure(k), float(states.t[k])).columns
        for name in of_states - {"t"}:
            assert float(states[name][k]) == pytest.approx(fresh[name], rel=1e-12, abs=1e-13)
    # The energy changes by the motion at the end time and by the heads at the old measure.
    change = states.energy.diff()
    parts = records.energy - records.energy_previous + records.time_part
    assert gap(change, parts) <= 8 * 2.3e-16 * float(states.energy.abs().max())
    for k in range(steps):
        value = float(flow.energy.value(run.measure(k), float(states.t[k + 1])))
        assert float(records.energy_previous[k]) == pytest.approx(value, rel=1e-13)
    assert bool((records.time_part == 0).all()) == frozen
    if minimizing:
        after = records.head_energy if metric == "headwise" else records.energy
        assert bool((after + records.squared_distance / (2 * tau) <= records.energy_previous).all())
        assert bool((records.residual <= 1e-8).all())
        assert bool((records.certified == 1).all())
        slopes = records.squared_distance.sqrt() / tau
        assert bool(((slopes / states.slope2[1:].sqrt() - 1).abs() < 0.5).all())
    else:
        assert gap(records.squared_distance, tau**2 * states.slope2[:-1]) < 1e-15


@every_metric
def test_the_squared_distance_is_the_cost_of_the_displacement(metric: str) -> None:
    flow, y, tau = attention(D0, metric), cloud(), 0.05
    run = jko.solve(flow, y, jko.JKO(tau), t1=tau)
    info = jko.JKO(tau).step(flow, y).info
    mobility = flow.energy.evaluate(y, 0.0).heads.mobility
    b = {"w2": torch.ones(6), "weighted": 1 / (1 / mobility).mean(0), "headwise": mobility}[metric]
    cost = (b * info.displacement.square().sum(-1)).mean()
    assert float(run.records.squared_distance) == pytest.approx(float(cost), rel=1e-13)
    if metric != "headwise":
        x = run.measure(1).points
        geodesic = (b * jko.Sphere().squared_distance(x, y.points)).mean()
        assert float(run.records.squared_distance) == pytest.approx(float(geodesic), rel=1e-12)


def test_columns_that_a_flow_does_not_have_are_absent() -> None:
    class Rest(AbstractFlow):
        manifold = jko.Sphere()
        moves = False
        title = "rest"

        def check_times(self, t0: float, t1: float) -> None:
            pass

        def velocity(self, measure: jko.ParticleMeasure, t: float) -> torch.Tensor:
            return torch.zeros_like(measure.points)

        def state(self, measure: jko.ParticleMeasure, t: float) -> FlowState:
            return FlowState(measure, t, self.velocity(measure, t), {}, None)

        def value(self, measure: jko.ParticleMeasure, t: float) -> None:
            return None

        def explain_non_finite(self, measure: jko.ParticleMeasure, t: float) -> str:
            return ""

    run = jko.solve(Rest(), cloud(), jko.ExplicitEuler(0.1), t1=0.3)
    assert set(run.states) == {"t"}
    assert not {"energy", "energy_previous", "time_part", "squared_distance"} & set(run.records)
    assert run.summary()["steps"] == 3
    with pytest.raises(InvalidInput, match="Rest does not have"):
        jko.solve(Rest(), cloud(), jko.JKO(0.1), t1=0.3)


@every_scheme
@pytest.mark.parametrize(
    ("t1", "tau", "steps"), [(0.3, 0.1, 3), (0.7, 0.1, 7), (1.0, 0.1, 10), (1.0, 0.3, 4), (0.0, 0.1, 0), (0.05, 0.1, 1)]
)
def test_number_of_steps(scheme: Callable[[float], Any], t1: float, tau: float, steps: int) -> None:
    flow = attention(0.1 * D0)
    run = jko.solve(flow, cloud(), scheme(tau), t1=t1)
    assert run.steps == steps
    assert float(run.states.t[-1]) == t1
    assert float(run.times[-1]) == t1
    assert len(run.points) == steps + 1
    if steps == 0:
        assert torch.equal(run.points[0], tokens(6))
        assert run.status is Status.SUCCESS
        assert set(run.records) == {"status"}
    if (t1, tau) == (1.0, 0.3):
        last = scheme(tau).step(flow, run.measure(3), 0.9, tau=float(run.times[-1] - run.times[-2]))
        assert gap(last.measure.points, run.points[-1]) < 1e-12
        assert gap(scheme(tau).step(flow, run.measure(3), 0.9).measure.points, run.points[-1]) > 1e-5


@every_scheme
@pytest.mark.parametrize(("every", "kept"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (5, [0, 5]), (7, [0, 5])])
def test_saving_less_changes_no_record(scheme: Callable[[float], Any], every: int, kept: list[int]) -> None:
    full = jko.solve(moving(), cloud(), scheme(0.1), t1=0.5)
    run = jko.solve(moving(), cloud(), scheme(0.1), t1=0.5, save=jko.Save(every=every))
    assert torch.equal(run.points, full.points[kept])
    assert torch.equal(run.times, full.times[kept])
    for name in full.records.numeric():
        assert torch.equal(run.records[name], full.records[name])
    assert len(run.states.t) == 6


@every_scheme
def test_a_run_is_its_steps(scheme: Callable[[float], Any]) -> None:
    flow, tau = moving(), 0.05
    run = jko.solve(flow, cloud(), scheme(tau), t1=0.2, t0=0.0)
    measure, state = cloud(), None
    for k in range(4):
        step = scheme(tau).step(flow, measure, k * tau, state=state)
        measure, state = step.measure, step.state.at((k + 1) * tau)
        assert torch.equal(measure.points, run.points[k + 1])
        for name, value in step.info.columns.items():
            assert float(run.records[name][k]) == value
    again = jko.solve(flow, cloud(), scheme(tau), t1=0.2)
    assert torch.equal(again.points, run.points)


@every_scheme
def test_two_halves_make_the_whole(scheme: Callable[[float], Any]) -> None:
    flow = moving()
    whole = jko.solve(flow, cloud(), scheme(0.1), t1=0.6)
    half = jko.solve(flow, cloud(), scheme(0.1), t1=0.3)
    rest = jko.solve(flow, half.measure(-1), scheme(0.1), t0=0.3, t1=0.6)
    assert gap(rest.points[-1], whole.points[-1]) < 1e-8
    assert float(rest.states.t[0]) == 0.3
    assert float(rest.states.energy[0]) == pytest.approx(float(half.states.energy[-1]), rel=1e-14)


@every_metric
@pytest.mark.parametrize("sign", SIGNS)
def test_runs_turn_with_the_tokens_and_know_no_labels(metric: str, sign: int) -> None:
    q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    R, order = torch.from_numpy(q), torch.randperm(6, generator=torch.Generator().manual_seed(1))
    scheme = jko.JKO(0.1, minimizer=jko.Anderson(1e-11))
    plain = jko.solve(attention(D0, metric, sign), cloud(), scheme, t1=0.5)
    turned = jko.solve(
        attention(R @ D0 @ R.mT, metric, sign), jko.ParticleMeasure((tokens(6) @ R.mT)[order]), scheme, t1=0.5
    )
    assert gap(turned.points, (plain.points @ R.mT)[:, order]) < 1e-9
    assert gap(turned.states.energy, plain.states.energy) < 1e-10


# one path for every step size


def test_the_heads_do_not_depend_on_the_step() -> None:
    flow = moving()
    heads = flow.energy.heads
    for tau in (0.1, 0.05, 0.025):
        seen = []
        original = type(heads).at

        def at(self: object, t: float, original: object = original, seen: list[Any] = seen) -> torch.Tensor:
            value = original(self, t)
            seen.append((round(t, 9), value))
            return value

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(heads), "at", at)
            jko.solve(flow, cloud(), jko.JKO(tau), t1=0.2)
        assert {t for t, _ in seen} == {round(k * tau, 9) for k in range(round(0.2 / tau) + 1)}
        assert all(gap(value, heads.at(t)) < 1e-12 for t, value in seen)


def test_runs_on_finer_grids_come_closer() -> None:
    finals = [jko.solve(moving(), cloud(), jko.JKO(tau), t1=0.4).points[-1] for tau in (0.1, 0.05, 0.025, 0.0125)]
    errors = [gap(a, b) for a, b in itertools.pairwise(finals)]
    assert errors[0] > 1.3 * errors[1] > 1.69 * errors[2]


@every_scheme
@pytest.mark.parametrize(("t0", "t1"), [(0.0, 1.1), (0.5, 1.05), (-0.1, 0.5), (-1.0, 2.0)])
def test_a_run_beyond_the_path_is_refused_before_any_work(scheme: Callable[[float], Any], t0: float, t1: float) -> None:
    flow = moving(t1=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jko.AttentionEnergy, "evaluate", lambda *_: pytest.fail("work was done"))
        with pytest.raises(InvalidInput, match=r"lies outside \[0, 1\.0\]"):
            jko.solve(flow, cloud(), scheme(0.1), t0=t0, t1=t1)
    assert jko.solve(flow, cloud(), scheme(0.5), t1=1.0).steps == 2
    assert jko.solve(flow, cloud(), scheme(0.1), t0=0.9, t1=0.9 + 0.1).steps == 1


# bad input


class _Silent(AbstractProgress):
    def start(self, total: int, title: str) -> None:
        pytest.fail("the run began")

    def update(self, step: int, t: float, columns: dict[str, float]) -> None:
        pytest.fail("the run began")

    def close(self) -> None:
        pytest.fail("the run began")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flow": jko.GradientFlow}, "flow must be an instance of AbstractFlow"),
        ({"measure": tokens(6)}, "measure must be an instance of ParticleMeasure"),
        ({"scheme": jko.JKO}, "scheme must be an instance of AbstractScheme"),
        ({"scheme": None}, "scheme must be an instance of AbstractScheme"),
        ({"measure": jko.ParticleMeasure(tokens(6).expand(2, 6, 3))}, r"batch of shape \(2,\)"),
        ({"measure": jko.ParticleMeasure(2 * tokens(6))}, r"points\[0\] has norm 2"),
        ({"t1": -1.0}, "end after it begins"),
        ({"t1": math.nan}, "t1 must be finite"),
        ({"t0": None}, "t0 must be a number"),
        ({"save": 5}, "save must be an instance of Save"),
        ({"save": jko.Save}, "save must be an instance of Save"),
        ({"stop": 5}, "stop condition"),
        ({"stop": [lambda _: False, "x"]}, "stop condition"),
        ({"stop": Stationary}, "stop condition"),
        ({"progress": "bar"}, "progress must be an instance of AbstractProgress"),
        ({"max_steps": -1}, "max_steps"),
        ({"max_steps": 2.5}, "max_steps"),
        ({"config": {"x": torch.ones(1)}}, "config must hold plain data"),
    ],
)
def test_bad_input_is_refused_before_any_work(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {
        "flow": attention(D0),
        "measure": cloud(),
        "scheme": jko.JKO(0.1),
        "t1": 0.2,
        "progress": _Silent(),
        **changes,
    }
    monkeypatch.setattr(jko.AttentionEnergy, "evaluate", lambda *_: pytest.fail("work was done"))
    flow, measure, scheme = (arguments.pop(name) for name in ("flow", "measure", "scheme"))
    with pytest.raises(InvalidInput, match=message):
        jko.solve(flow, measure, scheme, **arguments)


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "1"])
def test_bad_saving(every: object) -> None:
    with pytest.raises(InvalidInput, match="every"):
        jko.Save(every=every)


# how a run ends


def test_a_failed_run_raises_with_the_part_that_is_good(caplog: pytest.LogCaptureFixture) -> None:
    flow, y = unbounded()
    with caplog.at_level(logging.WARNING, logger="jko"), pytest.raises(SolveFailed) as caught:
        jko.solve(flow, y, jko.JKO(0.02), t1=1.0)
    error = caught.value
    assert isinstance(error, (JKOError, RuntimeError))
    assert error.status is error.solution.status
    assert not error.status.ok
    solution = error.solution
    assert solution.steps >= 1
    assert solution.failure.step == solution.steps + 1
    assert solution.failure.t == float(solution.states.t[-1]) == pytest.approx(0.02 * solution.steps)
    assert torch.equal(solution.points[-1], solution.measure(-1).points)
    assert float(solution.points[1]) == pytest.approx(1.066528, abs=5e-7)
    assert bool(torch.isfinite(solution.points).all())
    assert solution.records.status == [Status.SUCCESS] * solution.steps
    assert "Reduce tau" in str(error)
    # Told once: whoever asks for the exception reads it there.
    assert not caplog.records
    with caplog.at_level(logging.WARNING, logger="jko"):
        quiet = jko.solve(flow, y, jko.JKO(0.02), t1=1.0, throw=False, save=jko.Save(every=1000))
    assert error.status.name in caplog.text
    assert quiet.status is error.status
    assert str(quiet.failure) == str(error)
    assert torch.equal(quiet.points[-1], solution.points[-1])
    assert quiet.times.tolist() == [0.0, float(solution.times[-1])]


def test_not_converged() -> None:
    scheme = jko.JKO(0.1, minimizer=jko.Anderson(max_passes=1), fallback=None)
    run = jko.solve(attention(D0), cloud(), scheme, t1=0.3, throw=False)
    assert run.status is Status.NOT_CONVERGED
    assert run.steps == 0
    assert run.failure.step == 1
    assert torch.equal(run.points[-1], tokens(6))


@every_scheme
def test_an_initial_state_that_is_not_finite(scheme: Callable[[float], Any]) -> None:
    flow = attention(torch.eye(2)[None].double(), "w2", 1, jko.Euclidean())
    run = jko.solve(flow, jko.ParticleMeasure([[30.0, 0.0]]), scheme(0.1), t1=0.3, throw=False)
    assert run.status is Status.NON_FINITE
    assert run.steps == 0
    assert run.failure.step == 0
    assert "initial state" in str(run.failure)
    assert "largest exponent 900" in str(run.failure)


def test_a_run_that_becomes_infinite() -> None:
    flow, y = unbounded()
    run = jko.solve(flow, y, jko.ExplicitEuler(0.05), t1=10.0, throw=False)
    assert run.status is Status.NON_FINITE
    assert 0 < run.steps < 200
    assert bool(torch.isfinite(run.points).all())
    assert bool(torch.isfinite(run.states.energy).all())
    assert "largest exponent" in run.failure.detail


@every_scheme
@pytest.mark.parametrize(("limit", "status"), [(0, Status.MAX_STEPS), (2, Status.MAX_STEPS), (3, Status.SUCCESS)])
def test_step_limit(scheme: Callable[[float], Any], limit: int, status: Status) -> None:
    run = jko.solve(attention(D0), cloud(), scheme(0.1), t1=0.3, max_steps=limit, throw=False)
    assert run.status is status
    assert run.steps == limit
    if status is Status.MAX_STEPS:
        assert f"max_steps = {limit}" in run.failure.detail
        with pytest.raises(SolveFailed):
            jko.solve(attention(D0), cloud(), scheme(0.1), t1=0.3, max_steps=limit)


def test_stationary_ends_a_run_where_the_slope_is_small() -> None:
    flow = attention(torch.eye(3)[None].double(), "weighted", -1)
    y = jko.ParticleMeasure(jko.Sphere().project_point(torch.tensor([2.0, 1, 1]).double() + 0.5 * tokens(6)))
    run = jko.solve(flow, y, jko.JKO(0.5), t1=100.0, stop=Stationary(1e-4))
    assert run.status is Status.STOPPED
    assert run.status.ok
    assert run.failure is None
    assert float(run.states.slope2[-1]) <= 1e-8 < float(run.states.slope2[-2])
    assert run.steps < 100


@every_scheme
@pytest.mark.parametrize("as_list", [False, True])
def test_functions_stop_a_run(scheme: Callable[[float], Any], as_list: bool) -> None:
    seen: list[Progressed] = []

    def third(progressed: Progressed) -> bool:
        seen.append(progressed)
        return progressed.step == 3

    run = jko.solve(
        attention(D0),
        cloud(),
        scheme(0.1),
        t1=1.0,
        stop=[lambda _: False, third] if as_list else third,
        save=jko.Save(10),
    )
    assert run.status is Status.STOPPED
    assert run.steps == 3
    assert [one.step for one in seen] == [1, 2, 3]
    assert [one.t for one in seen] == run.records.t.tolist()
    assert torch.equal(seen[-1].measure.points, run.points[-1])
    assert seen[1].columns["energy"] == float(run.records.energy[1])
    assert run.times.tolist() == [0.0, seen[-1].t]


@every_scheme
@pytest.mark.parametrize("where", ["stop", "progress", "step"])
def test_an_interrupt_keeps_the_complete_steps(scheme: Callable[[float], Any], where: str) -> None:
    full = jko.solve(attention(D0), cloud(), scheme(0.1), t1=1.0)
    calls: list[str] = []

    def stop(progressed: Progressed) -> bool:
        if where == "stop" and progressed.step == 3:
            raise KeyboardInterrupt
        return False

    progress = _Recording(calls, KeyboardInterrupt() if where == "progress" else None)
    with pytest.MonkeyPatch.context() as patch:
        if where == "step":
            original = jko.AttentionEnergy.evaluate
            passes = int(full.records.evaluations[:3].sum()) + 2

            def evaluate(self: object, *arguments: object) -> object:
                calls.append("pass")
                if calls.count("pass") == passes + 1:
                    raise KeyboardInterrupt
                return original(self, *arguments)

            patch.setattr(jko.AttentionEnergy, "evaluate", evaluate)
        run = jko.solve(attention(D0), cloud(), scheme(0.1), t1=1.0, stop=stop, progress=progress, throw=False)
    assert run.status is Status.INTERRUPTED
    assert run.failure.status is Status.INTERRUPTED
    assert run.steps == 3 or (where == "step" and run.steps >= 3)
    assert torch.equal(run.points, full.points[: run.steps + 1])
    assert torch.equal(run.records.energy, full.records.energy[: run.steps])
    assert calls[-1] == "close"


def test_a_signal_interrupts_a_run() -> None:
    def stop(progressed: Progressed) -> bool:
        if progressed.step == 2:
            signal.raise_signal(signal.SIGINT)
        return False

    # A shell ignores SIGINT in what it starts in the background, and Python then leaves it so.
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SolveFailed) as caught:
            jko.solve(attention(D0), cloud(), jko.JKO(0.1), t1=1.0, stop=stop)
    finally:
        signal.signal(signal.SIGINT, old)
    assert caught.value.status is Status.INTERRUPTED
    assert caught.value.solution.steps == 2


# progress and global state


class _Recording(AbstractProgress):
    def __init__(self, calls: list[Any], error: BaseException | None = None) -> None:
        self.calls, self.error = calls, error

    def start(self, total: int, title: str) -> None:
        self.calls.append(("start", total, title))

    def update(self, step: int, t: float, columns: dict[str, float]) -> None:
        self.calls.append(("update", step, t, columns["energy"]))
        if self.error is not None and step == 3:
            raise self.error

    def close(self) -> None:
        self.calls.append("close")


@every_scheme
def test_progress_is_told_every_step(scheme: Callable[[float], Any]) -> None:
    calls: list[Any] = []
    run = jko.solve(attention(D0), cloud(), scheme(0.1), t1=0.3, progress=_Recording(calls))
    updates = [("update", k + 1, float(run.records.t[k]), float(run.records.energy[k])) for k in range(3)]
    assert calls == [("start", 3, run.title), *updates, "close"]


def test_progress_is_closed_after_a_failure() -> None:
    flow, y = unbounded()
    calls: list[Any] = []
    jko.solve(flow, y, jko.JKO(0.02), t1=1.0, progress=_Recording(calls), throw=False)
    assert calls[-1] == "close"


@pytest.fixture
def odd_global_state() -> Iterator[None]:
    """Settings that nobody would restore by chance."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(True)
    yield
    torch.set_default_dtype(dtype)


@every_scheme
@pytest.mark.parametrize("where", ["stop", "energy", "progress"])
@pytest.mark.parametrize("grad", [True, False])
def test_global_state_after_an_error(
    scheme: Callable[[float], Any], where: str, grad: bool, odd_global_state: None
) -> None:
    class Custom(Exception):
        pass

    calls: list[Any] = []
    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state())

    def stop(progressed: Progressed) -> bool:
        if where == "stop":
            raise Custom
        return False

    def broken(self: object, *arguments: object) -> None:
        raise Custom

    with pytest.MonkeyPatch.context() as patch, torch.set_grad_enabled(grad):
        if where == "energy":
            patch.setattr(jko.AttentionEnergy, "value" if scheme is jko.ExplicitEuler else "evaluate", broken)
        progress = _Recording(calls, Custom() if where == "progress" else None)
        with pytest.raises(Custom):
            jko.solve(moving(), cloud(), scheme(0.1), t1=0.5, stop=stop, progress=progress)
        assert torch.is_grad_enabled() == grad
    assert (torch.get_default_dtype(), torch.get_num_threads()) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])
    if calls:
        assert calls[-1] == "close"


def test_numbers_do_not_depend_on_the_default_dtype(odd_global_state: None) -> None:
    double = jko.solve(attention(D0), cloud(), jko.JKO(0.1), t1=0.3)
    torch.set_default_dtype(torch.float32)
    single = jko.solve(attention(D0), cloud(), jko.JKO(0.1), t1=0.3)
    assert torch.equal(double.points, single.points)
    assert torch.equal(double.records.residual, single.records.residual)


def test_no_graph_is_kept() -> None:
    run = jko.solve(attention(D0), cloud(), jko.JKO(0.1), t1=0.1)
    assert not run.points.requires_grad
    assert all(not column.requires_grad for column in run.records.numeric().values())


# long runs and devices


def test_a_thousand_steps_in_single_precision_stay_on_the_sphere() -> None:
    flow = attention(0.2 * D0, "weighted", -1)
    y = cloud(16).to(torch.float32)
    run = jko.solve(flow, y, jko.JKO(0.01), t1=10.0, save=jko.Save(every=100))
    assert run.steps == 1000
    assert float((run.points.double().norm(dim=-1) - 1).abs().max()) < 1e-5
    assert bool((run.records.residual <= 1e-5).all())


def test_device_and_precision(device: torch.device, dtype: torch.dtype) -> None:
    expected = jko.solve(moving(), cloud(), jko.JKO(0.1), t1=0.3)
    for scheme in (jko.JKO(0.1), jko.ExplicitEuler(0.1)):
        run = jko.solve(moving(), cloud().to(dtype, device), scheme, t1=0.3)
        assert run.points.dtype == dtype
        assert run.points.device.type == device.type
        assert run.records.energy.dtype == torch.float64
        assert run.times.device.type == "cpu"
    run = jko.solve(moving(), cloud().to(dtype, device), jko.JKO(0.1), t1=0.3)
    tolerance = 1e-6 if dtype == torch.float64 else 1e-4
    assert gap(run.points, expected.points) < tolerance
    assert gap(run.states.energy, expected.states.energy) < tolerance
