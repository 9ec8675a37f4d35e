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
