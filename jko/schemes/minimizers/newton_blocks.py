"""A Newton preconditioner of one small block per particle."""

from __future__ import annotations

import torch
from torch import Tensor

from jko.measure import ParticleMeasure
from jko.memory import check_fits
from jko.schemes.objective import StepObjective, Trial

__all__ = ["check_blocks", "newton_blocks"]

# A block is used only where it is safely positive definite; elsewhere the plain fixed point is the better model.
_LEAST_EIGENVALUE = 0.3
# Blocks of more than two tangent coordinates go through LAPACK one by one, which soon costs more than it saves.
_MANY_BLOCKS = 4096


def newton_blocks(objective: StepObjective, origin: Trial) -> Tensor | None:
    """Return matrices (G, n, d, d) that turn a defect of the fixed point at xi = 0 into a Newton step per particle.

    The block of particle i is the inverse of I + (tau/b_i) Hess phi(x_i) on its tangent space, phi the first
    variation with the measure held fixed; the curvature of the manifold is part of the Hessian. None where the trial
    carries no curvature, or where the blocks would cost more than they save.
    """
    curvature = None if origin.evaluation is None else origin.evaluation.curvature
    if curvature is None:
        return None
    z = objective.movement.base
    basis = objective.manifold.tangent_basis(z)
    rank = basis.shape[-1]
    if rank == 0 or (rank > 2 and curvature.shape[:2].numel() > _MANY_BLOCKS):
        return None
    directions = basis.mT
    bent = objective.manifold.exp_adjoint_derivative(
        z[..., None, :], torch.zeros_like(directions), origin.ambient[..., None, :], directions
    )
    hessian = basis.mT @ (curvature @ basis) + bent @ basis
    change = (objective.tau / (2 * objective.movement.mobility))[..., None, None] * (hessian + hessian.mT)
    return basis @ _safe_inverse(change) @ basis.mT


def check_blocks(groups: int, measure: ParticleMeasure) -> None:
    """Refuse blocks that memory cannot hold, before the pass that brings their curvature."""
    if groups * measure.n > _MANY_BLOCKS and measure.d > 3:
        return
    shape = (groups, measure.n, measure.d, measure.d)
    # Curvature, basis, Hessian and its change, the bending of the manifold, inverses, and products of them.
    check_fits("the Newton blocks", shape, measure.dtype, measure.device, "take Anderson(newton=False)", copies=8)


def _safe_inverse(change: Tensor) -> Tensor:
    """Inverses of the blocks I + change where they are safe, I elsewhere; `change` is symmetric."""
    rank = change.shape[-1]
    identity = torch.eye(rank, dtype=change.dtype, device=change.device)
    blocks = identity + change
    if rank == 1:
        least, inverse = blocks[..., 0, 0], blocks.reciprocal()
    elif rank == 2:
        # Eigenvalues mean -+ radius; the adjugate of a block is its trace minus itself.
        first, second = blocks[..., 0, 0], blocks[..., 1, 1]
        mean = (first + second) / 2
        radius = torch.hypot((first - second) / 2, blocks[..., 0, 1])
        least = mean - radius
        inverse = (2 * mean[..., None, None] * identity - blocks) / (least * (mean + radius))[..., None, None]
    else:
        finite = torch.isfinite(blocks).all(-1).all(-1)
        least = torch.linalg.eigvalsh(torch.where(finite[..., None, None], blocks, torch.zeros_like(blocks)))[..., 0]
        safe = (least > _LEAST_EIGENVALUE)[..., None, None]
        return torch.linalg.inv(torch.where(safe, blocks, identity))
    return torch.where((least > _LEAST_EIGENVALUE)[..., None, None], inverse, identity)
