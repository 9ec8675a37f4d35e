"""What run.json says was written into a folder of any kind, and whether it is there.

`run` names one run, and its files carry that name or stand in `written` with their digests; `members` names the runs in
folders below. Folders of versions before these entries are read without them.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jko.errors import RunDamaged, RunFolderError
from jko.storage import file_digest, read_sealed, write_sealed

__all__ = ["compare_files", "digests", "identify", "list_older", "locked", "new_name", "read_inventory", "record"]

_log = logging.getLogger("jko.runs")
# What is left where run.json alone was lost.
_TRACES = ("chunks", "checkpoints", "summary.json", "results.json", "verify.json", "records.safetensors")
# Names of results that a run writes at its end: one that run.json does not list is older than the run.
_RESULTS = ("summary.json", "results.json", "results.csv", "energy.png", "energy.pdf", "snapshots.png", "snapshots.pdf")


def new_name() -> str:
    """Return a name that tells the files of a run from those of any other."""
    return secrets.token_hex(8)


def read_inventory(folder: Path) -> Any:
    """Read run.json.

    Raises:
        RunFolderError: when the folder is none of a run.
        RunDamaged: when run.json alone is missing, or not what was written.
    """
    path = folder / "run.json"
    if not path.exists() and (traces := [name for name in _TRACES if (folder / name).exists()]):
        raise RunDamaged(
            f"{path} is missing, without which {', '.join(traces)} cannot be read; put it back, or start the run again "
            "in another folder"
        )
    return read_sealed(path)


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the entries of `written` for these files."""
    return {name: file_digest(folder / name) for name in sorted(set(names))}


def record(folder: Path, names: Iterable[str]) -> None:
    """Take files into run.json that belong to the run as it is now, unless another process writes the run."""
    try:
        with locked(folder):
            run = read_inventory(folder)
            if isinstance(run, dict) and isinstance(run.get("written"), dict):
                run["written"] |= digests(folder, names)
                write_sealed(folder / "run.json", run)
    except RunFolderError as error:
        _log.warning("%s; run.json does not list %s", error, ", ".join(names))


def compare_files(folder: Path, written: Mapping[str, str]) -> list[str]:
    """Return one line for each file that is missing or does not have the digest it was written with."""
    troubles = []
    for name, digest in written.items():
        path = folder / name
        if not path.is_file():
            troubles.append(f"{path} is missing")
        elif file_digest(path) != digest:
            troubles.append(f"{path} is not the file that run.json tells of: damaged, or of another run or time")
    return troubles


def list_older(folder: Path, run: Mapping[str, Any]) -> list[str]:
    """Return one line for each result that is there, and that the run as it is now did not write."""
    if "written" not in run:
        return []
    names = dict.fromkeys([*_RESULTS, *map(str, run.get("files", []))])
    older = [folder / name for name in names if name not in run["written"] and (folder / name).is_file()]
    return [f"{path} is older than the run, or of another one" for path in older]


def identify(folder: Path) -> dict[str, Any]:
    """Return the entry of `members` for the run in a folder: which one it is, and how far it came."""
    run = read_inventory(folder)
    if not isinstance(run, dict):
        raise RunDamaged(f"{folder / 'run.json'} does not describe a run of jko")
    return {key: run.get(key) for key in ("run", "steps", "status")}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing to a run folder; the lock ends with the process, however that ends.

    Raises:
        RunFolderError: when another process has it.
    """
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows
        yield
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise RunFolderError(f"{path} could not be written: {error}") from error
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(f"{path} is being written by another process; wait until that has ended") from None
        except OSError:
            # A file system without locks.
            pass
        yield
    finally:
        os.close(number)
