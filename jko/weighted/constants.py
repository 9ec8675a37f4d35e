"""Constants between which the weighted distance and the plain one are equivalent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.averages import head_average
from jko.checks import check_tensors
from jko.errors import InvalidInput

__all__ = ["EquivalenceConstants", "equivalence_constants"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class EquivalenceConstants:
    """Constants with lower W_2 <= W_{m,2} <= upper W_2 for all measures on the unit sphere.

    Attributes:
        lower: C1 = sqrt(c), shape (*batch,).
        upper: C2 = sqrt(cbar), shape (*batch,).
    """

    lower: Tensor
    upper: Tensor


def equivalence_constants(D: Tensor, head_weights: Tensor | None = None) -> EquivalenceConstants:
    """Return C1 = (mean_h e^{|D_h|})^(-1/2) and C2 = (mean_h e^{-|D_h|})^(-1/2), Prop. 3.7, with spectral norms |D_h|.

    On the unit sphere -|D_h| <= <x, D_h y> <= |D_h|, and both ends are attained, for symmetric D_h as for others. So
    e^{-|D_h|} <= m_h <= e^{|D_h|} for every measure, and c <= b <= cbar follows from eq. (36). One head attains both
    bounds of b; several heads attain one where a pair of points is extreme for all of them at once.

    Args:
        D: head matrices, shape (*batch, H, d, d).
        head_weights: weights of the heads, shape (H,); None means 1/H. A head of weight 0 is left out.

    Raises:
        InvalidInput: when the shapes do not fit together.
    """
    check_tensors(D=D)
    if D.ndim < 3 or D.shape[-1] != D.shape[-2]:
        raise InvalidInput(f"D must have shape (*batch, H, d, d), got {tuple(D.shape)}")
    norms: Tensor = torch.linalg.matrix_norm(D, ord=2)
    if head_weights is not None:
        check_tensors(head_weights=head_weights)
        if head_weights.shape == norms.shape[-1:]:
            active = head_weights != 0
            norms, head_weights = norms[..., active], head_weights[active]
    # The largest exponent comes out of each average: e^{|D|} may overflow where its root does not.
    largest, smallest = norms.amax(-1), norms.amin(-1)
    steep = head_average((norms - largest[..., None]).exp(), head_weights, axis=-1)
    flat = head_average((smallest[..., None] - norms).exp(), head_weights, axis=-1)
    return EquivalenceConstants((-largest / 2).exp() * steep.rsqrt(), (smallest / 2).exp() * flat.rsqrt())
