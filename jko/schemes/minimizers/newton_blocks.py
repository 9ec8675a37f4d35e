"""A Newton preconditioner of one small block per particle."""

from __future__ import annotations

import torch
from torch import Tensor

from jko.schemes.objective import StepProblem, Trial

__all__ = ["newton_blocks"]

# A block is used only where it is safely positive definite; elsewhere the plain fixed point is the better model.
_LEAST_EIGENVALUE = 0.3
# Blocks of more than two tangent coordinates go through LAPACK one by one, which soon costs more than it saves.
_MANY_BLOCKS = 4096


def newton_blocks(problem: StepProblem, origin: Trial) -> Tensor | None:
    """Return matrices (G, n, d, d) that turn a defect of the fixed point at xi = 0 into a Newton step per particle.

    The block of particle i is the inverse of I + (tau/b_i) Hess phi(x_i) on its tangent space, phi the first
    variation with the measure held fixed; the curvature of the manifold is part of the Hessian. None where the trial
    carries no curvature, or where the blocks would cost more than they save.
    """
    if origin.curvature is None:
        return None
    y = problem.measure.points
    basis = problem.manifold.tangent_basis(y)
    rank = basis.shape[-1]
    if rank == 0 or (rank > 2 and origin.curvature.shape[:2].numel() > _MANY_BLOCKS):
        return None
    directions = basis.mT
    bent = problem.manifold.exp_adjoint_derivative(
        y[:, None], torch.zeros_like(directions), origin.ambient[..., None, :], directions
    )
    hessian = basis.mT @ (origin.curvature @ basis) + bent @ basis
    identity = torch.eye(rank, dtype=y.dtype, device=y.device)
    blocks = identity + (problem.tau / problem.mobility)[..., None, None] * (hessian + hessian.mT) / 2
    least = _least_eigenvalue(blocks)
    safe = (least > _LEAST_EIGENVALUE)[..., None, None]
    inverse = _inverse(torch.where(safe, blocks, identity))
    return basis @ inverse @ basis.mT


def _least_eigenvalue(blocks: Tensor) -> Tensor:
    if blocks.shape[-1] == 1:
        return blocks[..., 0, 0]
    if blocks.shape[-1] == 2:
        half_trace = (blocks[..., 0, 0] + blocks[..., 1, 1]) / 2
        half_gap = (blocks[..., 0, 0] - blocks[..., 1, 1]) / 2
        return half_trace - torch.hypot(half_gap, blocks[..., 0, 1])
    finite = torch.isfinite(blocks).all(-1).all(-1)
    guarded = torch.where(finite[..., None, None], blocks, torch.zeros_like(blocks))
    return torch.linalg.eigvalsh(guarded)[..., 0]


def _inverse(blocks: Tensor) -> Tensor:
    if blocks.shape[-1] == 1:
        return blocks.reciprocal()
    if blocks.shape[-1] == 2:
        a, b, d = blocks[..., 0, 0], blocks[..., 0, 1], blocks[..., 1, 1]
        adjugate = torch.stack([torch.stack([d, -b], -1), torch.stack([-b, a], -1)], -2)
        return adjugate / (a * d - b * b)[..., None, None]
    return torch.linalg.inv(blocks)
