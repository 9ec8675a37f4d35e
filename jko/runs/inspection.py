"""Holding a folder against its run.json: every file, every step, every run below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jko.errors import RunFolderError
from jko.runs.folder import CHUNKED, RunFolder
from jko.runs.inventory import compare_files, digests, identify, list_older, locked, read_inventory
from jko.runs.reader import drop_damaged, read_checkpoint, read_run
from jko.storage import write_json

__all__ = ["inspect", "mend"]


def inspect(folder: Path) -> list[str]:
    """Return one line for everything that was written and is missing, damaged, older than the run, or of another one.

    What a version without digests wrote is looked at only where its files carry one of their own. Files that another
    process writes at this moment are not held against it.

    Raises:
        RunFolderError: when there is no run.json, or one that was not written by jko.
        RunDamaged: when run.json was lost or changed.
    """
    run = read_inventory(folder)
    if not isinstance(run, dict):
        raise RunFolderError(f"{folder / 'run.json'} was not written by jko")
    troubles = compare_files(folder, run.get("written", {})) + list_older(folder, run)
    if run.get("kind") == "solution" and run.get("format") == CHUNKED:
        troubles += _steps(folder)
        if troubles and run.get("status") == "running" and _is_being_written(folder):
            return []
    for name, identity in dict(run.get("members", {})).items():
        try:
            if identify(folder / name) != identity:
                troubles.append(
                    f"{folder / name} holds another run, or went on, after {folder / 'run.json'} told of it"
                )
            troubles += inspect(folder / name)
        except RunFolderError as error:
            troubles.append(str(error))
    return list(dict.fromkeys(troubles))


def mend(folder: RunFolder, run: dict[str, Any], summary: dict[str, Any]) -> None:
    """Put in order what is not the steps of a run that is at its end: leftovers, summary and checkpoints."""
    path, written = folder.path, run.get("written", {})
    folder.drop_after(summary["steps"])
    listed = {"summary.json": written.get("summary.json", "")} if "written" in run else {}
    if not (path / "summary.json").exists() or compare_files(path, listed):
        write_json(path / "summary.json", summary)
        written = {**written, **digests(path, ["summary.json"])}
    whole = drop_damaged(folder, run["run"])
    if "written" in run and (written, whole) != (run["written"], run["checkpoints"]):
        folder.write({**run, "written": written, "checkpoints": whole})


def _steps(folder: Path) -> list[str]:
    """What is wrong with chunks and checkpoints."""
    place = RunFolder(folder)
    run = place.read()
    troubles = []
    for step in run.get("checkpoints", []):
        try:
            read_checkpoint(place, run["run"], step)
        except RunFolderError as error:
            troubles.append(str(error))
    try:
        data = read_run(folder)
    except RunFolderError as error:
        return [*troubles, str(error)]
    return [*troubles, *data.troubles, *filter(None, [data.lost])]


def _is_being_written(folder: Path) -> bool:
    try:
        with locked(folder):
            return False
    except RunFolderError:
        return True
