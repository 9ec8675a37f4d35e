"""The number of threads for the size of the problem."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["threads_for"]

_PAIRS_WORTH_SHARING = 4_000_000


@contextmanager
def threads_for(n: int, num_heads: int) -> Iterator[None]:
    """Use one thread for pair sums that are too small to share, and give the threads back afterwards.

    Below a few million pairs threads wait for each other longer than they work, and far longer on a busy machine.
    """
    threads = torch.get_num_threads()
    if n * n * num_heads < _PAIRS_WORTH_SHARING:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
