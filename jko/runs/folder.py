"""The files of a run folder: run.json, chunks of records and clouds, and checkpoints.

A chunk holds the rows of consecutive steps, a checkpoint everything that the step after it needs. A chunk is written
before the checkpoint at its end, so that what a checkpoint continues is always there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from torch import Tensor

from jko.errors import RunFolderError
from jko.runs.inventory import read_inventory
from jko.storage import read_described, write_sealed

__all__ = ["CHUNKED", "UNFINISHED", "Chunk", "RunFolder", "remove"]

CHUNKED = 2
"""The format of a run that was written while it went on."""
_NUMBER = (int, float)
UNFINISHED = ("running", "interrupted", "failed")
"""What run.json says, beside the statuses of steps, of results that may go on."""
_ENTRIES: dict[str, Any] = {
    "run": str,
    "title": str,
    "status": str,
    "t0": _NUMBER,
    "t1": _NUMBER,
    "tau": _NUMBER,
    "save": dict,
    "config": dict,
}
"""What run.json must say, and as what."""
_MORE_ENTRIES: dict[str, Any] = {
    "failure": (dict, type(None)),
    "steps": int,
    "setup": dict,
    "checkpoint": dict,
    "resumed": list,
    "checkpoints": list,
    "written": dict,
    "versions": dict,
}
_SINGLE_FILES = ("records", "states", "trajectory", "measure")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A file with the rows of the steps from `first` to `last`; what is in it, once it was read."""

    path: Path
    first: int
    last: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True, eq=False)
class RunFolder:
    """Names and order of the files in a run folder."""

    path: Path

    def chunk(self, first: int, last: int) -> Path:
        """Return the name of a chunk."""
        return self.path / "chunks" / f"{first:010d}-{last:010d}.safetensors"

    def checkpoint(self, step: int) -> Path:
        """Return the name of a checkpoint."""
        return self.path / "checkpoints" / f"{step:010d}.safetensors"

    def chunks(self) -> list[Chunk]:
        """Return the chunks that are there, in order."""
        found = [
            (re.fullmatch(r"(\d{10})-(\d{10})\.safetensors", path.name), path)
            for path in _content(self.path / "chunks")
        ]
        return [Chunk(path, int(match[1]), int(match[2])) for match, path in found if match]

    def checkpoints(self) -> list[int]:
        """Return the steps with a checkpoint, in order."""
        found = (re.fullmatch(r"(\d{10})\.safetensors", path.name) for path in _content(self.path / "checkpoints"))
        return [int(match[1]) for match in found if match]

    def chain(self, run: str) -> tuple[list[Chunk], list[str]]:
        """Read the chunks of a run from the initial state on, without a gap, and say what is wrong with others."""
        chain: list[Chunk] = []
        troubles: list[str] = []
        by_start: dict[int, list[Chunk]] = {}
        for chunk in self.chunks():
            by_start.setdefault(chunk.first, []).append(chunk)
        while candidates := by_start.pop(chain[-1].last + 1 if chain else 0, None):
            # Two with one start: the longer one was written when the shorter one had lost its checkpoint.
            for chunk in reversed(candidates):
                try:
                    chain.append(_read(chunk, run))
                    break
                except RunFolderError as error:
                    troubles.append(str(error))
            else:
                break
        return chain, troubles

    def read(self) -> dict[str, Any]:
        """Read run.json.

        Raises:
            RunFolderError: when it is missing or does not describe a run that can be continued.
        """
        run = read_inventory(self.path)
        if isinstance(run, dict) and run.get("kind") in ("comparison", "sweep", "paper"):
            raise RunFolderError(f"{self.path} holds a {run['kind']}, not a single run; the same command continues it")
        if not isinstance(run, dict) or run.get("kind") != "solution":
            raise RunFolderError(f"{self.path / 'run.json'} does not describe a single run of jko")
        if run.get("format") != CHUNKED:
            raise RunFolderError(
                f"{self.path} has no checkpoints (format {run.get('format')!r}): it was saved as a whole, or ended "
                "before its first step; start the run again"
            )
        lacking = [key for key in _ENTRIES if key not in run]
        if lacking:
            raise RunFolderError(f"{self.path / 'run.json'} is incomplete: no {', '.join(lacking)}")
        for key, kind in (_ENTRIES | _MORE_ENTRIES).items():
            if key in run and not isinstance(run[key], kind):
                raise RunFolderError(f"{self.path / 'run.json'} was not written by jko: it says {key} = {run[key]!r}")
        return run

    def write(self, run: dict[str, Any]) -> None:
        """Write run.json."""
        write_sealed(self.path / "run.json", run)

    def holds_a_run(self) -> bool:
        """Whether there is a run.json, which comes after the initial state, or what is left of a run that had one."""
        return (self.path / "run.json").exists() or any(step > 0 for step in self.checkpoints())

    def drop_after(self, step: int) -> None:
        """Remove the chunks and checkpoints of later steps, and what a write that was killed has left."""
        for folder in (self.path, self.path / "chunks", self.path / "checkpoints"):
            for path in _content(folder):
                if re.fullmatch(r"\..+\.(json|safetensors|toml)\.[0-9a-f]{16}", path.name):
                    remove(path)
        for number in self.checkpoints():
            if number > step:
                remove(self.checkpoint(number))
        for chunk in self.chunks():
            if chunk.last > step:
                remove(chunk.path)

    def _is_begun(self) -> bool:
        """Whether run.json is that of a run, not that of a command that has just claimed the folder."""
        try:
            return bool(self.read())
        except RunFolderError:
            return False

    def clear(self) -> None:
        """Remove every chunk and checkpoint, and the files of a solution that was saved as a whole."""
        if self._is_begun():
            remove(self.path / "run.json")
        self.drop_after(-1)
        for name in _SINGLE_FILES:
            remove(self.path / f"{name}.safetensors")


def remove(path: Path) -> None:
    """Remove a file that may be gone already.

    Raises:
        RunFolderError: when the folder cannot be written.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(f"{path} could not be removed: {error}") from error


def _content(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(chunk: Chunk, run: str) -> Chunk:
    tensors, about = read_described(chunk.path)
    if about.get("run") != run:
        raise RunFolderError(f"{chunk.path} belongs to another run than run.json")
    if (about.get("kind"), about.get("first"), about.get("last")) != ("chunk", chunk.first, chunk.last):
        raise RunFolderError(f"{chunk.path} holds other steps than its name says")
    return replace(chunk, tensors=tensors, about=about)
