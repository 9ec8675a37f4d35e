"""The weighted metric of the paper as plain functions of tensors: no flow, no state.

Shapes: head fields (*batch, H, n, d), mobilities (*batch, H, n), points (*batch, n, d), weights (n,) or (*batch, n)
(None: 1/n), head weights (H,) (None: 1/H). Equation numbers are those of Massucco et al. 2026, "Multi-Headed
Transformer Architectures as Time-dependent Wasserstein Gradient Flows".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.averages import head_average
from jko.errors import InvalidInput
from jko.reductions import Auto

__all__ = [
    "ValueDefect",
    "covariance_defect",
    "effective_mobility",
    "head_mobility",
    "horizontal_lift",
    "metric_speed",
    "symmetry_defect",
    "upper_gradient",
    "value_defect",
    "weighted_gradient",
]


def head_mobility(points: Tensor, D: Tensor, weights: Tensor | None = None, *, at: Tensor | None = None) -> Tensor:
    """Return the head mobilities m_h(x) = sum_j w_j exp<x, D_h x_j>, eq. (28), the softmax denominators.

    Args:
        points: particles x_j, shape (*batch, n, d).
        D: head matrices, shape (*batch, H, d, d).
        weights: masses w_j; None means 1/n.
        at: evaluation points x, shape (*batch, m, d); None means the particles themselves.

    Returns:
        Shape (*batch, H, n), or (*batch, H, m) at other points.

    Raises:
        InvalidInput: when the shapes do not fit together.
    """
    if points.ndim < 2:
        raise InvalidInput(f"points must have shape (*batch, n, d), got {tuple(points.shape)}")
    if D.ndim < 3 or D.shape[-2:] != (points.shape[-1],) * 2:
        raise InvalidInput(
            f"D has shape {tuple(D.shape)}; for points of shape {tuple(points.shape)} it must be "
            f"(*batch, H, {points.shape[-1]}, {points.shape[-1]})"
        )
    if at is not None and (at.ndim < 2 or at.shape[-1] != points.shape[-1]):
        raise InvalidInput(f"at must have shape (*batch, m, {points.shape[-1]}), got {tuple(at.shape)}")
    w = _particle_weights(points[..., 0], weights)
    leading = (points.shape[:-2], D.shape[:-3], w.shape[:-1], at.shape[:-2] if at is not None else ())
    batch = torch.broadcast_shapes(*leading)
    x = points.expand(*batch, *points.shape[-2:]).reshape(-1, *points.shape[-2:])
    z = x if at is None else at.to(points).expand(*batch, *at.shape[-2:]).reshape(-1, *at.shape[-2:])
    heads = D.to(points).expand(*batch, *D.shape[-3:]).reshape(-1, *D.shape[-3:])
    masses = w.expand(*batch, points.shape[-2]).reshape(-1, points.shape[-2])
    rows = [Auto().cross_mass(z[k], x[k], masses[k], heads[k]) for k in range(x.shape[0])]
    return torch.stack(rows).reshape(*batch, *rows[0].shape)


def effective_mobility(mobility: Tensor, head_weights: Tensor | None = None) -> Tensor:
    """Return b(x) = 1 / mean_h(1 / m_h(x)), eq. (36): the harmonic mean over heads, shape (*batch, n)."""
    return head_average(mobility.reciprocal(), head_weights).reciprocal()


def horizontal_lift(velocity: Tensor, mobility: Tensor, head_weights: Tensor | None = None) -> Tensor:
    """Return the horizontal lift b v / m_h of a velocity (*batch, n, d), eq. (38): the cheapest head velocities.

    Their head average is the velocity, and their cost mean_h sum w m_h |v_h|^2 is sum w b |v|^2.
    """
    share = effective_mobility(mobility, head_weights)[..., None, :] / mobility
    return share[..., None] * velocity[..., None, :, :]


def weighted_gradient(head_gradient: Tensor, mobility: Tensor, head_weights: Tensor | None = None) -> Tensor:
    """Return the descended gradient b mean_h(grad_h / m_h), eq. (102), shape (*batch, n, d)."""
    normalized = head_average(head_gradient / mobility[..., None], head_weights, axis=-3)
    return effective_mobility(mobility, head_weights)[..., None] * normalized


def upper_gradient(
    head_gradient: Tensor, mobility: Tensor, weights: Tensor | None = None, head_weights: Tensor | None = None
) -> Tensor:
    """Return G = (sum_i w_i b |mean_h(DK_h / m_h)|^2)^(1/2), Lemma 4.12, shape (*batch,).

    For H >= 2 heads with different mobilities this is not an upper gradient of the energy: see `covariance_defect`.
    """
    normalized = head_average(head_gradient / mobility[..., None], head_weights, axis=-3)
    return metric_speed(normalized, mobility, weights, head_weights)


def metric_speed(
    velocity: Tensor, mobility: Tensor, weights: Tensor | None = None, head_weights: Tensor | None = None
) -> Tensor:
    """Return (sum_i w_i b(x_i) |v_i|^2)^(1/2), the metric derivative of Lemma 3.8, shape (*batch,)."""
    squared = effective_mobility(mobility, head_weights) * velocity.square().sum(-1)
    masses = _particle_weights(squared, weights)
    return (masses * squared).masked_fill(masses == 0, 0.0).sum(-1).sqrt()


def covariance_defect(head_gradient: Tensor, mobility: Tensor, head_weights: Tensor | None = None) -> Tensor:
    """Return Cov_h(1/m_h, DK_h) = v_B - v_T, shape (*batch, n, d).

    It is the difference between the velocity that the weighted minimizing movement follows, v_B = -(1/b) mean DK_h,
    and the transformer's, v_T = -mean_h(DK_h / m_h). It vanishes for one head and for equal mobilities.
    """
    inverse = mobility.reciprocal()
    product = head_average(head_gradient * inverse[..., None], head_weights, axis=-3)
    means = head_average(inverse, head_weights)[..., None] * head_average(head_gradient, head_weights, axis=-3)
    return product - means


@final
@dataclass(frozen=True, slots=True, eq=False)
class ValueDefect:
    """How far value matrices are from multiples of the head matrices.

    Attributes:
        defect: min_c |V_h - c D_h| in the Frobenius norm, shape (*batch, H).
        factor: the minimizing c, shape (*batch, H); 0 where D_h = 0.
    """

    defect: Tensor
    factor: Tensor


def symmetry_defect(D: Tensor) -> Tensor:
    """Return |D_h - D_h^T| in the Frobenius norm, shape (*batch, H).

    Zero exactly where the attention output with V = D is the gradient of the energy over the mobility.
    """
    _check_matrices(D, "D")
    difference: Tensor = torch.linalg.matrix_norm(D - D.mT)
    return difference


def value_defect(V: Tensor, D: Tensor) -> ValueDefect:
    """Return min_c |V_h - c D_h| per head and the factors c.

    Where it vanishes and D_h is symmetric, the attention output of head h is c times DK_h / m_h.

    Args:
        V: value matrices, shape (*batch, H, d, d).
        D: head matrices, shape (*batch, H, d, d).

    Raises:
        InvalidInput: when the shapes do not fit together.
    """
    _check_matrices(V, "V")
    _check_matrices(D, "D")
    if V.shape[-3:] != D.shape[-3:]:
        raise InvalidInput(f"V has shape {tuple(V.shape)}, but D has {tuple(D.shape)}: one value matrix a head")
    squared = D.square().sum((-2, -1))
    zero = squared == 0
    factor = torch.where(zero, 0.0, (V * D).sum((-2, -1)) / torch.where(zero, 1.0, squared))
    return ValueDefect(torch.linalg.matrix_norm(V - factor[..., None, None] * D), factor)


def _check_matrices(matrices: Tensor, name: str) -> None:
    if matrices.ndim < 3 or matrices.shape[-1] != matrices.shape[-2]:
        raise InvalidInput(f"{name} must have shape (*batch, H, d, d), got {tuple(matrices.shape)}")


def _particle_weights(values: Tensor, weights: Tensor | None) -> Tensor:
    """Weights for values of shape (*batch, n): 1/n where none are given."""
    n = values.shape[-1]
    if weights is None:
        return torch.full((n,), 1.0 / n, dtype=values.dtype, device=values.device)
    if weights.shape[-1:] != (n,):
        raise InvalidInput(f"weights have shape {tuple(weights.shape)}, but there are {n} particles")
    return weights.to(values)
