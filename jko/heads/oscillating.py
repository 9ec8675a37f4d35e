"""Oscillating heads: a deterministic path that never settles."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, final

import torch

from jko.checks import as_float_tensor, check_finite, check_positive
from jko.errors import InvalidInput
from jko.heads.base import AbstractItoHeads, HeadIncrement, check_head_matrices, check_head_weights
from jko.heads.nodes import NodePath, uniform_times
from jko.typing import Float, Tensor

__all__ = ["OscillatingHeads", "oscillating_target"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class OscillatingHeads(AbstractItoHeads):
    """Heads that follow dD^h = (F(t + phase_h) - D^h) dt with the 2 pi periodic F of `oscillating_target`.

    The equation is solved once by explicit Euler steps on the path's own grid, linear between the nodes. The phases
    decide the outcome: shared, all heads oscillate together and the gradient does not decay with H; spread, they
    average out. The published figure was made with shared phases, although the formula has spread ones.

    Args:
        D0: initial head matrices, shape (H, d, d) with d >= 2. Copied. Symmetric ones stay symmetric to the last bit.
        dt: step of the path's own grid, at most 2.
        t1: end of the path. If it is no multiple of dt, the grid extends to the next one.
        phases: "spread" for 2 pi h / H, "shared" for 0, or a tensor (H,) of phases.
        head_weights: weights on the simplex, shape (H,); None means 1/H.

    Raises:
        InvalidInput: for other shapes, non-finite entries, numbers outside their range, or dt > 2, where
            |1 - dt| > 1 and the path explodes.

    Reference: Massucco et al. 2026, Section 6; F is that of the authors' released code.
    """

    nodes: NodePath = field(repr=False)
    phases: Tensor = field(repr=False)
    dt: float
    head_weights: Tensor | None

    def __init__(
        self, D0: Any, dt: float = 0.01, t1: float = 20.0, phases: Any = "spread", head_weights: Any = None
    ) -> None:
        initial = check_head_matrices(D0, "D0")
        if initial.shape[-1] < 2:
            raise InvalidInput(f"oscillating heads need d >= 2, got D0 of shape {tuple(initial.shape)}")
        step = check_positive(dt, "dt")
        end = check_positive(t1, "t1")
        if step > 2:
            raise InvalidInput(f"explicit Euler with dt = {step!r} explodes, since |1 - dt| > 1; use a smaller dt")
        angles = _check_phases(phases, len(initial))
        times = uniform_times(step, end, initial.shape, copies=1)
        values = torch.empty((len(times), *initial.shape), dtype=torch.float64, device="cpu")
        values[0] = initial
        for k, time in enumerate(times[:-1]):
            target = oscillating_target(angles + time, initial.shape[-1])
            values[k + 1] = values[k] + (target - values[k]) * step
        object.__setattr__(self, "nodes", NodePath(times, values, end))
        object.__setattr__(self, "phases", angles)
        object.__setattr__(self, "dt", step)
        object.__setattr__(self, "head_weights", check_head_weights(head_weights, len(initial)))

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
        """Return F(t + phase) - D(t) and no noise; see `AbstractItoHeads.increment`."""
        first, _ = self.nodes.span(t, tau)
        value = self.nodes.values[first]
        drift = oscillating_target(self.phases + self.nodes.times[first], value.shape[-1]) - value
        rest = torch.zeros_like(value)
        return HeadIncrement(drift, rest, rest[..., 0, 0])


def oscillating_target(s: Float[Tensor, "*batch"], dimension: int) -> Float[Tensor, "*batch d d"]:
    """Return the symmetric matrices F(s) that oscillating heads relax to.

    d = 2: [[2 + 1.5 cos s, sin 2s], [sin 2s, 2 - 1.5 cos s]]. d = 3: diagonal 2 + 1.5 cos s, 2 + 1.5 sin s and
    2 + 1.5 cos(s + pi/4), off the diagonal F_12 = sin 2s, F_13 = sin s, F_23 = cos 2s. d >= 4: F_ii = 2 + 1.5
    cos(s + 2 pi i / d), and sin(2s + 2 pi p / P) for the p-th of the P = d (d - 1) / 2 pairs, row by row, from 0.

    Args:
        s: time plus phase, any shape.
        dimension: d, at least 2.

    Returns:
        Matrices of shape (*batch, d, d).
    """
    pairs = list(itertools.combinations(range(dimension), 2))
    if dimension == 2:
        diagonal = [torch.cos(s), -torch.cos(s)]
        others = [torch.sin(2 * s)]
    elif dimension == 3:
        diagonal = [torch.cos(s), torch.sin(s), torch.cos(s + math.pi / 4)]
        others = [torch.sin(2 * s), torch.sin(s), torch.cos(2 * s)]
    else:
        diagonal = [torch.cos(s + 2 * math.pi * i / dimension) for i in range(dimension)]
        others = [torch.sin(2 * s + 2 * math.pi * p / len(pairs)) for p in range(len(pairs))]
    target = s.new_empty((*s.shape, dimension, dimension))
    for i, entry in enumerate(diagonal):
        target[..., i, i] = 2 + 1.5 * entry
    for (i, j), entry in zip(pairs, others, strict=True):
        target[..., i, j] = entry
        target[..., j, i] = entry
    return target


def _check_phases(phases: Any, num_heads: int) -> Tensor:
    if isinstance(phases, str):
        if phases == "shared":
            return torch.zeros(num_heads, dtype=torch.float64, device="cpu")
        if phases == "spread":
            return torch.arange(num_heads, dtype=torch.float64, device="cpu") * (2 * math.pi / num_heads)
        raise InvalidInput(f'phases must be "spread", "shared" or a tensor of shape ({num_heads},), got {phases!r}')
    angles = as_float_tensor(phases, "phases", dtype=torch.float64).to("cpu")
    if tuple(angles.shape) != (num_heads,):
        raise InvalidInput(f"phases have shape {tuple(angles.shape)}; for {num_heads} heads: ({num_heads},)")
    check_finite(angles, "phases")
    return angles
