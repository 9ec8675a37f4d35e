"""What a command shows: results on standard output, progress and log on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from jko.progress import AbstractProgress, RichProgress

__all__ = ["logging_to_stderr", "make_progress", "stdout"]

_WIDTH = 100


def stdout() -> Console:
    """Return the console of the results; a file or a pipe gets the width that the tables are made for."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)


def make_progress(quiet: bool) -> AbstractProgress | None:
    """Return a progress bar where somebody may look at it."""
    return RichProgress() if sys.stderr.isatty() and not quiet else None


@contextmanager
def logging_to_stderr(verbose: bool) -> Iterator[None]:
    """Show the log of the library on standard error for the time of a command.

    The end of a run is in the results already, so its warning is for those who ask; that a run continues with another
    number of threads, or from an older checkpoint, is not.
    """
    logger = logging.getLogger("jko")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    runs = logging.getLogger("jko.runs")
    level, level_of_runs = logger.level, runs.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else logging.ERROR)
    runs.setLevel(logging.DEBUG if verbose else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        runs.setLevel(level_of_runs)
