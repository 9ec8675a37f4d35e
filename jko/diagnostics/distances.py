"""Exact distances between two runs at the times that both saved, here or in a process of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure
from jko.solution import Solution
from jko.transport import squared_wasserstein

__all__ = ["Distances", "distances_over_time"]

Distances = Callable[[], tuple[Tensor, Tensor]]
"""Gives the common times and the distances there, both of shape (S,), once they are there."""


def distances_over_time(
    first: Solution, second: Solution, manifold: AbstractManifold, executor: Executor | None = None
) -> Distances:
    """Return the exact W_2 between the clouds of two runs with the same tau, at the times that both saved.

    Args:
        first: one run.
        second: the other.
        manifold: the geometry of the distance.
        executor: where to compute; None computes at once. Where it breaks, the distances are computed here.
    """
    shared = min(len(first.times), len(second.times))
    same = first.times[:shared] == second.times[:shared]
    count = shared if bool(same.all()) else int((~same).nonzero()[0])
    times = first.times[:count].clone()
    # Arrays, because tensors travel to another process in shared memory, of which containers have little.
    parts = (first.points[:count], second.points[:count], first.weights, second.weights)
    work = partial(_distances, [part.cpu().numpy() for part in parts], manifold)
    if executor is None:
        values = work()
        return lambda: (times, torch.tensor(values, dtype=torch.float64))
    future = _submit(executor, work)

    def wait() -> tuple[Tensor, Tensor]:
        try:
            found = work() if future is None else future.result()
        except (BrokenExecutor, CancelledError):
            found = work()
        return times, torch.tensor(found, dtype=torch.float64)

    return wait


def _submit(executor: Executor, work: Callable[[], list[float]]) -> Future[list[float]] | None:
    try:
        return executor.submit(work)
    except BrokenExecutor:
        return None


def _distances(arrays: list[np.ndarray[Any, Any]], manifold: AbstractManifold) -> list[float]:
    first, second, first_weights, second_weights = arrays
    squares = [
        squared_wasserstein(ParticleMeasure(x, first_weights), ParticleMeasure(y, second_weights), manifold)
        for x, y in zip(first, second, strict=True)
    ]
    return [float(np.sqrt(square)) for square in squares]
