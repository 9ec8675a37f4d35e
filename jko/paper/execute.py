"""Many jobs on all cores: finished ones are skipped, so that whatever ends the work loses the jobs in progress only."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from jko.checks import check_integer
from jko.errors import RunFolderError
from jko.paper.job import Job
from jko.paper.progress import AbstractWorkProgress
from jko.paper.store import is_finished, save_job
from jko.progress import AbstractProgress
from jko.runs import end_with_parent

__all__ = ["Execution", "Failed", "execute"]

_log = logging.getLogger("jko")
# Starting a process with PyTorch takes seconds: about the work of this many exponentials.
_WORTH_A_PROCESS = 1.5e9
_BEAT = 1.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """A job whose run did not end well.

    Attributes:
        job: the job.
        detail: status, time and reason.
    """

    job: Job
    detail: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """What became of the jobs.

    Attributes:
        skipped: number of jobs that were finished before.
        computed: number of jobs that were run and saved.
        failed: those that were run and did not end well; nothing of them is saved.
        seconds: wall-clock time.
    """

    skipped: int
    computed: int
    failed: tuple[Failed, ...]
    seconds: float


def execute(
    jobs: Sequence[Job], folder: Path, *, workers: int | None = None, progress: AbstractWorkProgress | None = None
) -> Execution:
    """Run every job that the folder does not hold yet, the largest first, each on a core of its own.

    The processes are joblib's: under `joblib.parallel_config(backend="dask")` they are those of a cluster, whose
    machines must share the folder.

    Args:
        jobs: what to run; repeated ones count once.
        folder: where finished jobs are saved, see `save_job`.
        workers: number of processes; None means what `joblib.parallel_config` says, else one per core, and none where
            the work is not worth it.
        progress: told about once a second.

    Raises:
        RunFolderError: when the folder cannot be written.
        KeyboardInterrupt: when interrupted; what is finished stays.
    """
    start = time.perf_counter()
    wanted = {job.name: job for job in jobs}
    missing = [job for job in wanted.values() if not is_finished(folder, job)]
    missing.sort(key=lambda job: -job.work)
    _log.info("%d jobs, %d of them finished before", len(wanted), len(wanted) - len(missing))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"the folder of the finished jobs cannot be made: {error}") from error
    for job in missing:
        # Of a process that was killed: it would be taken for progress.
        _beat_file(folder, job.name).unlink(missing_ok=True)
    failed: list[Failed] = []
    with _watched(missing, folder, progress) as board:
        for name, detail in _outcomes(missing, folder, _count(missing, workers)):
            board.ended.append(name)
            if detail:
                _log.warning("%s: %s", name, detail)
                failed.append(Failed(wanted[name], detail))
    computed = len(missing) - len(failed)
    return Execution(len(wanted) - len(missing), computed, tuple(failed), time.perf_counter() - start)


def _count(jobs: Sequence[Job], workers: int | None) -> int:
    if workers is not None:
        return min(check_integer(workers, "workers", least=1), max(len(jobs), 1))
    from joblib import cpu_count, effective_n_jobs

    # Without a configuration joblib says 1.
    if (configured := effective_n_jobs(None)) > 1:
        return configured
    worth = sum(job.work for job in jobs) > _WORTH_A_PROCESS
    return min(int(cpu_count()), len(jobs)) if worth and len(jobs) > 1 else 1


def _outcomes(jobs: Sequence[Job], folder: Path, workers: int) -> Iterator[tuple[str, str]]:
    if workers == 1:
        yield from (_perform(job, folder) for job in jobs)
        return
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
    yield from pool(delayed(_perform_elsewhere)(job, folder) for job in jobs)


def _perform_elsewhere(job: Job, folder: Path) -> tuple[str, str]:
    """Like `_perform`; the end of a run is told by the process that waits for it, not by the log of this one."""
    end_with_parent()
    logger = logging.getLogger("jko")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return _perform(job, folder)


def _perform(job: Job, folder: Path) -> tuple[str, str]:
    """Run and save a job, in whatever process this is."""
    beat = _beat_file(folder, job.name)
    try:
        result = job.run(_Heart(beat, [time.monotonic()], []))
        if not result.status.ok:
            return job.name, result.detail
        save_job(folder, job, result)
    finally:
        beat.unlink(missing_ok=True)
    return job.name, ""


def _beat_file(folder: Path, name: str) -> Path:
    return folder / f".{name}.beat"


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Heart(AbstractProgress):
    """Writes the fraction that is done into a file, once in a while: it crosses processes and machines alike."""

    path: Path
    last: list[float]
    total: list[int]

    def start(self, total: int, title: str) -> None:
        self.total.append(total)

    def update(self, step: int, t: float, columns: dict[str, float]) -> None:
        now = time.monotonic()
        if now - self.last[0] >= _BEAT:
            self.last[0] = now
            # On a full disk the bar stands still; the run goes on.
            with suppress(OSError):
                self.path.write_text(f"{step / self.total[-1]:.6f}", encoding="utf-8")

    def close(self) -> None:
        """Leave the file to its owner."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Board:
    """The state of the jobs, read from a thread of its own."""

    jobs: dict[str, Job]
    folder: Path
    ended: list[str] = field(default_factory=list)

    def done(self) -> float:
        ended = set(self.ended)
        finished = sum(self.jobs[name].work for name in ended)
        return finished + sum(job.work * self._fraction(name) for name, job in self.jobs.items() if name not in ended)

    def _fraction(self, name: str) -> float:
        try:
            return float(_beat_file(self.folder, name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0.0


@contextmanager
def _watched(jobs: Sequence[Job], folder: Path, progress: AbstractWorkProgress | None) -> Iterator[_Board]:
    board = _Board({job.name: job for job in jobs}, folder)
    if progress is None or not jobs:
        yield board
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_BEAT):
            progress.update(board.done(), len(board.ended))

    progress.start(sum(job.work for job in jobs), len(jobs))
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield board
    finally:
        over.set()
        thread.join()
        progress.close()
