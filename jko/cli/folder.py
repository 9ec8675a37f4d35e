"""The folder of a command's results: claimed before the work, written file by file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import typer
from pydantic import BaseModel

from jko.cli.exits import INTERRUPTED, uninterrupted
from jko.config import to_toml
from jko.errors import RunDamaged, RunFolderError
from jko.runs import CHUNKED, UNFINISHED, digests, identify, locked, new_name, read_inventory
from jko.solution import FORMAT_VERSION, versions
from jko.storage import write_bytes, write_sealed

__all__ = ["Folder"]

_SOLUTION_FILES = (
    "run.json",
    "summary.json",
    "records.safetensors",
    "states.safetensors",
    "trajectory.safetensors",
    "measure.safetensors",
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Folder:
    """A folder that belongs to one command.

    Attributes:
        path: where it is.
        kind: "comparison" or "solution".
        outdated: files of an earlier run that the new one has not written yet.
    """

    path: Path
    kind: str
    outdated: set[Path] = field(default_factory=set)

    @staticmethod
    def claim(path: Path, kind: str, config: BaseModel, *, overwrite: bool = True) -> Folder:
        """Make the folder, or take over an earlier one of the same kind, and write the configuration into it.

        Args:
            path: the folder.
            kind: of the results.
            config: with its defaults written out.
            overwrite: whether to replace a run that `jko resume` could continue.

        Raises:
            RunFolderError: for a folder that holds anything else, or such a run, or that cannot be written.
        """
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path} is a file; choose another folder with --out")
        content = sorted(path.iterdir()) if path.is_dir() else []
        outdated: set[Path] = set()
        old: dict[str, Any] = {}
        if content:
            old = _read_run(path)
            if old.get("kind") != kind:
                raise RunFolderError(
                    f"{path} is not empty and holds no {kind} of jko; choose another folder with --out, or empty it"
                )
            if not overwrite and old["format"] == CHUNKED and old.get("status") in UNFINISHED:
                raise RunFolderError(
                    f"{path} holds a run that has not ended: continue it with `jko resume {path}`, choose another "
                    "folder with --out, or replace it with --overwrite"
                )
            outdated = {path / name for name in old.get("files", []) if Path(name).name == name}
            for name in old.get("solutions", []):
                if Path(name).name == name:
                    outdated |= {path / name / file for file in _SOLUTION_FILES}
        folder = Folder(path, kind, outdated)
        # First of all, so that a folder of a run that was killed is known as one.
        with locked(path), uninterrupted():
            folder.write_run({"status": "running", **folder.listed()})
            write_bytes(path / "config.toml", to_toml(config))
        return folder

    def listed(self) -> dict[str, list[str]]:
        """Return what the folder holds of an earlier run, as run.json lists it."""
        return {
            "files": sorted(path.name for path in self.outdated if path.parent == self.path),
            "solutions": sorted({path.parent.name for path in self.outdated if path.parent != self.path}),
        }

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Leave no run.json that says "running" when the work ends before its results are written.

        Raises:
            typer.Exit: INTERRUPTED, for an interrupt that came before there was anything to save.
        """
        try:
            yield
        except KeyboardInterrupt:
            self._end("interrupted")
            print(f"interrupted before anything was complete; {self.path} holds the configuration", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except BaseException:
            self._end("failed")
            raise

    def _end(self, status: str) -> None:
        # A run that has begun to write says itself how it ended.
        if _read_run(self.path).get("format") == FORMAT_VERSION:
            with uninterrupted():
                self.write_run({"status": status, **self.listed()})

    def write_run(self, content: dict[str, Any], written: Iterable[str] = ()) -> None:
        """Write run.json: format, kind, versions, and what the command adds.

        Args:
            content: what the command adds; its `solutions` that have begun are members as soon as anything is written.
            written: names of the files that were written, the configuration aside.
        """
        names = {*written, "config.toml"} if written else set()
        begun = [name for name in content.get("solutions", []) if names and (self.path / name / "run.json").exists()]
        inventory = {
            "run": new_name(),
            "written": digests(self.path, names),
            "members": {name: identify(self.path / name) for name in begun},
        }
        about = {"format": FORMAT_VERSION, "kind": self.kind, **content, **inventory, "versions": versions()}
        write_sealed(self.path / "run.json", about)

    def clean(self, files: list[str], solutions: list[str]) -> None:
        """Remove what an earlier run wrote and this one did not: a mixture of two runs would mislead."""
        fresh = {self.path / name for name in files}
        for path in self.outdated - fresh:
            if path.parent == self.path or path.parent.name not in solutions:
                path.unlink(missing_ok=True)
                if path.parent != self.path and path.parent.is_dir() and not any(path.parent.iterdir()):
                    path.parent.rmdir()


def _read_run(path: Path) -> dict[str, Any]:
    try:
        run = read_inventory(path)
    except RunDamaged:
        raise
    except RunFolderError:
        return {}
    return run if isinstance(run, dict) and "format" in run else {}
