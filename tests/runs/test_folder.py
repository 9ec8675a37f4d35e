"""What run.json must say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jko.errors import RunFolderError
from jko.runs import RunFolder

RUN = {
    "format": 2,
    "kind": "solution",
    "run": "0" * 16,
    "title": "a run",
    "status": "success",
    "t0": 0.0,
    "t1": 1.0,
    "tau": 0.1,
    "save": {},
    "config": {},
}


def _read(folder: Path, run: Any) -> dict[str, Any]:
    (folder / "run.json").write_text(json.dumps(run))
    return RunFolder(folder).read()


@pytest.mark.parametrize("key", ["run", "title", "status", "t0", "t1", "tau", "save", "config"])
def test_entries_that_are_missing_or_of_another_kind_are_named(tmp_path: Path, key: str) -> None:
    assert _read(tmp_path, RUN) == RUN
    with pytest.raises(RunFolderError, match=rf"run\.json is incomplete: no {key}"):
        _read(tmp_path, {name: value for name, value in RUN.items() if name != key})
    with pytest.raises(RunFolderError, match=rf"run\.json was not written by jko: it says {key} = \[1\]"):
        _read(tmp_path, {**RUN, key: [1]})


@pytest.mark.parametrize(
    ("key", "value"),
    [("failure", "x"), ("steps", "x"), ("setup", "x"), ("checkpoint", 3), ("resumed", 3), ("versions", [1])],
)
def test_further_entries_of_another_kind_are_named(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(RunFolderError, match=f"it says {key} = "):
        _read(tmp_path, {**RUN, key: value})


@pytest.mark.parametrize("kind", ["comparison", "sweep", "paper"])
def test_folders_of_several_runs_are_called_so(tmp_path: Path, kind: str) -> None:
    with pytest.raises(RunFolderError, match=f"holds a {kind}, not a single run"):
        _read(tmp_path, {"format": 1, "kind": kind})


def test_files_that_cannot_be_removed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "0000000005.safetensors").touch()
    folder = RunFolder(tmp_path)
    folder.drop_after(5)
    assert folder.checkpoints() == [5]

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(RunFolderError, match=r"0000000005\.safetensors could not be removed"):
            folder.drop_after(4)
    folder.drop_after(4)
    assert folder.checkpoints() == []


def test_clearing_leaves_the_claim_of_a_command(tmp_path: Path) -> None:
    _read(tmp_path, RUN)
    RunFolder(tmp_path).clear()
    assert not (tmp_path / "run.json").exists()
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, "kind": "solution", "status": "running"}))
    RunFolder(tmp_path).clear()
    assert (tmp_path / "run.json").exists()
