"""Classes that a checkpoint may hold: each enters itself here, so that storage knows none of them by import."""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["STORABLE", "storable"]

STORABLE: dict[str, type[Any]] = {}
_Class = TypeVar("_Class", bound=type[Any])


def storable(kind: _Class) -> _Class:
    """Enter a dataclass of tensors and plain data into the list of what a checkpoint may hold, by its name."""
    STORABLE[kind.__name__] = kind
    return kind
