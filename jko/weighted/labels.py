"""Which particle ends where: assignments among particles of equal weight."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from jko.averages import harmonic_mean
from jko.manifolds import AbstractManifold
from jko.numerics import row_sum
from jko.weighted.mobility import head_mobility

__all__ = ["best_labels", "interchangeable", "midpoint_cost"]

# Assignments that differ by less are equally good, and the given one is kept.
_TIE = 1e-12


def interchangeable(weights: Tensor) -> Tensor:
    """Return which particles may exchange their ends, shape (n, n): those of equal weight, but no tracers."""
    equal = (weights[:, None] - weights).abs() <= _TIE * weights.amax()
    massive = weights > 0
    return equal & massive & massive[:, None] | torch.eye(len(weights), dtype=torch.bool, device=weights.device)


def best_labels(cost: Tensor, allowed: Tensor, labels: Tensor) -> Tensor:
    """Return the cheapest assignment i -> labels[i] among the allowed ones; the given one if it is as cheap.

    Args:
        cost: cost of moving particle i to end j, shape (n, n); inf where there is no path.
        allowed: shape (n, n).
        labels: an allowed assignment.
    """
    from scipy.optimize import linear_sum_assignment

    matrix = torch.where(allowed, cost, torch.inf).cpu().numpy()
    current = labels.cpu().numpy()
    rows = np.arange(len(matrix))
    try:
        _, columns = linear_sum_assignment(matrix)
    except ValueError:
        # Every assignment needs an end that cannot be reached.
        return labels
    best, given = float(matrix[rows, columns].sum()), float(matrix[rows, current].sum())
    return labels if given <= best + _TIE * abs(best) else torch.from_numpy(columns).to(labels)


def midpoint_cost(
    start: Tensor,
    end: Tensor,
    weights: Tensor,
    D: Tensor,
    head_weights: Tensor,
    middle: Tensor,
    manifold: AbstractManifold,
) -> Tensor:
    """Return w_i b(y_ij) d^2(x_i, z_j), with y_ij the middle of the pair and b the mobility of the atoms `middle`.

    Shape (n, n); inf for antipodal pairs.
    """
    squared = manifold.squared_distance(start[:, None], end[None])
    sums = start[:, None] + end[None]
    antipodal = row_sum(sums.square()) <= 1e-24 if np.isfinite(manifold.injectivity_radius) else squared < 0
    y = manifold.project_point(torch.where(antipodal[..., None], 2 * start[:, None], sums) / 2)
    mass = head_mobility(middle, D, weights, at=y.flatten(0, 1))
    b = harmonic_mean(mass, head_weights).reshape(squared.shape)
    return torch.where(antipodal, torch.inf, weights[:, None] * b * squared)
