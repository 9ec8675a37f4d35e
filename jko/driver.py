"""The driver: one loop for explicit schemes and minimizing movements alike."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, final

import torch

from jko.checks import check_integer
from jko.errors import InvalidInput, SolveFailed
from jko.flows import AbstractFlow
from jko.grid import time_grid
from jko.measure import ParticleMeasure
from jko.progress import AbstractProgress
from jko.records import Records
from jko.schemes import AbstractGridScheme, AbstractScheme, StepInfo, StepState
from jko.solution import Solution
from jko.status import Failure, Status
from jko.stopping import Progressed
from jko.storage import json_bytes
from jko.trajectory import Trajectory

__all__ = ["Save", "solve"]

_log = logging.getLogger("jko")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Save:
    """Which particle clouds a run keeps; the records are complete whatever is kept.

    Args:
        every: keep the initial cloud, every `every`-th step, and the last one.
    """

    every: int = 1

    def __post_init__(self) -> None:
        check_integer(self.every, "every", least=1)


def solve(
    flow: AbstractFlow,
    measure: ParticleMeasure,
    scheme: AbstractScheme,
    *,
    t1: float,
    t0: float = 0.0,
    save: Save | None = None,
    stop: Sequence[Callable[[Progressed], bool]] | Callable[[Progressed], bool] = (),
    progress: AbstractProgress | None = None,
    max_steps: int | None = None,
    guess: ParticleMeasure | None = None,
    throw: bool = True,
    config: dict[str, Any] | None = None,
) -> Solution:
    """Follow a flow from t0 to t1 with steps of the scheme's tau, the last one shortened where tau does not divide.

    Args:
        flow: what to follow.
        measure: the initial measure, unbatched, on the flow's manifold.
        scheme: `JKO`, `ExplicitEuler`, or any other.
        t1: final time.
        t0: initial time.
        save: which clouds to keep.
        stop: conditions that end the run early with status STOPPED: functions of `Progressed`, such as
            `jko.Stationary`.
        progress: told after every step; None shows nothing.
        max_steps: limit on the number of steps; a run that needs more ends with status MAX_STEPS.
        guess: where the minimizer of the first step starts. With a transport that allows it, the guess may have
            another number of particles and other weights: all further measures then have its support size.
        throw: raise SolveFailed for a run that does not end well; its `.solution` is the partial one. False returns
            the partial solution instead.
        config: plain data kept with the solution and saved with it.

    Returns:
        The solution; its status is SUCCESS or STOPPED, or whatever ended the run where `throw` is False. An
        interrupt (Ctrl-C) ends the run with status INTERRUPTED after the last full step.

    Raises:
        InvalidInput: for bad input, before any work.
        SolveFailed: see `throw`.
    """
    _check(flow, measure, scheme, max_steps)
    save = Save() if save is None else save
    _check_parts(save, progress, config)
    stops = _conditions(stop)
    times = time_grid(t0, t1, scheme.tau)
    flow.check_times(times[0], times[-1])
    if isinstance(scheme, AbstractGridScheme):
        scheme.check_times(flow, times)
    run = _Run(flow, scheme, times, save, guess, [])
    run.begin(measure)
    try:
        if progress is not None:
            progress.start(len(times) - 1, f"{scheme.title}, {flow.title}")
        status, failure = run.loop(stops, progress, max_steps)
    except KeyboardInterrupt:
        status, failure = run.failed(Status.INTERRUPTED, "")
    finally:
        if progress is not None:
            progress.close()
    solution = run.solution(status, failure, copy.deepcopy(config or {}))
    if failure is not None:
        _log.warning("%s, %s: %s", scheme.title, flow.title, failure)
        if throw:
            raise SolveFailed(str(failure), solution=solution, status=status)
    return solution


def _check(
    flow: AbstractFlow,
    measure: ParticleMeasure,
    scheme: AbstractScheme,
    max_steps: int | None,
) -> None:
    for value, kind, name in (
        (flow, AbstractFlow, "flow"),
        (measure, ParticleMeasure, "measure"),
        (scheme, AbstractScheme, "scheme"),
    ):
        if not isinstance(value, kind):
            raise InvalidInput(f"{name} must be an instance of {kind.__name__}, got {type(value).__name__}")
    if measure.batch_shape:
        raise InvalidInput(
            f"solve takes one measure, got a batch of shape {tuple(measure.batch_shape)}; loop over its members"
        )
    if max_steps is not None:
        check_integer(max_steps, "max_steps", least=0)
    flow.manifold.check(measure.points)
    scheme.check(flow)


def _check_parts(save: Save, progress: AbstractProgress | None, config: dict[str, Any] | None) -> None:
    if not isinstance(save, Save):
        raise InvalidInput(f"save must be Save(every=...), got {save!r}")
    if progress is not None and not isinstance(progress, AbstractProgress):
        raise InvalidInput(f"progress must be an instance of AbstractProgress, got {progress!r}")
    if config is not None:
        if not isinstance(config, dict):
            raise InvalidInput(f"config must be a dictionary of plain data, got {type(config).__name__}")
        json_bytes(config, "config")


def _conditions(stop: Any) -> tuple[Callable[[Progressed], bool], ...]:
    conditions = tuple(stop) if isinstance(stop, Sequence) else (stop,)
    for condition in conditions:
        if not callable(condition) or isinstance(condition, type):
            raise InvalidInput(f"every stop condition must be a function of Progressed, got {condition!r}")
    return conditions


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One state of a run and the step that led to it.

    `step_columns` is empty for the initial state; `live` is what the next step needs, None in older rows; `kept` is
    the cloud where the run keeps it.
    """

    t: float
    state_columns: Mapping[str, float]
    step_columns: Mapping[str, float]
    live: StepState | None
    kept: ParticleMeasure | None

    @staticmethod
    def of(t: float, state: StepState, step_columns: Mapping[str, float], *, keep: bool) -> _Row:
        flow_state = state.flow_state
        kept = flow_state.measure if keep else None
        return _Row(t, {"t": t, **flow_state.columns}, step_columns, state.at(t), kept)

    @property
    def state(self) -> StepState:
        assert self.live is not None, "only the newest row is live"
        return self.live

    @property
    def measure(self) -> ParticleMeasure:
        return self.state.flow_state.measure

    @property
    def record(self) -> dict[str, float]:
        return {**self.state_columns, **self.step_columns}


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A run in progress: a row is appended whole or not at all, so an interrupt leaves only complete steps."""

    flow: AbstractFlow
    scheme: AbstractScheme
    times: list[float]
    save: Save
    guess: ParticleMeasure | None
    rows: list[_Row]

    def begin(self, measure: ParticleMeasure) -> None:
        state = self.scheme.start(self.flow, measure, self.times[0])
        self.rows.append(_Row.of(self.times[0], state, {}, keep=True))

    def loop(
        self,
        stops: tuple[Callable[[Progressed], bool], ...],
        progress: AbstractProgress | None,
        max_steps: int | None,
    ) -> tuple[Status, Failure | None]:
        first = self.rows[0]
        if not all(math.isfinite(value) for value in first.state_columns.values()):
            detail = self.flow.explain_non_finite(first.measure, first.t)
            return Status.NON_FINITE, Failure(Status.NON_FINITE, 0, first.t, detail)
        for k in range(1, len(self.times)):
            if max_steps is not None and k > max_steps:
                return self.failed(Status.MAX_STEPS, f"max_steps = {max_steps}")
            info = self._advance(k)
            if not info.status.ok:
                return self.failed(info.status, info.detail)
            record = self.rows[-1].record
            if progress is not None:
                progress.update(k, self.times[k], record)
            seen = Progressed(k, self.times[k], self.rows[-1].measure, record)
            if any(condition(seen) for condition in stops):
                return Status.STOPPED, None
        return Status.SUCCESS, None

    def _advance(self, k: int) -> StepInfo:
        """Take step k; append its row where it succeeded."""
        last, t1 = self.rows[-1], self.times[k]
        # A full step keeps tau itself: the difference of two times would differ from it by rounding.
        tau, rest = self.scheme.tau, t1 - last.t
        full = abs(rest - tau) <= 1e-9 * tau
        guess = self.guess if k == 1 else None
        taken = self.scheme.step(self.flow, last.measure, last.t, tau if full else rest, last.state, guess)
        if taken.info.status.ok:
            self.rows.append(_Row.of(t1, taken.state, taken.info.columns, keep=k % self.save.every == 0))
            self.rows[-2] = replace(self.rows[-2], live=None)
        return taken.info

    def failed(self, status: Status, detail: str) -> tuple[Status, Failure]:
        """The outcome of a run that ends in the step after the last complete one."""
        return status, Failure(status, len(self.rows), self.rows[-1].t, detail)

    def solution(self, status: Status, failure: Failure | None, config: dict[str, Any]) -> Solution:
        last = self.rows[-1]
        kept = [(row.t, row.kept) for row in self.rows[:-1] if row.kept is not None] + [(last.t, last.measure)]
        return Solution(
            times=torch.tensor([t for t, _ in kept], dtype=torch.float64),
            trajectory=Trajectory.of([measure for _, measure in kept]),
            records=Records.of([row.record for row in self.rows[1:]], [Status.SUCCESS] * (len(self.rows) - 1)),
            states=Records.of([row.state_columns for row in self.rows]),
            status=status,
            failure=failure,
            title=f"{self.scheme.title}, {self.flow.title}",
            config=MappingProxyType(config),
        )
