"""Atomic files of plain data."""

from __future__ import annotations

import json
import math
import os
import pickle
from pathlib import Path

import pytest
import torch

from jko import storage
from jko.errors import InvalidInput, JKOError, RunFolderError


def test_tensors_come_back_bit_by_bit(tmp_path: Path) -> None:
    tensors = {
        "double": torch.tensor([math.pi, -0.0, math.inf, 5e-324], dtype=torch.float64),
        "single": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
        "strided": torch.arange(12.0).reshape(3, 4).T,
        "empty": torch.empty(0, 3),
        "leaf": torch.ones(2, requires_grad=True),
    }
    storage.write_tensors(tmp_path / "a" / "b.safetensors", tensors)
    back = storage.read_tensors(tmp_path / "a" / "b.safetensors")
    assert set(back) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor)
        assert back[name].dtype == tensor.dtype
    assert math.copysign(1, back["double"][1]) == -1


def test_nan_is_kept(tmp_path: Path) -> None:
    storage.write_tensors(tmp_path / "x.safetensors", {"x": torch.tensor([math.nan])})
    assert math.isnan(storage.read_tensors(tmp_path / "x.safetensors")["x"])


def test_json_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    storage.write_json(path, {"a": math.nan, "b": [math.inf, 1.5, (1, -math.inf)], 3: "ü", "n": None, "t": True})
    text = path.read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    expected = {"a": None, "b": [None, 1.5, [1, None]], "3": "ü", "n": None, "t": True}
    assert json.loads(text, parse_constant=refuse) == expected == storage.read_json(path)


@pytest.mark.parametrize("content", [{"x": torch.ones(1)}, {"x": {1, 2}}, {"x": Path("a")}, object()])
def test_what_is_no_plain_data_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(InvalidInput, match=r"x\.json must hold plain data"):
        storage.write_json(tmp_path / "x.json", content)
    assert list(tmp_path.iterdir()) == []


def test_files_replace_old_ones_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    storage.write_json(path, {"a": list(range(1000))})
    storage.write_json(path, {"b": 1})
    assert storage.read_json(path) == {"b": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("broken", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, error: BaseException
) -> None:
    path = tmp_path / "x.json"
    storage.write_json(path, {"old": 1})

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, broken, fail)
    expected = RunFolderError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        storage.write_json(path, {"new": 2})
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    assert storage.read_json(path) == {"old": 1}


def test_files_follow_the_umask(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    storage.write_json(tmp_path / "x.json", {})
    assert (tmp_path / "x.json").stat().st_mode == plain.stat().st_mode


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"file/x\.json could not be written"):
        storage.write_json(tmp_path / "file" / "x.json", {})


@pytest.mark.parametrize("read", [storage.read_json, storage.read_tensors])
def test_missing_files_are_named(tmp_path: Path, read: object) -> None:
    with pytest.raises(RunFolderError, match=r"gone does not exist; is this a run folder\?"):
        read(tmp_path / "gone")
    with pytest.raises(RunFolderError, match=str(tmp_path)):
        read(tmp_path)


def test_broken_files_are_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    storage.write_tensors(whole, {"x": torch.arange(100.0)})
    data = whole.read_bytes()
    bad = tmp_path / "bad"
    for content in (b"", b"x", data[:4], data[:20], data[:-1], data + b"x", b"\xff" * 64, pickle.dumps({"x": 1})):
        bad.write_bytes(content)
        with pytest.raises(RunFolderError, match="bad is not a complete safetensors file"):
            storage.read_tensors(bad)
    for content in (b"", b"{", b'{"a": 1} x', b"\xff\xfe", data, b"[" * 10**5):
        bad.write_bytes(content)
        with pytest.raises(RunFolderError, match="bad is not readable as JSON"):
            storage.read_json(bad)
    assert issubclass(RunFolderError, JKOError)
    assert issubclass(RunFolderError, OSError)
