"""The contract of head processes: a path of matrices in time, and the checks of its ingredients."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, final

import torch

from jko.checks import as_float_tensor, check_finite, check_kind, check_number, check_simplex, simplex_tolerance
from jko.errors import InvalidInput
from jko.typing import Float, Tensor

__all__ = [
    "AbstractHeads",
    "AbstractItoHeads",
    "HeadIncrement",
    "check_head_matrices",
    "check_head_weights",
    "check_heads",
    "check_time",
]


class AbstractHeads(abc.ABC):
    """A path t -> D(t) of head matrices: a function of t, the same whatever step sizes ask for it.

    Reference: Massucco et al. 2026, Section 6.

    Attributes:
        jumps: times at which D(t) jumps, none unless the path says so: no step of a run crosses them. At a jump `at`
            gives the limit from the right, and at the float just below it the limit from the left.
    """

    __slots__ = ()

    jumps: tuple[float, ...] = ()

    @abc.abstractmethod
    def at(self, t: float) -> Float[Tensor, "*batch h d d"]:
        """Return the head matrices at time t.

        Args:
            t: a time in [0, t1]. Times that miss 0 or t1 by rounding are accepted.

        Returns:
            A tensor of shape (*batch, H, d, d) of the caller's own, float64 on the CPU.

        Raises:
            InvalidInput: for t outside [0, t1], naming t and the interval.
        """

    @property
    @abc.abstractmethod
    def head_weights(self) -> Tensor | None:
        """Weights of the heads, shape (H,), float64 on the CPU and on the simplex; None means 1/H."""

    @property
    @abc.abstractmethod
    def t1(self) -> float:
        """End of the interval [0, t1] on which the path is defined; `math.inf` if it has none."""

    @property
    @abc.abstractmethod
    def moves(self) -> bool:
        """Whether D(t) may depend on t."""

    @final
    @property
    def num_heads(self) -> int:
        """Number of heads H."""
        return self.at(0.0).shape[-3]

    @final
    @property
    def dimension(self) -> int:
        """Number d of rows and columns of a head matrix."""
        return self.at(0.0).shape[-1]


@final
@dataclass(frozen=True, slots=True, eq=False)
class HeadIncrement:
    """What drives heads over one step: dD = f dt + g dW_sym, everything at the start of the step.

    Attributes:
        drift: f(D_h, t), shape (*batch, H, d, d).
        noise: g dW_sym over the step, shape (*batch, H, d, d).
        noise_variance: g^2, shape (*batch, H); g^2 dt is the variance of a diagonal entry of the noise.
    """

    drift: Tensor
    noise: Tensor
    noise_variance: Tensor


class AbstractItoHeads(AbstractHeads):
    """Heads that know their own drift and noise, which the discrete balance (147) of the paper asks for."""

    __slots__ = ()

    @abc.abstractmethod
    def increment(self, t: float, tau: float) -> HeadIncrement:
        """Return drift, noise and its variance for the step from t to t + tau.

        Over one step of the heads' own grid D(t + tau) = D(t) + tau drift + noise. A step may span several: the noise
        is then the sum of theirs, while the drift is that of its start.

        Raises:
            InvalidInput: when the ends of the step are no nodes of the heads' own grid, or when this path is not one
                of Euler-Maruyama steps.
        """


def check_head_matrices(value: Any, name: str, *, batched: bool = False) -> Tensor:
    """Return a float64 copy on the CPU of finite square matrices of shape (H, d, d), or (*batch, H, d, d).

    Raises:
        InvalidInput: for another shape, no heads, or non-finite entries.
    """
    matrices = as_float_tensor(value, name, dtype=torch.float64).to("cpu")
    shape = tuple(matrices.shape)
    form = "(*batch, H, d, d)" if batched else "(H, d, d)"
    if matrices.ndim == 2:
        raise InvalidInput(f"{name} must have shape {form}, got {shape}; for a single head write {name}[None]")
    if matrices.ndim < 3 or (matrices.ndim > 3 and not batched):
        raise InvalidInput(f"{name} must have shape {form}, got {shape}")
    if shape[-1] != shape[-2]:
        raise InvalidInput(f"{name} must hold square matrices, shape {form}, got {shape}")
    if matrices.numel() == 0:
        raise InvalidInput(f"{name} of shape {shape} holds no heads or no coordinates")
    check_finite(matrices, name)
    return matrices.contiguous()


def check_head_weights(value: Any, num_heads: int) -> Tensor | None:
    """Return a float64 copy on the CPU of weights of the heads, shape (H,) and on the simplex; None stays None.

    Raises:
        InvalidInput: for another shape, negative or non-finite weights, or a sum that differs from 1.
    """
    if value is None:
        return None
    weights = as_float_tensor(value, "head_weights").to("cpu")
    if tuple(weights.shape) != (num_heads,):
        raise InvalidInput(f"head_weights have shape {tuple(weights.shape)}; for {num_heads} heads: ({num_heads},)")
    check_simplex(weights, "head_weights", tolerance=simplex_tolerance(weights.dtype))
    if weights.dtype == torch.float64:
        return weights
    weights = weights.to(torch.float64)
    return weights / weights.sum()


def check_heads(value: Any, name: str) -> None:
    """Refuse what is no path of heads: a tensor of matrices is none."""
    hint = "wrap a tensor of shape (H, d, d) in ConstantHeads"
    check_kind(value, AbstractHeads, name, example="ConstantHeads(D)", hint=hint)


def check_time(t: float, t1: float, *, slack: float) -> float:
    """Return t moved into [0, t1], or refuse it if that takes more than `slack`."""
    time = check_number(t, "t")
    if not math.isfinite(time) or not -slack <= time <= t1 + slack:
        interval = "[0, inf)" if math.isinf(t1) else f"[0, {t1!r}]"
        raise InvalidInput(f"t = {time!r} lies outside {interval}, where these heads are defined")
    return min(max(time, 0.0), t1)
