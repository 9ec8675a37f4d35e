"""Figures on machines without a display."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["headless"]

_NAME = "MPLBACKEND"


@contextmanager
def headless() -> Iterator[None]:
    """Let matplotlib start whatever MPLBACKEND says: it would refuse a bad name, and figures go into files anyway."""
    old = os.environ.get(_NAME)
    os.environ[_NAME] = "Agg"
    try:
        yield
    finally:
        if old is None:
            del os.environ[_NAME]
        else:
            os.environ[_NAME] = old
