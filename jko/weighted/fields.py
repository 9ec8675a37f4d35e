"""Velocities and gradients in the weighted metric: lifts, lengths, and what separates two of its velocities."""

from __future__ import annotations

from torch import Tensor

from jko.averages import head_average, mass_average, normalized_average
from jko.checks import check_tensors
from jko.weighted.mobility import effective_mobility, particle_weights

__all__ = ["covariance_defect", "horizontal_lift", "metric_speed", "upper_gradient", "weighted_gradient"]


def horizontal_lift(velocity: Tensor, mobility: Tensor, head_weights: Tensor | None = None) -> Tensor:
    """Return the horizontal lift b v / m_h of a velocity (*batch, n, d), eq. (38): the cheapest head velocities.

    Their head average is the velocity, and their cost mean_h sum w m_h |v_h|^2 is sum w b |v|^2.
    """
    check_tensors(velocity=velocity, mobility=mobility)
    share = effective_mobility(mobility, head_weights)[..., None, :] / mobility
    return share[..., None] * velocity[..., None, :, :]


def weighted_gradient(head_gradient: Tensor, mobility: Tensor, head_weights: Tensor | None = None) -> Tensor:
    """Return the descended gradient b mean_h(grad_h / m_h), eq. (102), shape (*batch, n, d)."""
    check_tensors(head_gradient=head_gradient, mobility=mobility)
    normalized = normalized_average(head_gradient, mobility, head_weights)
    return effective_mobility(mobility, head_weights)[..., None] * normalized


def upper_gradient(
    head_gradient: Tensor, mobility: Tensor, weights: Tensor | None = None, head_weights: Tensor | None = None
) -> Tensor:
    """Return G = (sum_i w_i b |mean_h(DK_h / m_h)|^2)^(1/2), Lemma 4.12, shape (*batch,).

    For H >= 2 heads with different mobilities this is not an upper gradient of the energy: see `covariance_defect`.
    """
    check_tensors(head_gradient=head_gradient, mobility=mobility)
    return metric_speed(normalized_average(head_gradient, mobility, head_weights), mobility, weights, head_weights)


def metric_speed(
    velocity: Tensor, mobility: Tensor, weights: Tensor | None = None, head_weights: Tensor | None = None
) -> Tensor:
    """Return (sum_i w_i b(x_i) |v_i|^2)^(1/2), the metric derivative of Lemma 3.8, shape (*batch,)."""
    check_tensors(velocity=velocity, mobility=mobility)
    squared = effective_mobility(mobility, head_weights) * velocity.square().sum(-1)
    return mass_average(particle_weights(squared, weights), squared).sqrt().to(squared.dtype)


def covariance_defect(head_gradient: Tensor, mobility: Tensor, head_weights: Tensor | None = None) -> Tensor:
    """Return Cov_h(1/m_h, DK_h) = v_B - v_T, shape (*batch, n, d).

    It is the difference between the velocity that the weighted minimizing movement follows, v_B = -(1/b) mean DK_h,
    and the transformer's, v_T = -mean_h(DK_h / m_h) of eq. (81). It vanishes for one head and for equal mobilities.
    """
    check_tensors(head_gradient=head_gradient, mobility=mobility)
    product = normalized_average(head_gradient, mobility, head_weights)
    inverse = head_average(mobility.reciprocal(), head_weights)
    return product - inverse[..., None] * head_average(head_gradient, head_weights, axis=-3)
