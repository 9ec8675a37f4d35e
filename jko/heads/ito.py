"""Heads that follow a stochastic differential equation of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import torch

from jko.checks import as_float_tensor, check_finite, check_positive
from jko.errors import InvalidInput
from jko.heads.base import AbstractItoHeads, HeadIncrement, check_head_matrices, check_head_weights
from jko.heads.nodes import NodePath, uniform_times
from jko.random import check_word, symmetric_increments
from jko.typing import Float, Tensor

__all__ = ["ItoHeads"]

# A drift such as D M D of symmetric matrices is symmetric only up to rounding.
_ROUNDING = 1e-13


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class ItoHeads(AbstractItoHeads):
    """One path per head of dD = drift(D, t) dt + diffusion(D, t) dW_sym, dW_sym = sqrt(dt) (Z + Z^T) / 2.

    The path is computed once by Euler-Maruyama steps on its own grid and is linear between the nodes. Every head has
    the noise that it has in `OrnsteinUhlenbeckHeads` of the same seed and path. Matrices that are symmetric stay so to
    the last bit as long as the drift is symmetric within rounding.

    Args:
        D0: initial head matrices, shape (H, d, d). Copied.
        drift: function (D, t) -> tensor of shape (H, d, d). It is called on the path's own grid only.
        diffusion: function (D, t) -> number, or tensor of shape (1, 1, 1) or (H, 1, 1): one factor per head, since
            the Ito term of the balance (147) is that of isotropic symmetric noise.
        dt: step of the path's own grid.
        t1: end of the path. If it is no multiple of dt, the grid extends to the next one.
        seed: seed of the noise, a whole number in [0, 2^32).
        path: number of the Monte Carlo path, in the same range.
        head_weights: weights on the simplex, shape (H,); None means 1/H.

    Raises:
        InvalidInput: for other shapes, non-finite entries or results of the two functions, numbers outside their
            range, or a path that explodes.
    """

    nodes: NodePath = field(repr=False)
    drifts: Tensor = field(repr=False)
    factors: Tensor = field(repr=False)
    dt: float
    seed: int
    path: int
    head_weights: Tensor | None

    def __init__(
        self,
        D0: Any,
        drift: Callable[[Tensor, float], Any],
        diffusion: Callable[[Tensor, float], Any],
        dt: float = 0.01,
        t1: float = 1.0,
        seed: int = 0,
        path: int = 0,
        head_weights: Any = None,
    ) -> None:
        initial = check_head_matrices(D0, "D0")
        for function, name in ((drift, "drift"), (diffusion, "diffusion")):
            if not callable(function):
                raise InvalidInput(f"{name} must be a function (D, t) -> tensor, got {type(function).__name__}")
        step, end = check_positive(dt, "dt"), check_positive(t1, "t1")
        times = uniform_times(step, end, initial.shape, copies=3)
        seed, path = check_word(seed, "seed"), check_word(path, "path")
        weights = check_head_weights(head_weights, len(initial))
        noise = symmetric_increments(seed, path, len(initial), initial.shape[-1], len(times) - 1, step)
        values = torch.empty((len(times), *initial.shape), dtype=torch.float64, device="cpu")
        drifts = torch.empty_like(values[1:])
        factors = torch.empty((len(times) - 1, len(initial)), dtype=torch.float64, device="cpu")
        values[0] = initial
        for k, time in enumerate(times[:-1]):
            # Copies, so that a function that works in place cannot change the path.
            drifts[k] = _check_drift(drift(values[k].clone(), time), values[k], time)
            factors[k] = _check_diffusion(diffusion(values[k].clone(), time), len(initial), time)
            # Entry by entry, products before sums: symmetric input gives output that is symmetric to the last bit.
            values[k + 1] = values[k] + drifts[k] * step + noise[k] * factors[k, :, None, None]
            if not bool(torch.isfinite(values[k + 1]).all()):
                raise InvalidInput(f"the path explodes in the step from t = {time!r}; use a smaller dt")
        object.__setattr__(self, "nodes", NodePath(times, values, end))
        object.__setattr__(self, "drifts", drifts)
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "dt", step)
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "head_weights", weights)

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
        """Return drift and diffusion at t and the noise of the step; see `AbstractItoHeads.increment`."""
        first, last = self.nodes.span(t, tau)
        noise = self.nodes.values[first : last + 1].diff(dim=0) - self.drifts[first:last] * self.dt
        # Read off the path; without noise nothing but the rounding of its sums would be left.
        noise = noise.masked_fill(self.factors[first:last, :, None, None] == 0, 0.0)
        return HeadIncrement(self.drifts[first].clone(), noise.sum(0), self.factors[first].square())


def _check_drift(result: Any, D: Tensor, t: float) -> Tensor:
    name = f"drift(D, {t!r})"
    value = as_float_tensor(result, name, dtype=torch.float64).to("cpu")
    if value.shape != D.shape:
        raise InvalidInput(f"{name} has shape {tuple(value.shape)}; for D of this path it must be {tuple(D.shape)}")
    check_finite(value, name)
    if torch.equal(D, D.mT) and float((value - value.mT).abs().max()) <= _ROUNDING * float(value.abs().max()):
        return (value + value.mT) / 2
    return value


def _check_diffusion(result: Any, num_heads: int, t: float) -> Tensor:
    name = f"diffusion(D, {t!r})"
    value = as_float_tensor(result, name, dtype=torch.float64).to("cpu")
    if tuple(value.shape) not in ((), (1, 1, 1), (num_heads, 1, 1)):
        raise InvalidInput(
            f"{name} has shape {tuple(value.shape)}; it must be a number, or one factor per head of shape "
            f"({num_heads}, 1, 1)"
        )
    check_finite(value, name)
    return value.reshape(-1).expand(num_heads)
