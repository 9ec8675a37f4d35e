"""Resident memory of this process, for the benchmarks beside this file; a peak never falls, so each takes a process."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path


def resident_mib() -> float:
    """Resident memory now; where the system does not tell, the peak so far."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    return peak_mib()


def peak_mib() -> float:
    """Peak resident memory of this process."""
    # Not what getrusage says on Linux: that remembers the parent's peak from before the program was replaced.
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
