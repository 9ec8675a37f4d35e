"""What a run is made of, as plain data, and the comparison with what wants to continue it."""

from __future__ import annotations

import functools
import numbers
import platform
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jko.errors import ResumeMismatch

__all__ = ["compare_config", "compare_setups", "config_changes", "describe", "versions"]

_DEPTH = 6
_END = "t1"


def describe(value: Any, depth: int = _DEPTH) -> Any:
    """Return the classes and the numbers, texts and flags in a flow or a scheme; arrays and functions are left out."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple | list):
        return [describe(item, depth - 1) for item in value] if depth else []
    content: dict[str, Any] = {"kind": type(value).__name__}
    if depth and is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            item = getattr(value, part.name)
            # A path's table depends on how far it reaches.
            if part.repr and part.name != _END and _is_plain(item):
                content[part.name] = describe(item, depth - 1)
    return content


def versions() -> dict[str, str]:
    """Return the versions that a saved run records."""
    return dict(_versions())


@functools.cache
def _versions() -> dict[str, str]:
    installed = {"python": platform.python_version()}
    for name in ("jko", "torch", "numpy", "scipy", "pot"):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            installed[name] = "not installed"
    return installed


def compare_setups(old: Any, new: Any, what: str) -> None:
    """Compare descriptions.

    Raises:
        ResumeMismatch: naming the first entry that differs, with both values.
    """
    for key, before, after in _differences(old, new, what):
        if before is not _ABSENT and after is not _ABSENT:
            raise _mismatch(key, before, after)


def compare_config(old: Mapping[str, Any], new: Mapping[str, Any], free: tuple[str, ...] = ()) -> None:
    """Compare configurations; the entries in `free`, and any called t1, may differ.

    Raises:
        ResumeMismatch: naming the first entry that differs, with both values.
    """
    for key, before, after in _differences(dict(old), dict(new), ""):
        if key not in free and key.rpartition(".")[2] != _END:
            raise _mismatch(key, before, after)


def config_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries that differ between two configurations, by key, each with both values as text."""
    texts = {}
    for key, *values in _differences(dict(old), dict(new), ""):
        before, after = ("absent" if value is _ABSENT else repr(value) for value in values)
        texts[key] = f"{key} was {before} and is {after} now"
    return texts


_ABSENT = object()


def _differences(old: Any, new: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    # A table that is not there is an empty one.
    old, new = ({} if one is _ABSENT and isinstance(other, dict) else one for one, other in ((old, new), (new, old)))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{place}.{key}" if place else str(key)
            yield from _differences(old.get(key, _ABSENT), new.get(key, _ABSENT), inner)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for k, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{place}[{k}]")
    elif old != new:
        yield place, old, new


def _mismatch(key: str, old: Any, new: Any) -> ResumeMismatch:
    before, after = ("absent" if value is _ABSENT else repr(value) for value in (old, new))
    return ResumeMismatch(
        f"{key} was {before} in the run that is to be continued, and is {after} now; a run continues with what it was "
        "begun with: put it back, or start a new run in another folder"
    )


def _is_plain(item: Any) -> bool:
    if is_dataclass(item) and not isinstance(item, type):
        return True
    if isinstance(item, tuple | list):
        return len(item) <= 64 and all(_is_plain(part) for part in item)
    return item is None or isinstance(item, bool | str | numbers.Real | Enum)
