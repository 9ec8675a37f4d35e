"""The loop over the steps of a run, the same for explicit schemes and minimizing movements."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, final

import torch

from jko.errors import JKOError
from jko.flows import AbstractFlow
from jko.grid import step_size
from jko.measure import ParticleMeasure
from jko.progress import AbstractProgress
from jko.records import Records
from jko.runs import Row, RunWriter, Save
from jko.schemes import AbstractScheme, StepInfo, StepState
from jko.signals import uninterrupted
from jko.solution import Solution, load
from jko.status import Failure, Status
from jko.stopping import Progressed
from jko.storage import write_json
from jko.trajectory import Trajectory

__all__ = ["Run"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run in progress: a row is appended whole or not at all, so an interrupt leaves only complete steps.

    Attributes:
        flow: what it follows.
        scheme: how.
        times: the grid.
        save: which clouds it keeps.
        asked: the steps that `save` names.
        guess: where the first step starts.
        writer: writes the rows, where there is a folder for them.
        rows: from the initial state on; with a writer only those that it has not written, and the newest.
    """

    flow: AbstractFlow
    scheme: AbstractScheme
    times: list[float]
    save: Save
    asked: frozenset[int] | None
    guess: ParticleMeasure | None
    writer: RunWriter | None = None
    rows: list[Row] = field(default_factory=list)

    def begin(self, step: int, t: float, state: StepState) -> None:
        """Take in the state to go on from."""
        self._append(step, t, state, {})

    def drive(
        self,
        stops: tuple[Callable[[Progressed], bool], ...],
        progress: AbstractProgress | None,
        max_steps: int | None,
    ) -> tuple[Status, Failure | None]:
        """Take the steps, write what there is to write, and say how the run ended."""
        try:
            try:
                if progress is not None:
                    progress.start(len(self.times) - 1, f"{self.scheme.title}, {self.flow.title}")
                    if self.rows[-1].step > 0:
                        progress.update(self.rows[-1].step, self.rows[-1].t, self.rows[-1].record)
                status, failure = self._loop(stops, progress, max_steps)
            except KeyboardInterrupt:
                status, failure = self._end_early(Status.INTERRUPTED, "")
            self._close(status.value, failure)
        except BaseException as error:
            # What is complete outlives an error in a stop condition, or in the machine.
            with contextlib.suppress(JKOError):
                self._close("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", None)
            raise
        finally:
            if progress is not None:
                progress.close()
        return status, failure

    def solution(self, status: Status, failure: Failure | None, config: dict[str, Any]) -> Solution:
        """Return what the run gave; with a writer, what its folder holds."""
        if self.writer is not None:
            solution = load(self.writer.folder.path)
            write_json(self.writer.folder.path / "summary.json", solution.summary())
            self.writer.record("summary.json")
            return solution
        rows, last = self.rows, self.rows[-1]
        kept = [(row.t, row.kept) for row in rows[:-1] if row.kept is not None] + [(last.t, last.measure)]
        return Solution(
            times=torch.tensor([t for t, _ in kept], dtype=torch.float64),
            trajectory=Trajectory.of([measure for _, measure in kept]),
            records=Records.of([row.record for row in rows[1:]], [Status.SUCCESS] * (len(rows) - 1)),
            states=Records.of([row.state_columns for row in rows]),
            status=status,
            failure=failure,
            title=f"{self.scheme.title}, {self.flow.title}",
            config=MappingProxyType(config),
        )

    def _loop(
        self,
        stops: tuple[Callable[[Progressed], bool], ...],
        progress: AbstractProgress | None,
        max_steps: int | None,
    ) -> tuple[Status, Failure | None]:
        first = self.rows[0]
        if not first.state.flow_state.usable:
            detail = self.flow.explain_non_finite(first.measure, first.t)
            return Status.NON_FINITE, Failure(Status.NON_FINITE, first.step, first.t, detail)
        for k in range(first.step + 1, len(self.times)):
            if max_steps is not None and k > first.step + max_steps:
                return self._end_early(Status.MAX_STEPS, f"max_steps = {max_steps}")
            self._write(k)
            info = self._advance(k)
            if not info.status.ok:
                return self._end_early(info.status, info.detail)
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
        tau = step_size(last.t, t1, self.scheme.tau, self.flow.jumps)
        state, change = self._right_of(last)
        guess = self.guess if k == 1 else None
        taken = self.scheme.step(self.flow, last.measure, last.t, tau, state, guess)
        if taken.info.status.ok:
            columns = {name: number + change.get(name, 0.0) for name, number in taken.info.columns.items()}
            # The state to the left of a jump keeps its time: the next step cannot take it for the one to the right.
            left = any(last.t + tau < jump <= t1 for jump in self.flow.jumps)
            self._append(k, t1, taken.state if left else taken.state.at(t1), columns)
            self.rows[-2] = replace(self.rows[-2], live=None)
        return taken.info

    def _right_of(self, last: Row) -> tuple[StepState, dict[str, float]]:
        """The state that the next step starts from, and at a jump what it takes to get to its other side."""
        left = last.state.flow_state
        if left.t == last.t:
            return last.state, {}
        state = self.scheme.start(self.flow, last.measure, last.t)
        # time_part = sE(u^{k-1}, t_k) - sE(u^{k-1}, t_{k-1}), with the limit from the left at t_{k-1} too.
        jump = state.flow_state.columns.get("energy", 0.0) - left.columns.get("energy", 0.0)
        return state, {"evaluations": 1.0, "time_part": jump}

    def _append(self, step: int, t: float, state: StepState, columns: Mapping[str, float]) -> None:
        flow_state = state.flow_state
        kept = flow_state.measure if self.save.keeps(step, self.asked) else None
        self.rows.append(Row(step, t, {"t": t, **flow_state.columns}, columns, state, kept))

    def _write(self, k: int) -> None:
        """Write before step k where it is time to.

        The end of a run may lie off the grid of a longer one, which then continues from the step before.
        """
        writer, last = self.writer, self.rows[-1].step
        if writer is None:
            return
        ends_off_grid = k == len(self.times) - 1 and self.times[k] != self.times[0] + k * self.scheme.tau
        if ends_off_grid or (last > self.rows[0].step and writer.due(last)):
            self._flush(writer)

    def _flush(self, writer: RunWriter) -> None:
        writer.write(self.rows)
        del self.rows[:-1]

    def _close(self, status: str, failure: Failure | None) -> None:
        if self.writer is None:
            return
        with uninterrupted():
            self._flush(self.writer)
            summary = None
            if failure is not None:
                summary = {
                    "status": failure.status.value,
                    "step": failure.step,
                    "t": failure.t,
                    "detail": failure.detail,
                }
            self.writer.end(status=status, failure=summary, steps=self.rows[-1].step)

    def _end_early(self, status: Status, detail: str) -> tuple[Status, Failure]:
        """The outcome of a run that ends in the step after the last complete one."""
        last = self.rows[-1]
        return status, Failure(status, last.step + 1, last.t, detail)
