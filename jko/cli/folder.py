"""The folder of a command's results: claimed before the work, written file by file."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, final

import typer
from pydantic import BaseModel

from jko.cli.exits import EXIT_NUMERICAL, INTERRUPTED, uninterrupted
from jko.config import read_toml, to_toml
from jko.errors import InvalidInput, ResumeMismatch, RunDamaged, RunFolderError
from jko.runs import (
    CHUNKED,
    UNFINISHED,
    RunFolder,
    config_changes,
    digests,
    identify,
    locked,
    read_inventory,
    remove,
    versions,
)
from jko.solution import FORMAT_VERSION
from jko.status import Status
from jko.storage import json_bytes, read_json, write_bytes, write_sealed

__all__ = ["Folder", "refuse_other_settings"]

_SOLUTION_FILES = (
    "run.json",
    "summary.json",
    "records.safetensors",
    "states.safetensors",
    "trajectory.safetensors",
    "measure.safetensors",
    "config.toml",
)
_TABLES = ("summary.json", "verify.json", "results.csv", "results.json", "curves.safetensors")
_RUN_FIGURES = tuple(f"{name}.{suffix}" for name in ("energy", "snapshots") for suffix in ("png", "pdf"))
_NO_SETTINGS = ("solve.checkpoint_every", "solve.checkpoint_seconds")
"""Entries of a configuration that change no result."""
_SOURCES = (("measure", "points"), ("heads", "file"), ("heads", "times"))
_MOST_CHANGES = 8


@final
@dataclass(frozen=True, slots=True, eq=False)
class Folder:
    """A folder that belongs to one command.

    Attributes:
        path: where it is.
        kind: of the results: "comparison", "solution", "sweep", "verification" or "paper".
        settings: the configuration, as plain data.
        outdated: files of an earlier run that the new one has not written yet.
        finished: run.json of a finished result of these very settings; nothing is to be done then. Empty otherwise.
    """

    path: Path
    kind: str
    settings: dict[str, Any]
    outdated: set[Path] = field(default_factory=set)
    finished: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def claim(
        path: Path,
        kind: str,
        config: BaseModel,
        *,
        overwrite: bool = False,
        adds: Callable[[str], bool] | None = None,
    ) -> Folder:
        """Make the folder, or take over an earlier one of the same kind, and write the configuration into it.

        A finished result is never replaced unasked: one of other settings is refused, one of the same settings is left
        as it is and returned as `finished`. Versions and numbers of threads are no settings.

        Args:
            path: the folder.
            kind: of the results.
            config: with its defaults written out.
            overwrite: whether to remove what an earlier command left, finished or not, and begin anew.
            adds: whether another value of a setting, given by its key, adds to a result rather than replace it: such a
                result, and one that lacks a file, is completed. None: no setting does.

        Raises:
            ResumeMismatch: for a finished result of other settings.
            RunFolderError: for a folder that holds anything else, or a run that `jko resume` could continue, or that
                cannot be written.
        """
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path} is a file; choose another folder with --out")
        settings = json.loads(json.dumps(config.model_dump(exclude_none=True)))
        old = _read_run(path) if path.is_dir() and any(path.iterdir()) else None
        if old is not None and old.get("kind") != kind:
            raise RunFolderError(
                f"{path} is not empty and holds no {kind} of jko; choose another folder with --out, or empty it"
            )
        folder = Folder(path, kind, settings, _files_of(path, old or {}))
        if old is not None and not overwrite:
            if _is_finished(old):
                changes = _changes(path, old, settings)
                others = {key: text for key, text in changes.items() if adds is None or not adds(key)}
                refuse_other_settings(path, kind, others)
                if adds is None or not (changes or any(not file.exists() for file in folder.outdated)):
                    return Folder(path, kind, settings, finished=old)
            elif old["format"] == CHUNKED:
                raise RunFolderError(
                    f"{path} holds a run that has not ended: continue it with `jko resume {path}`, choose another "
                    "folder with --out, or replace it with --overwrite"
                )
        # First of all, so that a folder of a run that was killed is known as one, and never passes for a finished one.
        with locked(path), uninterrupted():
            folder.write_run({"status": "running", **folder.listed()})
            if overwrite:
                folder.empty()
            write_bytes(path / "config.toml", to_toml(config))
        return folder

    def listed(self) -> dict[str, list[str]]:
        """Return what the folder holds of an earlier run, as run.json lists it."""
        return {
            "files": sorted(path.name for path in self.outdated if path.parent == self.path),
            "solutions": sorted({self._name(path.parent) for path in self.outdated if path.parent != self.path}),
        }

    def _name(self, solution: Path) -> str:
        return solution.relative_to(self.path).as_posix()

    def tell(self, as_json: bool, summary: str = "summary.json") -> int:
        """Say that the folder holds the finished result already, print its summary, return the result's exit status."""
        if as_json:
            print(json.dumps(read_json(self.path / summary), indent=2, allow_nan=False))
        status = self.finished["status"]
        ended = datetime.fromtimestamp((self.path / "run.json").stat().st_mtime)
        print(
            f"{self.path} holds this {self.kind} already ({status}, finished {ended:%Y-%m-%d %H:%M:%S}): nothing was "
            "run; --overwrite repeats it",
            file=sys.stderr,
        )
        return int(self.finished.get("exit_status", 0 if Status(status).ok else EXIT_NUMERICAL))

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
        """Write run.json: format, kind, versions, settings, and what the command adds.

        Args:
            content: what the command adds; its `solutions` that have begun are members as soon as anything is written.
            written: names of the files that were written, the configuration aside.
        """
        names = {*written, "config.toml"} if written else set()
        begun = [name for name in content.get("solutions", []) if names and (self.path / name / "run.json").exists()]
        inventory: dict[str, Any] = {
            "written": digests(self.path, names),
            "members": {name: identify(self.path / name) for name in begun},
        }
        about = {"format": FORMAT_VERSION, "kind": self.kind, **content, "config": self.settings}
        # The name follows from the content: the same results written again are the same ones.
        name = hashlib.blake2b(json_bytes({**about, **inventory}, "run.json"), digest_size=8).hexdigest()
        write_sealed(self.path / "run.json", {**about, "run": name, **inventory, "versions": versions()})

    def empty(self) -> None:
        """Remove what an earlier command left, and nothing else; run.json says "running" meanwhile.

        Raises:
            RunFolderError: when another process writes to one of the runs.
        """
        runs = [self.path / name for name in self.listed()["solutions"]]
        for run in runs:
            if run.is_dir():
                with locked(run):
                    RunFolder(run).clear()
        if self.kind == "solution":
            RunFolder(self.path).clear()
        names = (*_TABLES, *(_RUN_FIGURES if self.kind == "solution" else ()))
        # run.json first: a run whose files are half gone does not pass for a whole one.
        for path in sorted(self.outdated, key=lambda file: file.name != "run.json"):
            remove(path)
        for name in names:
            remove(self.path / name)
        self.outdated.clear()
        for run in (*runs, self.path):
            _remove_empty(run / "chunks", run / "checkpoints", *([run] if run in runs else []))

    def clean(self, files: list[str], solutions: list[str]) -> None:
        """Remove what an earlier run wrote and this one did not: a mixture of two runs would mislead."""
        fresh = {self.path / name for name in files}
        for path in self.outdated - fresh:
            if path.parent == self.path or self._name(path.parent) not in solutions:
                path.unlink(missing_ok=True)
                if path.parent != self.path:
                    _remove_empty(path.parent)


def refuse_other_settings(path: Path, kind: str, changes: Mapping[str, str]) -> None:
    """Refuse to replace a result whose settings are others.

    Args:
        path: the folder.
        kind: of the results.
        changes: what differs, by key, see `jko.runs.config_changes`.

    Raises:
        ResumeMismatch: naming what differs, and the ways out.
    """
    if not changes:
        return
    shown = list(changes.values())[:_MOST_CHANGES]
    more = f"; and {len(changes) - len(shown)} more" if len(changes) > len(shown) else ""
    is_end = kind == "solution" and list(changes) == ["solve.t1"]
    longer = f", make the run longer with `jko resume {path} --t1 T`" if is_end else ""
    raise ResumeMismatch(
        f"{path} holds a {kind} with other settings: {'; '.join(shown)}{more}; choose another folder with "
        f"--out{longer}, or replace it with --overwrite"
    )


def _is_finished(run: dict[str, Any]) -> bool:
    """Whether a result is all that its settings ask for; a limit on the steps may have been that of `jko resume`."""
    limit = _table(_table(run, "config"), "solve").get("max_steps")
    cut_short = run.get("status") == Status.MAX_STEPS.value and limit is None
    return run.get("status") not in UNFINISHED and not cut_short


def _changes(path: Path, run: dict[str, Any], settings: dict[str, Any]) -> dict[str, str]:
    """What differs between the settings of a result and these, its files of points and heads included."""
    old = run.get("config")
    if not isinstance(old, dict):
        try:
            old = read_toml(path / "config.toml")
        except InvalidInput:
            old = {}
    if run["format"] == CHUNKED and "solve" in old:
        # It may have been made longer.
        old = {**old, "solve": {**old["solve"], "t1": run["t1"]}}
    changes = {key: text for key, text in config_changes(old, settings).items() if key not in _NO_SETTINGS}
    ended = (path / "run.json").stat().st_mtime
    for table, key in _SOURCES:
        file = _table(settings, table).get(key)
        if file is not None and Path(file).stat().st_mtime > ended:
            changes.setdefault(f"{table}.{key}", f"{table}.{key}: {file} was written after the result")
    return changes


def _table(data: dict[str, Any], name: str) -> dict[str, Any]:
    table = data.get(name)
    return table if isinstance(table, dict) else {}


def _files_of(path: Path, run: dict[str, Any]) -> set[Path]:
    """The files that run.json lists, if they lie in the folder."""
    files = {path / name for name in run.get("files", []) if Path(name).name == name}
    for name in run.get("solutions", []):
        place = PurePosixPath(name)
        if place.parts and not place.is_absolute() and ".." not in place.parts:
            files |= {path / place / file for file in _SOLUTION_FILES if (path / place / file).exists()}
    return files


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        # Somebody else's files keep it.
        with suppress(OSError):
            folder.rmdir()


def _read_run(path: Path) -> dict[str, Any]:
    try:
        run = read_inventory(path)
    except RunDamaged:
        raise
    except RunFolderError:
        return {}
    return run if isinstance(run, dict) and "format" in run else {}
