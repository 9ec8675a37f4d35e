"""Sweeps: one run for every combination of parameters, side by side, restartable."""

from __future__ import annotations

import csv
import io
import itertools
import logging
import multiprocessing
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from jko.checks import check_integer, check_kind
from jko.cli import problem
from jko.cli.combinations import SweepRun, expand
from jko.cli.execution import PreparedRun, changes_of_run
from jko.cli.folder import Folder, refuse_other_settings
from jko.cli.halting import Halt, halting_on_signals
from jko.config import RunConfig, SweepConfig, check_config, read_toml
from jko.errors import InvalidInput, JKOError, RunFolderError
from jko.runs import CHUNKED, UNFINISHED, RunFolder, end_with_parent, inspect, read_inventory, read_run
from jko.signals import saving_before_end, uninterrupted
from jko.status import Status
from jko.storage import read_json, write_bytes, write_json

__all__ = ["SweepTable", "sweep"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class SweepTable:
    """One row per run: its folder, its parameters, how it ended, and its numbers.

    Attributes:
        folder: where everything is.
        rows: plain data, all with the same keys.
        interrupted: whether runs are left to be taken.
        taken: number of runs that the folder did not hold before; those that were left when interrupted included.
    """

    folder: Path
    rows: list[dict[str, Any]]
    interrupted: bool
    taken: int

    def count(self, *status: str) -> int:
        """Return the number of rows with one of these statuses."""
        return sum(row["status"] in status for row in self.rows)


def sweep(
    config: dict[str, Any] | str | Path,
    folder: str | Path,
    *,
    jobs: int | None = None,
    on_run: Callable[[int, int], None] | None = None,
    source: str = "",
    overwrite: bool = False,
) -> SweepTable:
    """Take all runs of a sweep, in processes of their own, and write one table: results.csv and results.json.

    Called again, it goes on: runs that have ended are left as they are, others continue from their checkpoints. On a
    cluster, joblib takes the processes from dask (`pip install 'jko[cluster]'`)::

        client = distributed.Client(scheduler_file="scheduler.json")
        with joblib.parallel_config(backend="dask"):
            jko.sweep("sweep.toml", "results")

    The folder must then be one that all workers see. On one machine the cores are shared out: a worker takes
    cores / jobs threads, and one where its pair sums are too small to share.

    Args:
        config: a TOML file, or what it would hold: the configuration of a run with a table `sweep` of lists.
        folder: of the results; the runs are in `runs/NAME`, and `jko.load` reads one.
        jobs: number of processes; None means what `joblib.parallel_config` says, else this process alone.
        on_run: told how many runs have ended, and of how many.
        source: where a configuration that is not a file comes from, for messages.
        overwrite: whether to remove the sweep that the folder holds, and begin anew.

    Raises:
        InvalidInput: for a configuration that is refused, before any work.
        ResumeMismatch: when the folder holds runs with another configuration, to a later time, or of values that are no
            longer asked for.
        RunFolderError: when the folder holds anything else.
    """
    import joblib

    _check_arguments(config, folder, jobs)
    data, source = (_plain(config), source) if isinstance(config, dict) else (read_toml(config), str(config))
    runs = expand(data, source)
    place = _claimed(Path(folder), check_config(SweepConfig, data, source), runs, source, overwrite)
    waiting = [run for run in runs if not _ended(place.path / "runs" / run.name, run)]
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator")
    # Not those of the machine: a batch system gives fewer.
    threads = max(1, joblib.cpu_count() // max(1, joblib.effective_n_jobs(jobs)))
    refused: dict[str, str] = {}
    halt, interrupted = Halt(place.path / f".halt-{secrets.token_hex(4)}"), False
    apart = joblib.effective_n_jobs(jobs) > 1
    with saving_before_end(f"ended by SIGTERM: the same sweep goes on with what is in {place.path}"):
        try:
            with halting_on_signals(halt) if apart else nullcontext():
                tasks = (
                    joblib.delayed(_take)(
                        run.config.model_dump(exclude_none=True), str(place.path / "runs" / run.name), threads, halt
                    )
                    for run in itertools.takewhile(lambda run: not halt.asked(), waiting)
                )
                # Those that are not begun for an interrupt give no result.
                results = zip(waiting, parallel(tasks), strict=False)
                for k, (run, refusal) in enumerate(results, len(runs) - len(waiting) + 1):
                    if refusal:
                        refused[run.name] = refusal
                    if on_run is not None:
                        on_run(k, len(runs))
        except KeyboardInterrupt:
            interrupted = True
        except joblib.externals.loky.BrokenProcessPool:
            # A process that had just been started may die of the same Ctrl-C.
            if not halt.asked():
                raise
        with uninterrupted():
            interrupted = interrupted or halt.asked()
            halt.path.unlink(missing_ok=True)
            return _tabulated(place, runs, refused, interrupted, len(waiting))


def _take(data: dict[str, Any], path: str, threads: int, halt: Halt) -> str:
    """Take one run, or go on with it; return why it was refused, if it was."""
    folder = Path(path)
    if halt.asked():
        return ""
    with _worker(threads, halt):
        try:
            prepared = PreparedRun.of(check_config(RunConfig, data))
            goes_on = _begun(folder) and prepared.config.solve.max_steps is None and _readable(folder)
            solution = prepared.resume(folder, halt, None) if goes_on else prepared.begin(folder, halt)
        except JKOError as error:
            return str(error)
    # An error would have joblib kill the other processes, which are saving.
    if solution.status is Status.INTERRUPTED and not halt.asked():
        raise KeyboardInterrupt
    return ""


@contextmanager
def _worker(threads: int, halt: Halt) -> Iterator[None]:
    """Take this many threads; in a process of its own leave signals to the first process, and warnings to the table."""
    # A sweep in one process leaves the signals of that as they are.
    apart = os.getpid() != halt.owner and threading.current_thread() is threading.main_thread()
    if multiprocessing.parent_process() is not None:
        end_with_parent()
        if apart:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            # A batch system may send it to every process, or to this one alone.
            signal.signal(signal.SIGTERM, lambda number, frame: halt.ask())
        logging.getLogger("jko").addHandler(logging.NullHandler())
    old = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(old)
        if apart:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _check_arguments(config: Any, folder: Any, jobs: Any) -> None:
    check_kind(config, (dict, str, Path), "config")
    check_kind(folder, (str, Path), "folder")
    if jobs is not None and check_integer(jobs, "jobs", least=-1) == 0:
        raise InvalidInput("jobs must be at least 1, or -1 for one per core, got 0")


def _plain(value: Any) -> Any:
    """What TOML would give: lists for tuples, ranges and arrays, numbers for those of NumPy."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return [_plain(item) for item in value] if isinstance(value, list | tuple | range) else value


def _claimed(path: Path, config: SweepConfig, runs: list[SweepRun], source: str, overwrite: bool) -> Folder:
    """Make the folder, or take over that of the same sweep, of which more values or a later time may be asked for."""
    for run in runs:
        folder, tau = path / "runs" / run.name, run.config.scheme.tau
        resolved = problem.resolved(run.config, tau)
        try:
            problem.check_cheaply(resolved, tau)
        except InvalidInput as error:
            where = f"{source}, {run.name}" if source else run.name
            raise InvalidInput(f"{where}: {error}") from None
        if _begun(folder) and not overwrite:
            _refuse_loss(folder, problem.anchored(resolved))
    if not overwrite:
        _refuse_dropped(path, runs)
    # Each run was compared on its own.
    place = Folder.claim(path, "sweep", config, overwrite=overwrite, adds=lambda key: True)
    place.write_run({"title": _title(runs), "status": "running", "solutions": [f"runs/{run.name}" for run in runs]})
    return place


def _refuse_loss(folder: Path, config: RunConfig) -> None:
    """Refuse a configuration with which the run in the folder could not go on, or would lose steps."""
    told, solve = RunFolder(folder).read(), config.solve
    changes = changes_of_run(told["config"], config.model_dump(exclude_none=True))
    old = {"t1": told["t1"], "max_steps": told.get("steps") if told["status"] == Status.MAX_STEPS.value else None}
    for key, value in old.items():
        now = getattr(solve, key)
        if value is not None and now is not None and value > now * (1 + 1e-9):
            changes[f"solve.{key}"] = f"solve.{key} was {value!r} and is {now!r} now, and a run is not made shorter"
    refuse_other_settings(folder / "run.json", "run of a sweep", changes)


def _refuse_dropped(path: Path, runs: list[SweepRun]) -> None:
    """Refuse a sweep whose table would lose runs that the folder holds."""
    run = read_json(path / "run.json") if (path / "run.json").exists() else {}
    names = run.get("solutions", []) if isinstance(run, dict) and run.get("kind") == "sweep" else []
    lost = sorted({name for name in names if _begun(path / name)} - {f"runs/{run.name}" for run in runs})
    if lost:
        text = f"the lists asked for {', '.join(lost[:3])}{' and others' * (len(lost) > 3)} and do not now"
        refuse_other_settings(path, "sweep", {"sweep": text})


def _begun(folder: Path) -> bool:
    """Whether a folder holds a run that was written while it went on."""
    if not RunFolder(folder).holds_a_run():
        return False
    run = read_inventory(folder)
    return isinstance(run, dict) and run.get("format") == CHUNKED


def _readable(folder: Path) -> bool:
    """Whether a run can be continued; one without a whole checkpoint begins anew."""
    try:
        read_run(folder)
    except RunFolderError:
        return False
    return True


def _ended(folder: Path, run: SweepRun) -> bool:
    if not _begun(folder) or not isinstance(_read_summary(folder), dict) or inspect(folder):
        return False
    told, wanted = RunFolder(folder).read(), run.config.solve
    if told["status"] == Status.MAX_STEPS.value:
        old = told["config"].get("solve", {}).get("max_steps")
        return old is not None and bool(old == wanted.max_steps) and told["t1"] >= wanted.t1
    return told["status"] not in UNFINISHED and told["t1"] >= wanted.t1


def _read_summary(folder: Path) -> Any:
    try:
        return read_json(folder / "summary.json")
    except RunFolderError:
        return None


def _tabulated(
    place: Folder, runs: list[SweepRun], refused: dict[str, str], interrupted: bool, taken: int
) -> SweepTable:
    """Collect what the runs left, and write it."""
    found = [
        {"run": run.name, **run.parameters, **_outcome(place.path / "runs" / run.name, run, refused)} for run in runs
    ]
    keys = list(dict.fromkeys(key for row in found for key in row))
    rows = [{key: row.get(key) for key in keys} for row in found]
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(place.path / "results.csv", text.getvalue().encode())
    write_json(place.path / "results.json", {"parameters": list(runs[0].parameters), "rows": rows})
    table = SweepTable(place.path, rows, interrupted, taken)
    bad = table.count("refused") or len(rows) - table.count("success", "stopped")
    place.write_run(
        {
            "title": _title(runs),
            "status": "interrupted" if interrupted else "failed" if bad else "success",
            "solutions": [f"runs/{run.name}" for run in runs],
        },
        ["results.csv", "results.json"],
    )
    return table


def _outcome(folder: Path, run: SweepRun, refused: dict[str, str]) -> dict[str, Any]:
    if run.name in refused:
        return {"status": "refused", "failure": refused[run.name]}
    if not _ended(folder, run):
        return {"status": "not finished" if _begun(folder) else "not begun", "failure": None}
    numbers: dict[str, Any] = _read_summary(folder)
    return {key: value for key, value in numbers.items() if key not in ("title", "advice")}


def _title(runs: list[SweepRun]) -> str:
    return f"sweep of {len(runs)} runs over {', '.join(runs[0].parameters) or 'nothing'}"
