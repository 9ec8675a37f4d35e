"""The driver: one loop for explicit schemes and minimizing movements alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor

from jko.checks import check_integer
from jko.errors import InvalidInput, SolveFailed
from jko.flows import AbstractFlow
from jko.grid import time_grid
from jko.measure import ParticleMeasure
from jko.progress import AbstractProgress
from jko.records import Records
from jko.schemes import AbstractScheme, Step, StepState
from jko.solution import Solution
from jko.status import Failure, Status
from jko.stopping import Progressed

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
    times = time_grid(t0, t1, scheme.tau)
    stops = (stop,) if callable(stop) else tuple(stop)
    _check(flow, measure, scheme, stops, max_steps)
    run = _Run.begin(flow, measure, scheme, times, save or Save())
    if progress is not None:
        progress.start(len(times) - 1, f"{scheme.title}, {flow.title}")
    try:
        run.loop(stops, progress, max_steps)
    except KeyboardInterrupt:
        run.end(Status.INTERRUPTED, "")
    finally:
        if progress is not None:
            progress.close()
    solution = run.solution(config or {})
    if solution.failure is not None:
        _log.warning("%s, %s: %s", scheme.title, flow.title, solution.failure)
        if throw:
            raise SolveFailed(str(solution.failure), solution=solution, status=solution.status)
    return solution


def _check(
    flow: AbstractFlow,
    measure: ParticleMeasure,
    scheme: AbstractScheme,
    stops: tuple[Callable[[Progressed], bool], ...],
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
    for condition in stops:
        if not callable(condition):
            raise InvalidInput(f"every stop condition must be callable, got {condition!r}")
    if max_steps is not None:
        check_integer(max_steps, "max_steps", least=0)
    flow.manifold.check(measure.points)
    scheme.check(flow)


@final
@dataclass(slots=True, eq=False)
class _Run:
    """The evolving part of a run."""

    flow: AbstractFlow
    scheme: AbstractScheme
    times: list[float]
    save: Save
    measure: ParticleMeasure
    state: StepState | None
    step: int
    kept_times: list[float]
    kept_points: list[Tensor]
    states: list[dict[str, float]]
    records: list[dict[str, float]]
    statuses: list[Status]
    status: Status
    failure: Failure | None

    @staticmethod
    def begin(
        flow: AbstractFlow, measure: ParticleMeasure, scheme: AbstractScheme, times: list[float], save: Save
    ) -> _Run:
        state = scheme.start(flow, measure, times[0])
        first = {"t": times[0], **state.flow_state.columns}
        return _Run(
            flow=flow,
            scheme=scheme,
            times=times,
            save=save,
            measure=measure,
            state=state,
            step=0,
            kept_times=[times[0]],
            kept_points=[measure.points],
            states=[first],
            records=[],
            statuses=[],
            status=Status.SUCCESS,
            failure=None,
        )

    def loop(
        self,
        stops: tuple[Callable[[Progressed], bool], ...],
        progress: AbstractProgress | None,
        max_steps: int | None,
    ) -> None:
        if not _finite(self.states[0]):
            self.end(Status.NON_FINITE, self.flow.explain_non_finite(self.measure, self.times[0]))
        while self.failure is None and self.step < len(self.times) - 1:
            if max_steps is not None and self.step >= max_steps:
                self.end(Status.MAX_STEPS, f"max_steps = {max_steps}")
                break
            taken = self._step()
            if not taken.info.status.ok:
                self.end(taken.info.status, taken.info.detail)
                break
            self._accept(taken)
            if progress is not None:
                progress.update(self.step, self.times[self.step], self.records[-1])
            seen = Progressed(self.step, self.times[self.step], self.measure, dict(self.records[-1]))
            if any(condition(seen) for condition in stops):
                self.status = Status.STOPPED
                break

    def _step(self) -> Step:
        t = self.times[self.step]
        last = self.step == len(self.times) - 2
        # A full last step keeps tau itself: the difference of two times would differ from it by rounding.
        rest = self.times[-1] - t
        tau = rest if last and abs(rest - self.scheme.tau) > 1e-9 * self.scheme.tau else self.scheme.tau
        return self.scheme.step(self.flow, self.measure, t, tau, self.state)

    def _accept(self, taken: Step) -> None:
        self.step += 1
        t = self.times[self.step]
        self.measure = taken.measure
        self.state = taken.state.at(t)
        state_columns = {"t": t, **taken.state.flow_state.columns}
        self.states.append(state_columns)
        self.records.append({**state_columns, **taken.info.columns})
        self.statuses.append(taken.info.status)
        if self.step % self.save.every == 0 or self.step == len(self.times) - 1:
            self._keep()

    def _keep(self) -> None:
        self.kept_times.append(self.times[self.step])
        self.kept_points.append(self.measure.points)

    def end(self, status: Status, detail: str) -> None:
        """Record why the run ends here."""
        self.status = status
        failed = self.step + (0 if _finite(self.states[-1]) else -1) + 1
        self.failure = Failure(status, failed, self.times[self.step], detail)

    def solution(self, config: dict[str, Any]) -> Solution:
        if self.kept_times[-1] != self.times[self.step]:
            self._keep()
        return Solution(
            times=torch.tensor(self.kept_times, dtype=torch.float64),
            points=torch.stack(self.kept_points),
            weights=self.measure.weights,
            records=Records.of(self.records, self.statuses),
            states=Records.of(self.states),
            status=self.status,
            failure=self.failure,
            title=f"{self.scheme.title}, {self.flow.title}",
            config=MappingProxyType(config),
        )


def _finite(columns: dict[str, float]) -> bool:
    return bool(torch.isfinite(torch.tensor(list(columns.values()), dtype=torch.float64)).all())
