"""Exact transport costs between particle measures, for checking and for distances between results."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from jko.checks import check_simplex
from jko.errors import InvalidInput, JKOError
from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure, check_measure
from jko.transport.cost import GroundCost
from jko.transport.network import assigned, is_assignment, network_simplex

__all__ = ["ground_cost", "optimal_cost", "squared_wasserstein"]


def ground_cost(source: Tensor, target: Tensor, manifold: AbstractManifold, mobility: Tensor | None = None) -> Tensor:
    """Return the matrix b_i d^2(x_k, y_i) of shape (n, m), float64 on the CPU; y is the source, x the target."""
    y, x = (points.to("cpu", torch.float64) for points in (source, target))
    return GroundCost(y, x, manifold, None if mobility is None else mobility.to(y)).matrix()


def optimal_cost(cost: Tensor, source_weights: Tensor, target_weights: Tensor) -> float:
    """Return min <P, C> over couplings of two weight vectors.

    The solver is chosen as by `ExactOT`: an assignment, or the network simplex of POT.

    Raises:
        InvalidInput: for a cost that is not finite, weights that do not fit it or are not on the simplex.
        JKOError: when the network simplex does not finish; a half-finished plan is no answer.
    """
    matrix = cost.detach().to("cpu", torch.float64).numpy()
    check_simplex(source_weights, "source_weights")
    check_simplex(target_weights, "target_weights")
    a, b = (w.to("cpu", torch.float64).numpy() for w in (source_weights, target_weights))
    if matrix.shape != (a.size, b.size) or not np.isfinite(matrix).all():
        raise InvalidInput(
            f"the cost must be finite and have shape ({a.size}, {b.size}), got {matrix.shape}"
            + ("" if np.isfinite(matrix).all() else " with non-finite entries")
        )
    if is_assignment(matrix, a, b):
        return float(matrix[assigned(matrix)].mean())
    plan = network_simplex(matrix, a, b)
    if plan.failure:
        raise JKOError(f"exact transport between {a.size} and {b.size} particles: {plan.failure}")
    return float((plan.masses * matrix[plan.rows, plan.columns]).sum())


def squared_wasserstein(mu: ParticleMeasure, nu: ParticleMeasure, manifold: AbstractManifold) -> float:
    """Return the exact W_2^2(mu, nu) between two unbatched measures, in squared units of length."""
    for measure, name in ((mu, "mu"), (nu, "nu")):
        check_measure(measure, name)
        if measure.batch_shape:
            raise InvalidInput(f"{name} has batch shape {tuple(measure.batch_shape)}; pass one measure at a time")
        manifold.check(measure.points, f"{name}.points")
    if mu.d != nu.d:
        raise InvalidInput(f"the measures live in R^{mu.d} and R^{nu.d}; they need the same d")
    return optimal_cost(ground_cost(mu.points, nu.points, manifold), mu.weights, nu.weights)
