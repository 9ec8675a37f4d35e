"""Path energies in the weighted metric by their formula, and clouds for them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

F64 = torch.float64


def clouds(count: int, n: int, d: int, seed: int) -> Tensor:
    """Clouds of n uniform points on the sphere, shape (count, n, d)."""
    x = np.random.default_rng((seed, n, d)).standard_normal((count, n, d))
    return torch.from_numpy(x / np.linalg.norm(x, axis=-1, keepdims=True))


def random_heads(H: int, d: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.from_numpy(np.random.default_rng((seed, H, d, 1)).standard_normal((H, d, d)))


def dirichlet(n: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng((seed, n, 2)).dirichlet(np.full(n, 3.0)))


def mobility(x: Tensor, w: Tensor, D: Tensor, theta: Tensor) -> Tensor:
    """The harmonic mean b over the heads, shape (n,)."""
    mass = torch.einsum("hij,j->hi", torch.einsum("id,hde,je->hij", x, D, x).exp(), w)
    return 1 / torch.einsum("h,hi->i", theta, 1 / mass)


def path_energy(path: Tensor, w: Tensor, D: Tensor, theta: Tensor, *, sphere: bool = True) -> Tensor:
    """S sum_k sum_i w_i b(y_i^k) d^2(x_i^k, x_i^{k+1}) segment by segment; D of shape (S, H, d, d)."""
    S = path.shape[0] - 1
    total = path.new_zeros(())
    for k in range(S):
        x, z = path[k], path[k + 1]
        middle = (x + z) / 2
        if sphere:
            middle = middle / middle.norm(dim=-1, keepdim=True)
        length = (x - z).norm(dim=-1)
        if sphere:
            length = 2 * (length / 2).asin()
        total = total + S * (w * mobility(middle, w, D[k], theta) * length.square()).sum()
    return total
