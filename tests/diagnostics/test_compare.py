from __future__ import annotations

import json
import math
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

import jko
from jko.diagnostics import Comparison, compare
from jko.progress import AbstractProgress
from jko.schemes import AbstractScheme, Step, StepInfo

T1, TAUS = 0.1, (0.0125, 0.025)


def _problem(n: int = 14, num_heads: int = 3):
    measure = jko.ParticleMeasure(jko.initial_tokens(n, 3, 1))
    # Half the paper's heads: smooth enough that the observed order is near 1 at these step sizes.
    return measure, jko.ConstantHeads(0.5 * jko.initial_heads(num_heads, 3, 1))


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    measure, heads = _problem()
    return compare(measure, heads, t1=T1, taus=TAUS)


def _geodesic_cost(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    difference = np.linalg.norm(x[:, None] - y[None], axis=-1)
    total = np.linalg.norm(x[:, None] + y[None], axis=-1)
    return (2 * np.arctan2(difference, total)) ** 2


def _wasserstein(x: torch.Tensor, y: torch.Tensor) -> float:
    cost = _geodesic_cost(x.numpy(), y.numpy())
    rows, columns = linear_sum_assignment(cost)
    return math.sqrt(cost[rows, columns].mean())


def test_all_metrics_and_taus_are_there(comparison):
    assert [entry.title for entry in comparison.metrics] == ["W2", "W_{m,2}", "head-wise"]
    assert all([pair.tau for pair in entry.pairs] == [0.025, 0.0125] for entry in comparison.metrics)
    assert comparison.status is jko.Status.SUCCESS
    assert comparison.unfinished is None


def test_distances_agree_with_an_independent_computation(comparison):
    for entry in comparison.metrics:
        for pair in entry.pairs:
            jko_run, explicit = pair.jko.solution, pair.explicit.solution
            assert pair.times.tolist() == pytest.approx([k * T1 / 4 for k in range(5)])
            expected = [_wasserstein(jko_run.points[k], explicit.points[k]) for k in range(5)]
            assert pair.distances.tolist() == pytest.approx(expected, rel=1e-10, abs=1e-15)
            assert pair.supremum == max(pair.distances.tolist())
            assert pair.supremum > 1e-5


class _Broken(Executor):
    """Takes work, or not even that, and dies over it."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once

    def submit(self, fn, /, *args, **kwargs):
        if self.at_once:
            raise BrokenExecutor
        future = Future()
        future.set_exception(BrokenExecutor())
        return future


@pytest.mark.parametrize("executor", [ThreadPoolExecutor(1), _Broken(True), _Broken(False)])
def test_an_executor_changes_no_number_even_when_it_breaks(comparison, executor):
    measure, heads = _problem()
    result = compare(measure, heads, t1=T1, taus=TAUS, executor=executor)
    for entry, expected in zip(result.metrics, comparison.metrics, strict=True):
        for pair, other in zip(entry.pairs, expected.pairs, strict=True):
            assert torch.equal(pair.distances, other.distances)
            assert pair.order == other.order
    assert [gap.supremum for gap in result.gaps] == [gap.supremum for gap in comparison.gaps]


def test_same_metric_agrees_to_first_order(comparison):
    for entry in comparison.metrics:
        coarse, fine = entry.pairs
        assert coarse.order is None
        assert fine.order == pytest.approx(math.log2(coarse.supremum / fine.supremum), rel=1e-12)
        assert 0.85 < fine.order < 1.15, entry.title


def test_weighted_jko_stays_away_from_the_headwise_explicit_flow(comparison):
    (gap,) = (gap for gap in comparison.gaps if gap.second.startswith("explicit"))
    weighted = comparison.metrics[1].finest
    headwise = comparison.metrics[2].finest
    expected = [
        _wasserstein(a, b) for a, b in zip(weighted.jko.solution.points, headwise.explicit.solution.points, strict=True)
    ]
    assert gap.distances.tolist() == pytest.approx(expected, rel=1e-10, abs=1e-15)
    assert gap.supremum > 3 * max(weighted.supremum, headwise.supremum)
    measure, heads = _problem()
    metrics = (jko.WeightedWasserstein(), jko.HeadwiseWasserstein())
    finer = compare(measure, heads, t1=T1, taus=[TAUS[0] / 4], metrics=metrics).gaps[-1]
    assert finer.supremum == pytest.approx(gap.supremum, rel=0.25)
    assert float(weighted.jko.solution.states.covariance_defect.max()) > 0.05
    assert len(comparison.gaps) == 4


def test_with_one_head_weighted_and_headwise_steps_are_the_same():
    measure, heads = _problem(num_heads=1)
    metrics = (jko.WeightedWasserstein(), jko.HeadwiseWasserstein())
    result = compare(measure, heads, t1=T1, taus=[0.025], metrics=metrics)
    assert result.gaps[0].supremum < 1e-6
    assert result.gaps[1].supremum == pytest.approx(result.metrics[0].finest.supremum, rel=1e-4)


def test_energy_parts_are_those_of_the_energy(comparison):
    measure, heads = _problem()
    energy = jko.AttentionEnergy(heads)
    for entry in comparison.metrics:
        for run in (entry.finest.jko, entry.finest.explicit):
            end = run.solution.measure(-1)
            change = float(energy.value(end, T1)) - float(energy.value(measure, 0.0))
            assert run.motion_part == pytest.approx(change, rel=1e-10)
            assert run.time_part == 0
            assert run.ledger_gap < 1e-12


def test_parts_add_up_when_the_heads_move():
    measure, _ = _problem()
    heads = jko.OscillatingHeads(0.5 * jko.initial_heads(2, 3, 1), dt=0.025, t1=T1)
    result = compare(measure, heads, t1=T1, taus=[0.025], metrics=[jko.WeightedWasserstein()])
    for run in (result.metrics[0].finest.jko, result.metrics[0].finest.explicit):
        energy = jko.AttentionEnergy(heads)
        change = float(energy.value(run.solution.measure(-1), T1)) - float(energy.value(measure, 0.0))
        assert run.motion_part + run.time_part == pytest.approx(change, rel=1e-10)
        assert abs(run.time_part) > 1e-3


def test_largest_displacement_bounds_the_first_step(comparison):
    measure, _ = _problem()
    run = comparison.metrics[0].pairs[0].jko
    first = jko.Sphere().squared_distance(measure.points, run.solution.points[1]).max().sqrt()
    assert run.largest_displacement >= float(first) * (1 - 1e-12)
    assert run.largest_displacement == float(run.solution.records.largest_displacement.max())


def test_checks_hold_and_describe_themselves(comparison):
    assert len(comparison.checks) == 9
    assert all(check.held for check in comparison.checks)
    assert all(check.detail for check in comparison.checks)


def test_numbers_are_plain_strict_data(comparison):
    numbers = comparison.numbers()
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    pair = numbers["metrics"][1]["pairs"][1]
    assert pair["sup_distance"] == comparison.metrics[1].finest.supremum
    assert pair["jko"]["worst_residual"] < 1e-8
    assert pair["explicit"]["worst_residual"] is None
    assert numbers["sign"] == 1


def test_common_times_in_moving_order_and_fewer_samples():
    measure, heads = _problem(n=6)
    result = compare(measure, heads, t1=T1, taus=[0.0125], metrics=[jko.Wasserstein2()], samples=3, sign=-1)
    assert result.sign == -1
    assert result.metrics[0].finest.times.tolist() == pytest.approx([0, T1 / 2, T1])


class _Breaks(AbstractScheme):
    """JKO up to some time; from then on every step fails with the status, or is interrupted where there is none."""

    def __init__(self, tau: float, until: float, status: jko.Status | None) -> None:
        self.inner = jko.JKO(tau)
        self.until = until
        self.status = status

    tau = property(lambda self: self.inner.tau)
    title = property(lambda self: self.inner.title)

    def check(self, flow):
        self.inner.check(flow)

    def start(self, flow, measure, t):
        return self.inner.start(flow, measure, t)

    def step(self, flow, measure, t=0.0, tau=None, state=None, guess=None):
        if t < self.until:
            return self.inner.step(flow, measure, t, tau, state)
        if self.status is None:
            raise KeyboardInterrupt
        return Step(measure, StepInfo(self.status, {}, torch.zeros_like(measure.points), 0.0), state)


def test_a_failed_run_is_reported_with_its_status():
    measure, heads = _problem(n=6)
    result = compare(
        measure,
        heads,
        t1=T1,
        taus=[0.025],
        metrics=[jko.Wasserstein2()],
        minimizing=lambda tau: _Breaks(tau, 0.04, jko.Status.NO_DESCENT),
    )
    pair = result.metrics[0].finest
    assert result.status is pair.status is jko.Status.NO_DESCENT
    assert not pair.complete
    assert pair.jko.solution.failure.step == 3
    assert pair.explicit.solution.status.ok
    assert pair.times.tolist() == pytest.approx([0, 0.025, 0.05])
    assert result.checks == ()
    assert json.dumps(result.numbers(), allow_nan=False)


def test_a_run_that_fails_at_once_still_gives_numbers():
    measure, _ = _problem(n=6)
    heads = jko.ConstantHeads(2000.0 * torch.eye(3, dtype=torch.float64)[None])
    result = compare(measure, heads, t1=T1, taus=[0.025, 0.0125])
    assert result.status is jko.Status.NON_FINITE
    assert all(pair.order is None for entry in result.metrics for pair in entry.pairs)
    assert all(pair.jko.numbers()["steps"] == 0 for entry in result.metrics for pair in entry.pairs)


def test_an_interrupt_keeps_what_is_complete():
    measure, heads = _problem(n=6)
    seen = []

    class Stopper(AbstractProgress):
        def start(self, total, title):
            seen.append(title)

        def update(self, step, t, columns):
            if len(seen) == 4 and step == 2:
                raise KeyboardInterrupt

        def close(self):
            pass

    metrics = [jko.Wasserstein2(), jko.WeightedWasserstein()]
    result = compare(measure, heads, t1=T1, taus=[0.025], metrics=metrics, progress=Stopper())
    assert result.status is jko.Status.INTERRUPTED
    assert [entry.title for entry in result.metrics] == ["W2"]
    assert result.unfinished.status is jko.Status.INTERRUPTED
    assert result.unfinished.steps == 2
    assert result.gaps == ()
    assert seen[3].startswith("4/4")
    assert "tau = 0.025" in seen[3]


def test_an_interrupt_inside_the_warm_up_is_no_crash():
    measure, heads = _problem(n=6)
    result = compare(measure, heads, t1=T1, taus=[0.025], minimizing=lambda tau: _Breaks(tau, 0.0, None))
    assert result.status is jko.Status.INTERRUPTED
    assert result.metrics == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"taus": []}, "at least one tau"),
        ({"taus": [0.03]}, "does not divide"),
        ({"taus": [0.025, 0.025]}, "every tau may be given once"),
        ({"metrics": []}, "one metric"),
        ({"metrics": [jko.Wasserstein2(), jko.Wasserstein2()]}, "every metric may be given once"),
        ({"sign": 2}, "sign must be"),
        ({"heads": jko.ConstantHeads(torch.eye(2)[None])}, "dimension 2 do not fit"),
        ({"heads": jko.TabulatedHeads([0.0, 0.05], torch.zeros(2, 1, 3, 3))}, "beyond the end of the head path"),
        ({"measure": jko.ParticleMeasure(torch.ones(2, 3))}, "norm"),
    ],
)
def test_bad_input_is_refused_before_any_work(change, message):
    measure, heads = _problem(n=4)
    arguments = {"measure": measure, "heads": heads, "t1": T1, "taus": [0.025], **change}
    with pytest.raises(jko.InvalidInput, match=message):
        compare(arguments.pop("measure"), arguments.pop("heads"), **arguments)
