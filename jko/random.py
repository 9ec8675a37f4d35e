"""Seeded randomness: one independent stream per purpose, head and Monte Carlo path, the same on every machine."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from jko.checks import check_integer, check_positive
from jko.errors import InvalidInput
from jko.memory import check_fits
from jko.typing import Float, Tensor

__all__ = ["Purpose", "check_word", "stream", "symmetric_increments"]

_WORD = 2**32


class Purpose(IntEnum):
    """What a stream is drawn for; streams of different purposes never coincide."""

    NOISE = 0
    INITIAL_HEADS = 1
    INITIAL_TOKENS = 2


def stream(seed: int, path: int = 0, head: int = 0, *, purpose: Purpose = Purpose.NOISE) -> np.random.Generator:
    """Return the generator of one head on one Monte Carlo path.

    It depends on its arguments alone: no global state is read or changed, and the stream of a head does not depend
    on how many other heads or paths there are.

    Args:
        seed: seed of the experiment, a whole number in [0, 2^32).
        path: number of the Monte Carlo path, in the same range.
        head: number of the head, in the same range.
        purpose: what the numbers are for.

    Raises:
        InvalidInput: for anything but whole numbers in that range.
    """
    # SeedSequence joins its integers as 32-bit words and pads with zeros, so larger ones could collide with others.
    entropy = (check_word(seed, "seed"), check_word(path, "path"), check_word(head, "head"))
    # A spawn key lies behind the padded words, where no (seed, path, head) reaches.
    key = () if purpose is Purpose.NOISE else (int(purpose),)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy, spawn_key=key)))


def symmetric_increments(
    seed: int, path: int, num_heads: int, dimension: int, steps: int, dt: float
) -> Float[Tensor, "steps h d d"]:
    """Sample increments dW_sym = sqrt(dt) (Z + Z^T) / 2 of a symmetric Brownian motion, Z of independent N(0, 1).

    Diagonal entries have variance dt, the others dt/2; every matrix is symmetric to the last bit. Fewer heads or
    fewer steps give the leading part of the same array. Increments for another `dt` with the same seed are the same
    normal numbers rescaled, not a refinement of the same motion: sum neighboring increments for a coarser grid.

    Args:
        seed: seed of the experiment, a whole number in [0, 2^32).
        path: number of the Monte Carlo path, in the same range.
        num_heads: number of heads H, at least 1.
        dimension: d, at least 1.
        steps: number of increments, at least 1.
        dt: length of a step in time, positive.

    Returns:
        Increments of shape (steps, H, d, d), float64 on the CPU.

    Raises:
        InvalidInput: for an argument outside its range.

    Reference: Massucco et al. 2026, Section 6.
    """
    count = check_integer(num_heads, "num_heads", least=1)
    size = check_integer(dimension, "dimension", least=1)
    length = check_integer(steps, "steps", least=1)
    scale = 0.5 * math.sqrt(check_positive(dt, "dt"))
    way_out = "take fewer steps or heads, or a smaller dimension"
    # The normal numbers, and their symmetric part.
    shape = (length, count, size, size)
    check_fits("the increments of the noise", shape, torch.float64, torch.device("cpu"), way_out, copies=2)
    normals = np.empty((length, count, size, size))
    for head in range(count):
        normals[:, head] = stream(seed, path, head).standard_normal((length, size, size))
    z = torch.from_numpy(normals)
    return (z + z.mT) * scale


def check_word(value: Any, name: str) -> int:
    """Return `value` as an int if it is a whole number in [0, 2^32)."""
    number = check_integer(value, name, least=0)
    if number >= _WORD:
        raise InvalidInput(f"{name} must be below 2^32 = {_WORD}, got {value!r}")
    return number
