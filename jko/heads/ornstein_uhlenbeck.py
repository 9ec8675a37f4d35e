"""Ornstein-Uhlenbeck heads: symmetric noise that relaxes to a mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, final

import torch

from jko.checks import as_float_tensor, check_finite, check_positive
from jko.errors import InvalidInput
from jko.heads.base import AbstractItoHeads, HeadIncrement, check_head_matrices, check_head_weights
from jko.heads.nodes import NodePath, uniform_times
from jko.random import check_word, symmetric_increments
from jko.typing import Float, Tensor

__all__ = ["OrnsteinUhlenbeckHeads"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class OrnsteinUhlenbeckHeads(AbstractItoHeads):
    """One path per head of dD = (mean - D) dt + sqrt(2 sigma2) dW_sym, dW_sym = sqrt(dt) (Z + Z^T) / 2.

    In the stationary law the diagonal entries have variance sigma2 and the others sigma2 / 2. The path is computed
    once on its own grid of step `dt` and is linear between the nodes, so it does not depend on the steps of the
    scheme that asks for it. Another `dt` with the same seed is another path: for one path on several grids give the
    increments, with `from_increments`, or keep `dt` and change the scheme's step only.

    Args:
        D0: initial head matrices, shape (H, d, d). Copied. Symmetric ones stay symmetric to the last bit.
        mean: the matrix that the heads relax to, shape (d, d) or (H, d, d); None means the identity.
        sigma2: variance of a diagonal entry in the stationary law, at least 0.
        dt: step of the path's own grid.
        t1: end of the path. If it is no multiple of dt, the grid extends to the next one.
        seed: seed of the noise, a whole number in [0, 2^32).
        path: number of the Monte Carlo path, in the same range.
        exact: step with the exact transition law (any dt) instead of Euler-Maruyama (dt at most 2).
        head_weights: weights on the simplex, shape (H,); None means 1/H.

    Raises:
        InvalidInput: for other shapes, non-finite entries, numbers outside their range, or Euler-Maruyama with
            dt > 2, where |1 - dt| > 1 and the path explodes.

    Reference: Massucco et al. 2026, Section 6.
    """

    nodes: NodePath = field(repr=False)
    mean: Tensor = field(repr=False)
    sigma2: float
    dt: float
    seed: int | None
    path: int | None
    exact: bool
    head_weights: Tensor | None

    def __init__(
        self,
        D0: Any,
        mean: Any = None,
        sigma2: float = 1.0,
        dt: float = 0.01,
        t1: float = 20.0,
        seed: int = 0,
        path: int = 0,
        exact: bool = False,
        head_weights: Any = None,
    ) -> None:
        initial = check_head_matrices(D0, "D0")
        target = _check_mean(mean, initial)
        variance = check_positive(sigma2, "sigma2", zero=True)
        step = check_positive(dt, "dt")
        end = check_positive(t1, "t1")
        if not exact:
            _refuse_unstable(step, "exact=True or a smaller dt")
        times = uniform_times(step, end, initial.shape, copies=2)
        num_heads, dimension = initial.shape[0], initial.shape[-1]
        seed, path = check_word(seed, "seed"), check_word(path, "path")
        relaxation, noise_scale, noise_time = _coefficients(variance, step, exact)
        noise = symmetric_increments(seed, path, num_heads, dimension, len(times) - 1, noise_time)
        values = _recursion(initial, target, relaxation, noise_scale, noise)
        self._fill(NodePath(times, values, end), target, variance, step, seed, path, exact, head_weights)

    @classmethod
    def from_increments(
        cls,
        D0: Any,
        dW_sym: Any,
        dt: float = 0.01,
        mean: Any = None,
        sigma2: float = 1.0,
        head_weights: Any = None,
    ) -> OrnsteinUhlenbeckHeads:
        """Return the Euler-Maruyama path driven by given increments of the noise.

        Args:
            D0: initial head matrices, shape (H, d, d). Copied.
            dW_sym: symmetric increments over the steps of length dt, shape (K, H, d, d), for instance from
                `jko.random.symmetric_increments`; sums of neighboring ones give the same path on a coarser grid.
            dt: step of the path's own grid, at most 2. The path ends at t1 = K dt.
            mean: the matrix that the heads relax to, shape (d, d) or (H, d, d); None means the identity.
            sigma2: variance of a diagonal entry in the stationary law, at least 0.
            head_weights: weights on the simplex, shape (H,); None means 1/H.

        Raises:
            InvalidInput: for other shapes, increments that are not symmetric, non-finite entries, or numbers outside
                their range.
        """
        initial = check_head_matrices(D0, "D0")
        target = _check_mean(mean, initial)
        variance = check_positive(sigma2, "sigma2", zero=True)
        step = check_positive(dt, "dt")
        _refuse_unstable(step, "a smaller dt")
        noise = _check_increments(dW_sym, initial)
        times = tuple(k * step for k in range(len(noise) + 1))
        relaxation, noise_scale, _ = _coefficients(variance, step, exact=False)
        values = _recursion(initial, target, relaxation, noise_scale, noise)
        heads = object.__new__(cls)
        heads._fill(NodePath(times, values), target, variance, step, None, None, False, head_weights)
        return heads

    @property
    def t1(self) -> float:
        """End of the path."""
        return self.nodes.t1

    @property
    def moves(self) -> bool:
        """Whether D(t) may depend on t: it does."""
        return True

    def at(self, t: float) -> Float[Tensor, "*batch h d d"]:
        """Return the matrices at t, linear between the nodes; see `AbstractHeads.at`."""
        return self.nodes.at(t)

    def increment(self, t: float, tau: float) -> HeadIncrement:
        """Return mean - D(t) and the noise of the step; see `AbstractItoHeads.increment`."""
        if self.exact:
            raise InvalidInput(
                "a path of exact transitions (exact=True) has no increments of its own: its noise is not that of the "
                "balance's Euler-Maruyama step; use exact=False"
            )
        first, last = self.nodes.span(t, tau)
        path = self.nodes.values[first : last + 1]
        drift = self.mean - path[:-1]
        # Read off the path; without noise nothing but the rounding of its sums would be left.
        noise = (path.diff(dim=0) - drift * self.dt).sum(0) if self.sigma2 > 0 else torch.zeros_like(path[0])
        variance = torch.full(path.shape[1:2], 2 * self.sigma2, dtype=torch.float64, device="cpu")
        return HeadIncrement(drift[0], noise, variance)

    def _fill(
        self,
        nodes: NodePath,
        mean: Tensor,
        sigma2: float,
        dt: float,
        seed: int | None,
        path: int | None,
        exact: bool,
        head_weights: Any,
    ) -> None:
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "sigma2", sigma2)
        object.__setattr__(self, "dt", dt)
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "exact", bool(exact))
        object.__setattr__(self, "head_weights", check_head_weights(head_weights, nodes.values.shape[1]))


def _coefficients(sigma2: float, dt: float, exact: bool) -> tuple[float, float, float]:
    """Factors of (mean - D) and of the noise, and the time that the noise's increments span."""
    if exact:
        # expm1 keeps the variance 2 sigma2 dt for tiny dt, where 1 - exp(-2 dt) would be 0.
        return -math.expm1(-dt), math.sqrt(-sigma2 * math.expm1(-2 * dt)), 1.0
    return dt, math.sqrt(2 * sigma2), dt


def _recursion(initial: Tensor, mean: Tensor, relaxation: float, noise_scale: float, noise: Tensor) -> Tensor:
    values = torch.empty((len(noise) + 1, *initial.shape), dtype=torch.float64, device="cpu")
    values[0] = initial
    for k, increment in enumerate(noise):
        # Entry by entry, products before sums: symmetric input gives output that is symmetric to the last bit.
        values[k + 1] = values[k] + (mean - values[k]) * relaxation + increment * noise_scale
    return values


def _refuse_unstable(dt: float, remedy: str) -> None:
    if dt > 2:
        raise InvalidInput(f"Euler-Maruyama with dt = {dt!r} explodes, since |1 - dt| > 1; use {remedy}")


def _check_mean(mean: Any, initial: Tensor) -> Tensor:
    d = initial.shape[-1]
    if mean is None:
        return torch.eye(d, dtype=torch.float64, device="cpu")
    target = as_float_tensor(mean, "mean", dtype=torch.float64).to("cpu")
    if tuple(target.shape) not in ((d, d), tuple(initial.shape)):
        raise InvalidInput(
            f"mean has shape {tuple(target.shape)}; for D0 of shape {tuple(initial.shape)} it must have shape "
            f"{(d, d)} or {tuple(initial.shape)}"
        )
    check_finite(target, "mean")
    return target


def _check_increments(dW_sym: Any, initial: Tensor) -> Tensor:
    noise = as_float_tensor(dW_sym, "dW_sym", dtype=torch.float64).to("cpu")
    if noise.ndim != 4 or len(noise) == 0 or noise.shape[1:] != initial.shape:
        raise InvalidInput(
            f"dW_sym has shape {tuple(noise.shape)}; for D0 of shape {tuple(initial.shape)} it must have shape "
            f"(K, {', '.join(map(str, initial.shape))}) with K >= 1"
        )
    check_finite(noise, "dW_sym")
    if float((noise - noise.mT).abs().max()) > 1e-6 * float(noise.abs().max()):
        raise InvalidInput(
            "dW_sym must hold symmetric matrices; for increments dW of all entries pass (dW + dW.mT) / 2"
        )
    return noise
