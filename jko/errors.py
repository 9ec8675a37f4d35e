"""The errors of the toolkit: one root, each also a member of the built-in family a caller would expect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jko.solution import Solution
    from jko.status import Status

__all__ = [
    "InvalidInput",
    "JKOError",
    "MissingDependency",
    "ResumeMismatch",
    "RunDamaged",
    "RunFolderError",
    "SolveFailed",
]


class JKOError(Exception):
    """Root of every error that the toolkit raises on purpose."""


class InvalidInput(JKOError, ValueError):
    """An argument was refused before any work: the message says what was wrong, the value, and what to do."""


class SolveFailed(JKOError, RuntimeError):
    """A run ended early.

    Attributes:
        solution: the partial solution up to and including the last good step.
        status: the `jko.Status` that ended the run.
    """

    def __init__(self, message: str, *, solution: Solution | None, status: Status) -> None:
        RuntimeError.__init__(self, message)
        self.solution = solution
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the keyword arguments, which the default leaves out."""
        return _rebuilt, (str(self), self.solution, self.status)


class MissingDependency(JKOError, ImportError):
    """A package that the requested feature needs is not installed or does not work here."""


class RunFolderError(JKOError, OSError):
    """A run folder could not be written or read."""


class RunDamaged(RunFolderError):
    """Files that were written are missing, damaged, or of another run: the message names them."""


class ResumeMismatch(RunFolderError):
    """A run folder does not belong to the configuration that wants to continue or to repeat it."""


def _rebuilt(message: str, solution: Solution | None, status: Status) -> SolveFailed:
    return SolveFailed(message, solution=solution, status=status)
