"""The driver: one loop for explicit schemes and minimizing movements alike, begun or continued."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from jko.checks import check_integer, check_kind
from jko.errors import InvalidInput, ResumeMismatch, RunDamaged, RunFolderError, SolveFailed
from jko.flows import AbstractFlow
from jko.grid import time_grid
from jko.measure import ParticleMeasure, check_measure
from jko.progress import AbstractProgress
from jko.records import Records
from jko.runs import (
    CHUNKED,
    Checkpoint,
    Restored,
    Run,
    RunFolder,
    RunWriter,
    Save,
    compare_config,
    compare_setups,
    describe,
    locked,
    mend,
    new_name,
    restore,
)
from jko.schemes import AbstractGridScheme, AbstractScheme
from jko.signals import saving_before_end
from jko.solution import Solution, load, versions
from jko.status import Failure, Status
from jko.stopping import Progressed, check_conditions
from jko.storage import json_bytes, write_json
from jko.trajectory import Trajectory, check_kept

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
    with nullcontext() if checkpoint is None else _owned(checkpoint.folder):
        writer = None
        if checkpoint is not None:
            run_file = _described(flow, measure, scheme, times, save, checkpoint, config or {})
            writer = RunWriter(_vacant(checkpoint), checkpoint, run_file, guess)
        run = Run(flow, scheme, times, save, asked, guess, [], writer)
        run.begin(0, times[0], scheme.start(flow, measure, times[0]))
        if writer is not None:
            writer.begin(run.rows[0])
        status, failure = run.drive(stops, progress, max_steps)
        solution = _solution(run, status, failure, copy.deepcopy(config or {}))
    return _handed_over(solution, throw)


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
    run_file = place.read()
    with _owned(path):
        run_file = place.read()
        end = _compared(run_file, flow, scheme, t1, config)
        at_end = run_file["status"] == Status.SUCCESS.value and end == run_file["t1"]
        if at_end and (solution := _finished(place, run_file)) is not None:
            return solution
        times = _grid(run_file["t0"], end, flow, scheme)
        restored = restore(place, run_file["run"], flow, lambda k, t: k < len(times) and times[k] == t)
        _check_flow(flow, restored)
        save = Save(**run_file["save"])
        run_file |= {"status": "running", "failure": None, "t1": end, "threads": _threads(run_file)}
        run_file["config"] = run_file["config"] if config is None else config
        run_file["resumed"] = [*run_file.get("resumed", []), restored.step]
        options = Checkpoint(path, **run_file["checkpoint"]) if options is None else options
        writer = RunWriter(place, options, run_file, restored.guess)
        writer.resume(restored.step, restored.recorded)
        run = Run(flow, scheme, times, save, save.steps(times, scheme.tau), restored.guess, [], writer)
        run.begin(restored.step, restored.t, restored.state)
        status, failure = run.drive(stops, progress, max_steps)
        solution = _solution(run, status, failure, dict(run_file["config"]))
    return _handed_over(solution, throw)


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


@contextmanager
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
    if isinstance(scheme, AbstractGridScheme):
        scheme.check_times(flow, times)
    return times


def _vacant(checkpoint: Checkpoint) -> RunFolder:
    folder = RunFolder(checkpoint.folder)
    if folder.holds_a_run() and not checkpoint.overwrite:
        raise RunFolderError(
            f"{folder.path} holds a run already; continue it with jko.resume, choose another folder, or replace it "
            "with Checkpoint(..., overwrite=True)"
        )
    return folder


def _described(
    flow: AbstractFlow,
    measure: ParticleMeasure,
    scheme: AbstractScheme,
    times: list[float],
    save: Save,
    checkpoint: Checkpoint,
    config: dict[str, Any],
) -> dict[str, Any]:
    """What run.json says of a run."""
    return {
        "format": CHUNKED,
        "kind": "solution",
        "run": new_name(),
        "title": f"{scheme.title}, {flow.title}",
        "status": "running",
        "failure": None,
        "t0": times[0],
        "t1": times[-1],
        "tau": scheme.tau,
        "n": measure.n,
        "d": measure.d,
        "dtype": str(measure.dtype).removeprefix("torch."),
        "device": str(measure.device),
        "threads": torch.get_num_threads(),
        "save": save.as_data(),
        "checkpoint": {"every": checkpoint.every, "seconds": checkpoint.seconds},
        "setup": {"flow": describe(flow), "scheme": describe(scheme)},
        "config": config,
        "versions": versions(),
    }


def _compared(
    run: dict[str, Any], flow: AbstractFlow, scheme: AbstractScheme, t1: float | None, config: dict[str, Any] | None
) -> float:
    """Refuse what does not continue the run in the folder; return the final time."""
    if scheme.tau != run["tau"]:
        raise ResumeMismatch(
            f"tau was {run['tau']!r} in the run that is to be continued, and is {scheme.tau!r} now; a run continues "
            "with the step size that it was begun with"
        )
    if config is not None:
        compare_config(run["config"], _through_json(config))
    new = _through_json({"flow": describe(flow), "scheme": describe(scheme)})
    for part in ("scheme", "flow"):
        compare_setups(run.get("setup", {}).get(part, {}), new[part], part)
    end = run["t1"] if t1 is None else time_grid(run["t0"], t1, scheme.tau, flow.jumps)[-1]
    if end < run["t1"]:
        raise ResumeMismatch(
            f"t1 was {run['t1']!r} in the run that is to be continued, and is {end!r} now; a run can be made longer, "
            "not shorter"
        )
    scheme.check(flow)
    return float(end)


def _through_json(data: dict[str, Any]) -> Any:
    """What the file gives back: lists for tuples, null for numbers that are not finite."""
    return json.loads(json_bytes(data, "config"))


def _check_flow(flow: AbstractFlow, restored: Restored) -> None:
    """Refuse a flow whose velocity at the saved state is not the saved one; what the next step uses stays as it was."""
    old = restored.state.flow_state
    try:
        velocity = flow.velocity(old.measure, old.t)
    except InvalidInput as error:
        measure = f"n = {old.measure.n}, d = {old.measure.d}"
        raise ResumeMismatch(f"the flow does not fit the particles of the run ({measure}): {error}") from None
    gap = float((velocity - old.velocity).abs().max())
    size = float(old.velocity.abs().max())
    tolerance = 1e-3 if old.velocity.dtype == torch.float32 else 1e-6
    if not gap <= tolerance * size:
        raise ResumeMismatch(
            f"the flow was another one in the run that is to be continued: at t = {old.t:g} its velocity differs by "
            f"{gap:.3g} from the saved one, which is {size:.3g} large; check seed, heads, sign and metric"
        )


def _threads(run: dict[str, Any]) -> int:
    threads = torch.get_num_threads()
    if threads != run.get("threads"):
        _runs_log.warning(
            "the run was computed with %s threads and goes on with %s: sums may differ in their last bit from those of "
            "an unbroken run",
            run.get("threads"),
            threads,
        )
    changed = {
        name: (old, new) for name, new in versions().items() if (old := run.get("versions", {}).get(name, new)) != new
    }
    for name, (old, new) in changed.items():
        _runs_log.warning("the run was begun with %s %s and goes on with %s", name, old, new)
    return threads


def _solution(run: Run, status: Status, failure: Failure | None, config: dict[str, Any]) -> Solution:
    if run.writer is not None:
        solution = load(run.writer.folder.path)
        write_json(run.writer.folder.path / "summary.json", solution.summary())
        run.writer.record("summary.json")
        return solution
    rows, last = run.rows, run.rows[-1]
    kept = [(row.t, row.kept) for row in rows[:-1] if row.kept is not None] + [(last.t, last.measure)]
    return Solution(
        times=torch.tensor([t for t, _ in kept], dtype=torch.float64),
        trajectory=Trajectory.of([measure for _, measure in kept]),
        records=Records.of([row.record for row in rows[1:]], [Status.SUCCESS] * (len(rows) - 1)),
        states=Records.of([row.state_columns for row in rows]),
        status=status,
        failure=failure,
        title=f"{run.scheme.title}, {run.flow.title}",
        config=MappingProxyType(config),
    )


def _handed_over(solution: Solution, throw: bool) -> Solution:
    failure = solution.failure
    if failure is not None:
        if throw:
            raise SolveFailed(str(failure), solution=solution, status=solution.status)
        _log.warning("%s: %s", solution.title, failure)
    return solution
