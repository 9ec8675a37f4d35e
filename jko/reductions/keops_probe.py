"""Whether KeOps works here, and how to call it: silent, one build at a time, failures told before any work."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.metadata
import importlib.util
import io
import logging
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

import torch

from jko.errors import MissingDependency

__all__ = ["KeOpsProbe", "keops_available", "require_keops", "run_keops", "run_lazy", "silenced"]

_LOG = logging.getLogger("jko")
_LONGEST_BUILD = 120.0
_LONGEST_EXIT = 10.0
_built: set[Hashable] = set()

_Result = TypeVar("_Result")


@final
@dataclass(frozen=True, slots=True)
class KeOpsProbe:
    """What one tiny reduction showed.

    Attributes:
        available: whether KeOps imports, compiles and computes here.
        reason: why not; empty where it does.
    """

    available: bool
    reason: str


@functools.cache
def keops_available() -> KeOpsProbe:
    """Return whether KeOps works here, decided once per process by one tiny reduction, never by an import alone.

    Logs one warning that names the cause where it does not work. Compiles for some seconds on a fresh machine.
    """
    reason = _obstacle()
    if reason is None:
        said = io.StringIO()
        try:
            with _one_build_at_a_time(), silenced(said):
                reason = _tiny_reduction()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in there, KeOps does not work
            reason = _cause(error, said.getvalue())
    if reason:
        _LOG.warning("KeOps is not available: %s", reason)
    return KeOpsProbe(not reason, reason)


def require_keops() -> None:
    """Refuse to go on without a working KeOps.

    Raises:
        MissingDependency: naming the cause.
    """
    probe = keops_available()
    if not probe.available:
        raise MissingDependency(f"KeOps is not available: {probe.reason}; jko.Blocked() needs no compiler")


def run_keops(formula: Hashable, call: Callable[[], _Result]) -> _Result:
    """Return `call()`, a KeOps reduction.

    The first call of a formula compiles it: silent, and by one process at a time, since KeOps itself lets processes
    load what another one is still writing.

    Args:
        formula: what decides the code that KeOps compiles: a name, the dimensions, the dtype, the type of device.
        call: runs the reduction.

    Raises:
        MissingDependency: when KeOps is not available, or cannot compile this formula.
    """
    if formula in _built:
        return call()
    require_keops()
    said = io.StringIO()
    try:
        with _one_build_at_a_time(), silenced(said):
            result = call()
    except (ImportError, OSError, EOFError, LookupError, AttributeError, ValueError, RuntimeError) as error:
        if isinstance(error, MissingDependency | torch.cuda.OutOfMemoryError):
            raise
        cause = _cause(error, said.getvalue())
        raise MissingDependency(f"KeOps cannot compile {formula}: {cause}; jko.Blocked() needs no compiler") from error
    _built.add(formula)
    return result


def run_lazy(formula: Hashable, call: Callable[[Callable[[torch.Tensor, int], Any]], torch.Tensor]) -> torch.Tensor:
    """Return `run_keops` of a formula of lazy tensors.

    Args:
        formula: as for `run_keops`.
        call: forms the reduction by `lazy`: `lazy(values, 1)` puts (*batch, n, r) on the first axis over points, and
            `lazy(values, 0)` on the second.
    """

    def run() -> torch.Tensor:
        from pykeops.torch import LazyTensor

        return call(lambda values, side: LazyTensor(values.unsqueeze(side - 3).contiguous()))

    return run_keops(formula, run)


def _obstacle() -> str | None:
    """What can be told before the import of KeOps, which builds folders and leaves its traces."""
    if importlib.util.find_spec("pykeops") is None:
        return "pykeops is not installed"
    folder = _cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return f"its folder {folder} cannot be written; set KEOPS_CACHE_FOLDER to one that can"
    # With a GPU the formulas are compiled by NVRTC, and the little that needs a compiler may stand ready.
    compilers = [os.environ.get("CXX") or "g++", "clang++" if sys.platform == "darwin" else "g++"]
    if not torch.cuda.is_available() and not any(shutil.which(name) for name in compilers):
        return f"no C++ compiler was found ({' or '.join(dict.fromkeys(compilers))})"
    return None


def _tiny_reduction() -> str:
    """Import KeOps and form two sums; what is wrong with them, or nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pykeops.torch import LazyTensor

    # Its own handlers write files when the process ends; this one, registered later, comes first.
    atexit.register(_hold_at_exit)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64, device=device)
    sums = (LazyTensor(x[:, None, :]) * LazyTensor(x[None, :, :])).sum(1)
    right = bool((sums.cpu() == torch.tensor([[3.0], [6.0]], dtype=torch.float64)).all())
    return "" if right else f"a test sum gave {sums.flatten().tolist()} instead of [3.0, 6.0]"


def _cause(error: Exception, said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if "KeOps]" not in line]
    told = next((line for line in lines if "error" in line.lower()), "")
    return f"{type(error).__name__}: {error}" + (f" ({told[:200]})" if told else "")


def _cache_folder() -> Path:
    chosen = os.environ.get("KEOPS_CACHE_FOLDER")
    if chosen is not None:
        return Path(chosen).absolute()
    try:
        version = importlib.metadata.version("keopscore")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return Path(os.path.expanduser("~"), ".cache", f"keops{version}").absolute()


@contextlib.contextmanager
def silenced(said: io.StringIO) -> Iterator[None]:
    """Keep what is printed within, from Python and from below, off standard output, which is the caller's for results.

    Args:
        said: takes what Python prints.
    """
    with contextlib.redirect_stdout(said), contextlib.ExitStack() as stack:
        # Without a standard output there is nothing to silence.
        with contextlib.suppress(OSError):
            spare = os.dup(1)
            stack.callback(os.close, spare)
            sink = os.open(os.devnull, os.O_WRONLY)
            stack.callback(os.close, sink)
            os.dup2(sink, 1)
            stack.callback(os.dup2, spare, 1)
        yield


@contextlib.contextmanager
def _one_build_at_a_time() -> Iterator[None]:
    handle = _locked(_LONGEST_BUILD)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _locked(patience: float) -> int | None:
    """Lock the folder of KeOps among processes and threads by a file descriptor.

    None where that is impossible or takes too long.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        folder = _cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "jko.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        return None
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.02)
                continue
        except OSError:
            pass
        os.close(handle)
        return None


@functools.cache
def _hold_at_exit() -> int | None:
    """Keep the lock until the process is gone and the descriptor with it."""
    return _locked(_LONGEST_EXIT)
