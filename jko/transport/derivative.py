"""Gradients of a transport cost in the particles of either side, for a plan with few entries or an entropic one."""

from __future__ import annotations

import torch
from torch import Tensor

from jko.transport.base import Coupling, TransportSolution, normalized
from jko.transport.cost import GroundCost
from jko.transport.entropic.field import entropic_field

__all__ = ["coupling_gradient", "source_gradient", "source_weight_gradient"]


def coupling_gradient(cost: GroundCost, coupling: Coupling, weights: Tensor, other: Tensor | None) -> Tensor:
    """Return the gradient per unit mass at the sources of a cost, shape (n, d), for a plan with few entries.

    A source without mass gets the gradient for the target it would choose by the potential: the limit for small
    weights, where the choice is unique.

    Args:
        cost: sources are the particles that move.
        coupling: rows are sources.
        weights: of the sources, shape (n,).
        other: potential of the targets, shape (m,); without one, tracers get 0.
    """
    rows, columns = coupling.rows, coupling.columns
    shares = coupling.masses / weights[rows]
    gradient = torch.zeros_like(cost.source)
    gradient.index_add_(0, rows, shares[:, None] * cost.pair_gradients(rows, columns))
    tracers = (weights == 0).nonzero()[:, 0]
    if other is not None and tracers.numel():
        every = torch.arange(cost.shape[1], device=tracers.device)
        part = cost.restricted(tracers, every)
        chosen = torch.cat([(part.block(block) - other).argmin(1) for block in part.blocks()])
        gradient[tracers] = cost.pair_gradients(tracers, chosen)
    return gradient


def source_gradient(solution: TransportSolution) -> Tensor:
    """Return the derivative of the value in y_j per unit mass, tangent at y_j, shape (n, d); mobilities are held fixed.

    The counterpart of `solution.gradient` for the source.
    """
    problem = solution.problem
    cost, a, w = problem.cost(), normalized(problem.source.weights), normalized(problem.target.weights)
    v = solution.target_potential
    if solution.coupling is not None:
        gradient = coupling_gradient(cost, solution.coupling, a, v)
    else:
        assert v is not None
        gradient = entropic_field(cost, v, w, solution.eps).gradient
        if solution.self_transports:
            f = solution.self_transports[0].potential
            gradient = gradient - entropic_field(cost.among_sources(), f, a, solution.eps).gradient
    return gradient.to(problem.source.dtype)


def source_weight_gradient(solution: TransportSolution) -> Tensor:
    """Return the derivative of the value in the weights of the source, shape (n,), shifted to sum 0.

    The counterpart of `solution.weight_gradient`, for a solution with potentials.
    """
    first = solution.source_potential
    assert first is not None
    if solution.self_transports:
        first = first - solution.self_transports[0].potential
    return (first - first.mean()).to(solution.problem.source.dtype)
