"""The driver: begins a run or continues one, by the loop of `jko/loop.py`."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jko.checks import check_integer, check_kind
from jko.errors import InvalidInput, RunDamaged, RunFolderError, SolveFailed
from jko.flows import AbstractFlow
from jko.grid import time_grid
from jko.loop import Run
from jko.measure import ParticleMeasure, check_measure
from jko.progress import AbstractProgress
from jko.runs import (
    Checkpoint,
    RunFolder,
    RunWriter,
    Save,
    check_continues,
    check_same_flow,
    continued,
    locked,
    mend,
    restore,
    run_file,
)
from jko.schemes import AbstractScheme
from jko.signals import saving_before_end
from jko.solution import Solution, load
from jko.status import Status
from jko.stopping import Progressed, check_conditions
from jko.storage import json_bytes
from jko.trajectory import check_kept

__all__ = ["Checkpoint", "Save", "resume", "solve"]

_log = logging.getLogger("jko")
_runs_log = logging.getLogger("jko.runs")


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
    checkpoint: Checkpoint | None = None,
    max_steps: int | None = None,
    guess: ParticleMeasure | None = None,
    throw: bool = True,
    config: dict[str, Any] | None = None,
) -> Solution:
    """Follow a flow from t0 to t1 with steps of the scheme's tau, the last one shortened where tau does not divide.

    No step crosses a time in `flow.jumps`: the step before it is shortened to end there and sees the limit from the
    left alone, the step after it that from the right. The row of `states` at a jump is the one from the left, and what
    the jump does to the energy is in the `time_part` of the step that starts there.

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
        checkpoint: a folder to write to while the run goes on, so that it can be continued however it ends, see
            `resume`. The clouds that were written leave the memory until the end.
        max_steps: limit on the number of steps; a run that needs more ends with status MAX_STEPS.
        guess: where the minimizer of the first step starts. With a transport that allows it, the guess may have
            another number of particles and other weights: all further measures then have its support size.
        throw: raise SolveFailed for a run that does not end well; its `.solution` is the partial one. False returns
            the partial solution instead.
        config: plain data kept with the solution and saved with it.

    Returns:
        The solution; its status is SUCCESS or STOPPED, or whatever ended the run where `throw` is False. An
        interrupt (Ctrl-C) ends the run with status INTERRUPTED after the last full step. With a checkpoint SIGTERM does
        so too, and then ends the process, unless the program has a handler of its own for it.

    Raises:
        InvalidInput: for bad input, before any work.
        RunFolderError: for a folder that holds a run already, or cannot be written.
        SolveFailed: see `throw`.
    """
    _check(flow, measure, scheme, max_steps)
    save = Save() if save is None else save
    _check_parts(save, progress, checkpoint, config)
    stops = check_conditions(stop)
    times = _grid(t0, t1, flow, scheme)
    asked = save.steps(times, scheme.tau)
    check_kept(save.count(len(times) - 1, asked), measure)
    with contextlib.nullcontext() if checkpoint is None else _owned(checkpoint.folder):
        writer = None
        if checkpoint is not None:
            about = run_file(flow, measure, scheme, times, save, checkpoint, config or {})
            writer = RunWriter(_vacant_folder(checkpoint), checkpoint, about, guess)
        run = Run(flow, scheme, times, save, asked, guess, writer)
        run.begin(0, times[0], scheme.start(flow, measure, times[0]))
        if writer is not None:
            writer.begin(run.rows[0])
        status, failure = run.drive(stops, progress, max_steps)
        solution = run.solution(status, failure, copy.deepcopy(config or {}))
    return _hand_over(solution, throw)


def resume(
    folder: str | Path | Checkpoint,
    flow: AbstractFlow,
    scheme: AbstractScheme,
    *,
    t1: float | None = None,
    stop: Sequence[Callable[[Progressed], bool]] | Callable[[Progressed], bool] = (),
    progress: AbstractProgress | None = None,
    max_steps: int | None = None,
    throw: bool = True,
    config: dict[str, Any] | None = None,
) -> Solution:
    """Continue a run that `solve(..., checkpoint=...)` began, bit for bit as if it had never been cut short.

    The run goes on from its newest whole checkpoint; a file that is truncated, or of another run, is named in the log
    and the one before it serves. A run that reached t1 is returned as it is. Stop conditions are asked anew: what one
    of them remembered is not in the folder. The number of threads is recorded, and another one warns in the log, since
    sums may then differ in their last bit.

    Args:
        folder: the run folder, or `Checkpoint(folder, ...)` to write it at other intervals than before.
        flow: the same flow as before.
        scheme: the same scheme as before.
        t1: final time, at least that of the run; None means the same.
        stop: as in `solve`.
        progress: as in `solve`.
        max_steps: limit on the number of FURTHER steps.
        throw: as in `solve`.
        config: plain data as given to `solve`; compared with what the run was begun with, and refused where it differs
            in anything but entries called t1. None compares nothing.

    Returns:
        The whole solution, from t0 on.

    Raises:
        ResumeMismatch: naming what differs from the run in the folder, with the old and the new value.
        RunFolderError: for a folder that holds no such run, or that another process writes to.
        InvalidInput: for bad input, before any work.
        SolveFailed: as in `solve`.
    """
    check_kind(folder, (str, Path, Checkpoint), "folder")
    options = folder if isinstance(folder, Checkpoint) else None
    path = options.folder if options is not None else Path(folder)  # type: ignore[arg-type]
    stops = check_conditions(stop)
    check_kind(flow, AbstractFlow, "flow")
    check_kind(scheme, AbstractScheme, "scheme")
    if max_steps is not None:
        check_integer(max_steps, "max_steps", least=0)
    _check_parts(Save(), progress, options, config)
    place = RunFolder(path)
    place.read()
    with _owned(path):
        about = place.read()
        end = check_continues(about, flow, scheme, t1, config)
        at_end = about["status"] == Status.SUCCESS.value and end == about["t1"]
        if at_end and (solution := _finished(place, about)) is not None:
            return solution
        times = _grid(about["t0"], end, flow, scheme)
        restored = restore(place, about["run"], flow, lambda k, t: k < len(times) and times[k] == t)
        check_same_flow(flow, restored)
        save = Save(**about["save"])
        about = continued(about, restored.step, end, config)
        options = Checkpoint(path, **about["checkpoint"]) if options is None else options
        writer = RunWriter(place, options, about, restored.guess)
        writer.resume(restored.step, restored.recorded)
        run = Run(flow, scheme, times, save, save.steps(times, scheme.tau), restored.guess, writer)
        run.begin(restored.step, restored.t, restored.state)
        status, failure = run.drive(stops, progress, max_steps)
        solution = run.solution(status, failure, dict(about["config"]))
    return _hand_over(solution, throw)


def _finished(folder: RunFolder, run: dict[str, Any]) -> Solution | None:
    """The run that reached its end, what is not its steps mended; None where steps are to be computed again."""
    try:
        solution = load(folder.path)
    except RunDamaged as error:
        _runs_log.warning("%s", error)
        return None
    if solution.status is not Status.SUCCESS:
        return None
    # It may have been killed when it was done but for this.
    mend(folder, run, solution.summary())
    return solution


@contextlib.contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Keep others from writing to the folder, and SIGTERM from ending the process before the run is saved."""
    with saving_before_end(f"ended by SIGTERM: jko.resume continues what is saved in {folder}"), locked(folder):
        yield


def _check(
    flow: AbstractFlow,
    measure: ParticleMeasure,
    scheme: AbstractScheme,
    max_steps: int | None,
) -> None:
    check_kind(flow, AbstractFlow, "flow")
    check_measure(measure)
    check_kind(scheme, AbstractScheme, "scheme")
    if measure.batch_shape:
        raise InvalidInput(
            f"solve takes one measure, got a batch of shape {tuple(measure.batch_shape)}; loop over its members"
        )
    if max_steps is not None:
        check_integer(max_steps, "max_steps", least=0)
    flow.manifold.check(measure.points)
    scheme.check(flow)


def _check_parts(
    save: Save, progress: AbstractProgress | None, checkpoint: Checkpoint | None, config: dict[str, Any] | None
) -> None:
    check_kind(save, Save, "save", example="Save(every=10)")
    if progress is not None:
        check_kind(progress, AbstractProgress, "progress", example="RichProgress()")
    if checkpoint is not None:
        check_kind(checkpoint, Checkpoint, "checkpoint", example="Checkpoint(folder)")
    if config is not None:
        check_kind(config, dict, "config", hint="give plain data by name")
        json_bytes(config, "config")


def _grid(t0: float, t1: float, flow: AbstractFlow, scheme: AbstractScheme) -> list[float]:
    """The times of the steps, which flow and scheme accept."""
    times = time_grid(t0, t1, scheme.tau, flow.jumps)
    flow.check_times(times[0], times[-1])
    scheme.check_times(flow, times)
    return times


def _vacant_folder(checkpoint: Checkpoint) -> RunFolder:
    folder = RunFolder(checkpoint.folder)
    if folder.holds_a_run() and not checkpoint.overwrite:
        raise RunFolderError(
            f"{folder.path} holds a run already; continue it with jko.resume, choose another folder, or replace it "
            "with Checkpoint(..., overwrite=True)"
        )
    return folder


def _hand_over(solution: Solution, throw: bool) -> Solution:
    failure = solution.failure
    if failure is not None:
        if throw:
            raise SolveFailed(str(failure), solution=solution, status=solution.status)
        _log.warning("%s: %s", solution.title, failure)
    return solution
