"""Finished jobs on the disk, one pair of files each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jko.errors import RunDamaged, RunFolderError
from jko.paper.job import Job, JobResult
from jko.runs import compare_files, digests, versions
from jko.status import Status
from jko.storage import read_sealed, read_tensors, write_sealed, write_tensors

__all__ = ["is_finished", "load_job", "save_job"]


def save_job(folder: Path, job: Job, result: JobResult) -> None:
    """Write a finished job: the numbers first, the JSON file that declares them finished last, each atomically.

    Raises:
        RunFolderError: when the folder cannot be written.
    """
    tensors = {f"state.{name}": column for name, column in result.states.items()}
    tensors |= {f"step.{name}": column for name, column in result.steps.items()}
    path = folder / f"{job.name}.safetensors"
    write_tensors(path, {**tensors, "times": result.times, "clouds": result.clouds})
    write_sealed(
        folder / f"{job.name}.json",
        {
            "kind": "job",
            "identity": job.identity,
            "status": result.status.value,
            "seconds": result.seconds,
            "written": digests(folder, [path.name]),
            "versions": versions(),
        },
    )


def is_finished(folder: Path, job: Job) -> bool:
    """Return whether the folder holds this very job, finished and whole; a damaged one counts as unfinished."""
    try:
        load_job(folder, job)
    except RunFolderError:
        return False
    return True


def load_job(folder: Path, job: Job) -> JobResult:
    """Read a finished job.

    Raises:
        RunFolderError: naming the file that is missing, truncated, or of another job.
    """
    path = folder / f"{job.name}.json"
    entry = read_sealed(path)
    if not isinstance(entry, dict) or entry.get("identity") != job.identity:
        raise RunFolderError(f"{path} does not describe the job {job.name}; remove it and run again")
    if troubles := compare_files(folder, entry.get("written", {})):
        raise RunDamaged("; ".join(troubles))
    tensors = read_tensors(path.with_suffix(".safetensors"))
    try:
        return JobResult(
            states=_columns(tensors, "state."),
            steps=_columns(tensors, "step."),
            times=tensors["times"],
            clouds=tensors["clouds"],
            status=Status(entry["status"]),
            detail="",
            seconds=float(entry["seconds"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{path} is incomplete: {error}") from error


def _columns(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): column for name, column in tensors.items() if name.startswith(prefix)}
