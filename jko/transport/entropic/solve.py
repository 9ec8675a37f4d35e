"""One entropic transport between weighted clouds, tracers and orientation included; and that of a cloud to itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.transport.cost import GroundCost
from jko.transport.entropic.anneal import anneal
from jko.transport.entropic.choose import make_kernel
from jko.transport.entropic.field import EntropicField, entropic_field
from jko.transport.entropic.symmetric import ascend_symmetric

__all__ = ["CrossTransport", "EntropicSettings", "SelfTransport", "cross_transport", "self_transport"]

# Largest rounding of potentials in units of eps: what the plan loses.
_LOST = 1e-6


@final
@dataclass(frozen=True, slots=True, eq=False)
class EntropicSettings:
    """What `Sinkhorn` says about the solution of one transport; see there."""

    eps: float
    tolerance: float
    most: int
    scaling: float
    lazy: bool | None
    keops: bool | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class CrossTransport:
    """An entropic transport; where the error is above the tolerance, only error and iterations say anything.

    Attributes:
        source_potential: u, shape (n,), tracers included.
        target: v and its gradient in the targets, (m,) and (m, d), tracers included.
        value: <a, u> + <w, v>.
        error: L^1 error of one marginal; the other one is exact.
        iterations: sums over the kernel in both directions.
        detail: why potentials with a small error are of no use all the same; the error is inf then.
    """

    source_potential: Tensor
    target: EntropicField
    value: float
    error: float
    iterations: int
    detail: str = ""


@final
@dataclass(frozen=True, slots=True, eq=False)
class SelfTransport:
    """Entropic transport of a cloud to itself.

    Attributes:
        potential: that of both sides, shape (n,), tracers included.
        value: the transport cost.
        error: L^1 error of the marginals.
        iterations: sums over the kernel.
    """

    potential: Tensor
    value: float
    error: float
    iterations: int


def cross_transport(
    cost: GroundCost, a: Tensor, w: Tensor, settings: EntropicSettings, guess: tuple[Tensor, Tensor] | None
) -> CrossTransport:
    """Solve the transport of weights a at the sources to w at the targets, from potentials (u, v) if given."""
    rows, columns = a > 0, w > 0
    part = cost if bool(rows.all() & columns.all()) else cost.restricted(rows, columns)
    largest = part.largest()
    if not math.isfinite(largest):
        return _unsolved(cost, math.nan, 0)
    # Newton's equation is as large as the columns are many: the smaller side.
    flipped = part.shape[1] > part.shape[0]
    sides = (w[columns], a[rows]) if flipped else (a[rows], w[columns])
    kernel = make_kernel(part.swapped() if flipped else part, *sides, lazy=settings.lazy, keops=settings.keops)
    start = None if guess is None else (guess[0][rows] if flipped else guess[1][columns])
    found = anneal(
        kernel,
        settings.eps,
        largest=largest,
        scaling=settings.scaling,
        tolerance=settings.tolerance,
        most=settings.most,
        guess=start,
    )
    # The field needs memory of its own.
    del kernel
    point, detail = found.point, ""
    error = point.error if point.eps == settings.eps else math.inf
    lost = 4 * torch.finfo(torch.float64).eps * float(point.v.abs().amax()) / settings.eps
    if lost > _LOST:
        error, detail = (
            math.inf,
            f"rounding moves potentials of this size by {lost:.1g} eps; raise eps, or use ExactOT()",
        )
    if not error <= settings.tolerance:
        return _unsolved(cost, error, found.iterations, detail)
    u = torch.zeros_like(a).masked_scatter(rows, point.v if flipped else point.u)
    # One more update of v makes the targets exact, which their gradients rely on.
    target = entropic_field(cost.swapped(), u, a, settings.eps)
    if not bool(rows.all()):
        u = torch.where(rows, u, entropic_field(cost, target.potential, w, settings.eps).potential)
    return CrossTransport(u, target, float(a @ u + w @ target.potential), error, found.iterations)


def self_transport(
    cost: GroundCost, w: Tensor, settings: EntropicSettings, guess: Tensor | None = None
) -> SelfTransport:
    """Solve the transport of weights w to themselves for a symmetric cost, from a potential if given."""
    massive = w > 0
    full = bool(massive.all())
    part = cost if full else cost.restricted(massive, massive)
    weights = w[massive]
    kernel = make_kernel(part, weights, weights, lazy=settings.lazy, keops=settings.keops)
    start = None if guess is None else guess[massive]
    found = ascend_symmetric(kernel, settings.eps, tolerance=settings.tolerance, most=settings.most, guess=start)
    del kernel
    potential = torch.zeros_like(w).masked_scatter(massive, found.potential)
    if not full:
        potential = torch.where(massive, potential, entropic_field(cost, potential, w, settings.eps).potential)
    return SelfTransport(potential, found.value, found.error, found.iterations)


def _unsolved(cost: GroundCost, error: float, iterations: int, detail: str = "") -> CrossTransport:
    nothing = EntropicField(torch.full_like(cost.target[:, 0], math.nan), torch.full_like(cost.target, math.nan))
    return CrossTransport(torch.full_like(cost.source[:, 0], math.nan), nothing, math.nan, error, iterations, detail)
