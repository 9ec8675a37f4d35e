"""How far heads are from those of a gradient flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.checks import check_tensors
from jko.errors import InvalidInput

__all__ = ["ValueDefect", "symmetry_defect", "value_defect"]


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

    Zero exactly where the attention output with V = D is DK_h / m_h, so that the transformer is eq. (81).
    """
    _check_matrices(D, "D")
    difference: Tensor = torch.linalg.matrix_norm(D - D.mT)
    return difference


def value_defect(V: Tensor, D: Tensor) -> ValueDefect:
    """Return min_c |V_h - c D_h| per head and the factors c.

    Where it vanishes and D_h is symmetric, the attention output of head h is c times DK_h / m_h, as in eq. (81).

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
    check_tensors(**{name: matrices})
    if matrices.ndim < 3 or matrices.shape[-1] != matrices.shape[-2]:
        raise InvalidInput(f"{name} must have shape (*batch, H, d, d), got {tuple(matrices.shape)}")
