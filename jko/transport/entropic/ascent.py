"""The ascent of the dual at one eps: updates in turn, then Newton steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.transport.entropic.base import AbstractGibbsKernel, DualPoint

__all__ = ["Ascent", "ascend"]

# Newton steps start here, and only where updates in turn are slower than this factor a turn.
_NEAR = 0.5
_FAST = 0.6
_SMALLEST_RATIO = -12.0
_DAMPING = 1e-3
_LONGEST = 100.0
_ARMIJO = 1e-4
_SHORTER = 0.4
_LONGER = 4.0
_SHORTEST = 1e-4
_ROUNDING = 1e-14
# Newton matrices of more columns are not formed. Forming and factoring one costs as much as m / 8 products and a few.
_LARGEST_SYSTEM = 4096
_PRODUCTS = 10
_COLUMNS_PER_PRODUCT = 8
_MOST_PRODUCTS = 200
_MOST_PRODUCTS_ALONE = 1000


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ascent:
    """Where the ascent ended: the last point, and the sums over the kernel in both directions that it took."""

    point: DualPoint
    iterations: int
    direct: bool = False


def ascend(
    kernel: AbstractGibbsKernel, point: DualPoint, tolerance: float, most: int, *, direct: bool = False
) -> Ascent:
    """Raise the dual from a point until the error is at most `tolerance`, or `most` iterations are spent.

    An update of both potentials in turn is a diagonally preconditioned gradient step, contracting by 1 - O(gap) of the
    plan; it is kept while it is fast. Then Newton's equation (diag(c) - P^T diag(1/a) P) d = eps (b - c) of the columns
    c is solved by conjugate gradients, and where these are slow by a factorization; the step is shortened until the
    dual rises.

    Args:
        kernel: the sums.
        point: where to start.
        tolerance: error that ends the ascent.
        most: limit of iterations.
        direct: whether conjugate gradients proved slow at a larger eps.
    """
    spent, rate = 0, 0.0
    while math.isfinite(point.error) and point.error > tolerance and spent < most:
        newton = point.error < _NEAR and rate > _FAST and float(point.log_ratio.amin()) > _SMALLEST_RATIO
        if not newton:
            following = kernel.evaluate(point.v - point.eps * point.log_ratio, point.eps)
            spent, rate = spent + 1, following.error / point.error
            point = following
            continue
        step, products, direct = _newton_step(kernel, point, tolerance, most - spent, direct=direct)
        spent += products
        found, trials = _line_search(kernel, point, step)
        spent += trials
        # A step that does not rise, or hardly lowers the error, is followed by an update in turn.
        rate = 1.0 if found is not None and found.error < 0.9 * point.error else 0.0
        point = point if found is None else found
    return Ascent(point, spent, direct)


def _newton_step(
    kernel: AbstractGibbsKernel, point: DualPoint, tolerance: float, most: int, *, direct: bool
) -> tuple[Tensor, int, bool]:
    """Return the damped Newton step, the products that it took, and whether a factorization was used."""
    b = kernel.column_weights
    c = b * point.log_ratio.exp()
    gradient, damping = b - c, _DAMPING * point.error
    step, products, m = gradient / c, 0, b.shape[0]
    if not direct:
        factorable = m <= _LARGEST_SYSTEM
        limit = min(_MOST_PRODUCTS, _PRODUCTS + m // _COLUMNS_PER_PRODUCT) if factorable else _MOST_PRODUCTS_ALONE
        target = max(min(0.2, math.sqrt(point.error)) * point.error, 0.3 * tolerance)
        step, products, solved = _conjugate_gradients(kernel, point, gradient, c, damping, target, min(limit, most))
        direct = factorable and not solved
    if direct:
        step, products = _factored(kernel.transfer_matrix(point, c.rsqrt()), gradient, c, damping), products + 1
    # Constants do nothing; without them potentials stay small.
    return point.eps * (step - c @ step), products, direct


def _conjugate_gradients(
    kernel: AbstractGibbsKernel,
    point: DualPoint,
    gradient: Tensor,
    c: Tensor,
    damping: float,
    target: float,
    limit: int,
) -> tuple[Tensor, int, bool]:
    """Solve ((1 + damping) diag(c) - P^T diag(1/a) P) d = gradient, preconditioned by diag(c), to an L^1 residual."""
    transfer, diagonal = kernel.transfer(point), (1 + damping) * c
    step, residual = torch.zeros_like(c), gradient
    ahead = residual / c
    direction, size = ahead, float(residual @ ahead)
    for products in range(1, limit + 1):
        image = diagonal * direction - transfer(direction)
        bend = float(direction @ image)
        if not bend > 0:
            return step, products, False
        step = step + size / bend * direction
        residual = residual - size / bend * image
        if float(residual.abs().sum()) <= target:
            return step, products, True
        ahead = residual / c
        previous, size = size, float(residual @ ahead)
        direction = ahead + size / previous * direction
    return step, limit, False


def _factored(matrix: Tensor, gradient: Tensor, c: Tensor, damping: float) -> Tensor:
    """Solve the same equation by a Cholesky factorization, with more damping where rounding makes it indefinite."""
    root = c.sqrt()
    # The constants, which the matrix does not see, get the eigenvalue 1.
    matrix = torch.addr(matrix.neg_(), root, root)
    diagonal = matrix.diagonal()
    diagonal.add_(1 + damping)
    factor, info = torch.linalg.cholesky_ex(matrix)
    while int(info) and damping < 1:
        damping = max(10 * damping, 1e-14)
        diagonal.add_(damping)
        factor, info = torch.linalg.cholesky_ex(matrix)
    return torch.cholesky_solve((gradient / root)[:, None], factor)[:, 0] / root


def _line_search(kernel: AbstractGibbsKernel, point: DualPoint, step: Tensor) -> tuple[DualPoint | None, int]:
    """Shorten the step until the dual rises, or lengthen a long one while it does; None where it does not rise."""
    b, eps = kernel.column_weights, point.eps
    slope, largest = torch.stack([b @ (torch.expm1(point.log_ratio) * step), step.abs().amax()]).tolist()
    if not 0 < largest < math.inf:
        return None, 0
    # Almost separate parts of a cloud make long steps, of which the model knows the direction only.
    first = min(1.0, _LONGEST * eps / largest)
    length, trials = first, 0
    best: DualPoint | None = None
    while _SHORTEST * first <= length <= 1:
        trial = kernel.evaluate(point.v + length * step, eps)
        trials += 1
        rounding = _ROUNDING * (abs(point.value) + abs(trial.value))
        if best is None and trial.value < point.value - _ARMIJO * length * slope - rounding:
            length *= _SHORTER
            continue
        if best is not None and not (trial.value > best.value and trial.error <= best.error):
            break
        best = trial
        if length < first or first == 1:
            break
        length *= _LONGER
    return best, trials
