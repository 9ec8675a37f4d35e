"""The path to a small eps: from a fraction of the largest cost downwards, potentials extrapolated in eps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from jko.transport.entropic.ascent import Ascent, ascend
from jko.transport.entropic.base import AbstractGibbsKernel

__all__ = ["anneal"]

# A guess of the potentials with at least this much of the mass in place needs no path.
_NEAR = 0.5
_SHARE = 5
_FIRST = 0.25
_STAGE_TOLERANCE = 1e-2
# Where the path has this many stages, a look at potentials of 0 is cheap: right where hardly anything moves.
_LONG = 5


def anneal(
    kernel: AbstractGibbsKernel,
    eps: float,
    *,
    largest: float,
    scaling: float,
    tolerance: float,
    most: int,
    guess: Tensor | None = None,
) -> Ascent:
    """Maximize the dual at `eps`, by way of larger ones unless the guess is near.

    The dual potentials are smooth in eps, so each stage starts on the line through the last two.

    Args:
        kernel: the sums.
        eps: strength of the entropy.
        largest: about the largest cost; the path starts at a quarter of it, and directly at eps where that is larger.
        scaling: factor from one eps to the next, at most.
        tolerance: error of the columns that ends the ascent.
        most: limit of iterations of all stages together; where it is met early, the point belongs to a larger eps.
        guess: potential of the columns, shape (m,).
    """
    b, spent = kernel.column_weights, 0
    first = max(eps, _FIRST * largest)
    span = math.log(first) - math.log(eps)
    stages = math.ceil(span / -math.log(scaling))
    if guess is None and stages >= _LONG:
        guess = torch.zeros_like(b)
    if guess is not None:
        point = kernel.evaluate(guess, eps)
        spent = 1
        if point.error < _NEAR:
            found = ascend(kernel, point, tolerance, max(1, most // _SHARE))
            spent += found.iterations
            if found.point.error <= tolerance or spent >= most:
                return Ascent(found.point, spent)
    path = [eps * math.exp(span * k / stages) for k in range(stages, 0, -1)] + [eps]
    v, direct = torch.zeros_like(b), False
    known: list[tuple[float, Tensor]] = []
    for stage in path:
        if len(known) == 2:
            (far, v_far), (near, v_near) = known
            v = v_near + (v_near - v_far) * ((stage - near) / (near - far))
        point = kernel.evaluate(v, stage)
        target = tolerance if stage == eps else _STAGE_TOLERANCE
        found = ascend(kernel, point, target, most - spent - 1, direct=direct)
        spent, direct = spent + 1 + found.iterations, found.direct
        v = found.point.v - b @ found.point.v
        known = [*known[-1:], (stage, v)]
        if spent >= most:
            break
    return Ascent(found.point, spent, direct)
