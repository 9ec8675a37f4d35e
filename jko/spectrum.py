"""The lowest eigenvalue of an operator that is known by its products."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["smallest_eigenvalue"]

_Vector = NDArray[np.float64]


def smallest_eigenvalue(
    product: Callable[[_Vector], _Vector], size: int, *, dense: int, tolerance: float
) -> tuple[float, _Vector]:
    """Return the smallest eigenvalue of a symmetric operator and its vector, shape (size,); NaN where not found.

    It is not found where a product is not finite, or Lanczos (ARPACK) does not converge.

    Args:
        product: the operator times a vector of shape (size,).
        size: dimension, at least 1.
        dense: up to this size the matrix is formed, column by column.
        tolerance: of Lanczos, relative.
    """
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    if size <= dense:
        matrix = np.stack([product(row) for row in np.eye(size)])
        if not np.isfinite(matrix).all():
            return math.nan, matrix[0]
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        return float(values[0]), vectors[:, 0]
    operator = LinearOperator((size, size), matvec=lambda z: product(z.ravel()), dtype=np.float64)
    # A direction without any symmetry of its own: a symmetric problem may be unstable in others only.
    start = np.random.Generator(np.random.Philox(0)).standard_normal(size)
    try:
        values, vectors = eigsh(operator, k=1, which="SA", tol=tolerance, v0=start)
    except ArpackError:
        return math.nan, start
    return float(values[0]), vectors[:, 0]
