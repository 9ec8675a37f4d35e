"""The initial laws of the paper: clustered tokens and symmetric Gaussian head matrices."""

from __future__ import annotations

import math

import numpy as np
import torch

from jko.checks import check_integer
from jko.errors import InvalidInput
from jko.random import Purpose, stream
from jko.typing import Float, Tensor

__all__ = ["initial_heads", "initial_tokens"]

_SPREAD = 0.05
_ANGLES = 5


def initial_heads(
    num_heads: int,
    dimension: int,
    seed: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "h d d"]:
    """Sample D_0 = Z + Z^T per head, Z of independent N(0, 1).

    Diagonal entries have variance 4, the others 2. Each head has a stream of its own, never that of the noise:
    the first 10 of 100 heads are those of H = 10.

    Args:
        num_heads: H, at least 1.
        dimension: d, at least 1.
        seed: a whole number in [0, 2^32).
        dtype: of the result; None means float64. The numbers are drawn in float64 and rounded.
        device: of the result; None means the CPU.

    Returns:
        Head matrices of shape (H, d, d), symmetric to the last bit.

    Raises:
        InvalidInput: for an argument outside its range.

    Reference: Massucco et al. 2026, Section 6; the law is that of the authors' released code.
    """
    count = check_integer(num_heads, "num_heads", least=1)
    size = check_integer(dimension, "dimension", least=1)
    draws = [stream(seed, 0, h, purpose=Purpose.INITIAL_HEADS).standard_normal((size, size)) for h in range(count)]
    z = torch.from_numpy(np.stack(draws))
    return (z + z.mT).to(dtype=dtype or torch.float64, device=device)


def initial_tokens(
    n: int,
    dimension: int,
    seed: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "n d"]:
    """Sample tokens on the unit sphere in noisy clusters.

    For d >= 3 each token picks one of the 2d vertices +-e_i uniformly at random, adds N(0, 0.05^2) to every
    coordinate and is normalized. For d = 2 it picks one of the angles 2 pi k / 5, also uniformly at random, and adds
    N(0, 0.05^2) to the angle. The first tokens of a larger cloud are those of a smaller one.

    Args:
        n: number of tokens, at least 1.
        dimension: d, at least 2.
        seed: a whole number in [0, 2^32).
        dtype: of the result; None means float64. The numbers are drawn in float64 and rounded.
        device: of the result; None means the CPU.

    Returns:
        Tokens of shape (n, d) and norm 1.

    Raises:
        InvalidInput: for an argument outside its range.

    Reference: Massucco et al. 2026, Section 6; the law is that of the authors' released code.
    """
    count = check_integer(n, "n", least=1)
    size = check_integer(dimension, "dimension", least=1)
    if size == 1:
        raise InvalidInput("dimension must be at least 2, got 1: the sphere of R^1 is two points, without angles")
    # Clusters and noise have a stream each, so that the tokens do not depend on how many follow.
    clusters = stream(seed, 0, 0, purpose=Purpose.INITIAL_TOKENS)
    noise = stream(seed, 0, 1, purpose=Purpose.INITIAL_TOKENS)
    if size == 2:
        angles = 2 * math.pi / _ANGLES * clusters.integers(_ANGLES, size=count)
        angles = angles + _SPREAD * noise.standard_normal(count)
        points = np.stack((np.cos(angles), np.sin(angles)), axis=-1)
    else:
        vertices = np.concatenate((np.eye(size), -np.eye(size)))
        points = vertices[clusters.integers(2 * size, size=count)] + _SPREAD * noise.standard_normal((count, size))
    points /= np.linalg.norm(points, axis=-1, keepdims=True)
    return torch.from_numpy(points).to(dtype=dtype or torch.float64, device=device)
