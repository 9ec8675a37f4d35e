"""Whether an array fits in memory, asked before it is made: one check for every array that grows fast."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from jko.errors import InvalidInput

__all__ = ["check_fits", "free_memory"]

# Below it nothing is asked: 64 MiB are there, and an answer takes longer than a small step.
_SMALL = 2**26
_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")


def check_fits(
    name: str, shape: Sequence[float], dtype: torch.dtype, device: torch.device, way_out: str, *, copies: float = 1
) -> None:
    """Refuse an array that memory cannot hold, before it is made.

    Args:
        name: what the array is, in the plural.
        shape: of the array; sizes may be floats where they are only known as such.
        dtype: of the array.
        device: where it would be.
        way_out: what to do instead.
        copies: how many arrays of this size are there at one time.

    Raises:
        InvalidInput: naming the array, its size, and the way out.
    """
    needed = float(copies * dtype.itemsize)
    for size in shape:
        needed *= size
    if needed <= _SMALL:
        return
    free = free_memory(device)
    if needed > free:
        sizes = ", ".join(f"{size:.12g}" for size in shape)
        times = f", {copies:g} times over," if copies > 1 else ""
        kind = str(dtype).removeprefix("torch.")
        raise InvalidInput(
            f"{name} of shape ({sizes}) in {kind}{times} take {needed / 2**30:.4g} GiB, but {free / 2**30:.4g} GiB are "
            f"free on {device}; {way_out}"
        )


def free_memory(device: torch.device) -> float:
    """Return the bytes that can still be allocated on a device, inf where nobody knows."""
    if device.type == "cuda":
        # What PyTorch holds in its cache without using it counts as free.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + cached)
    if device.type != "cpu":
        return math.inf
    return min(_available(), *_limits())


def _available() -> float:
    """Memory of the machine that is free or can be freed; all of it where the system does not say how much is free."""
    try:
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _limits() -> Iterator[float]:
    """Limits of the control group that the process sees as its root, of either version; inf for none."""
    yield math.inf
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            yield float((_CGROUPS / name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue  # No such file, or "max".
