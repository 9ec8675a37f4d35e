"""Scalar functions whose textbook formulas lose digits or gradients: each is smooth where its limit is smooth."""

from __future__ import annotations

import bisect
import functools
import math

import torch
from torch import Tensor

__all__ = [
    "adjoint_coefficients",
    "all_finite",
    "curvature_coefficients",
    "exp_coefficients",
    "inner",
    "row_sum",
    "squared_angle",
]

# Below the bounds the Taylor series are exact to rounding, above them the closed forms lose at most a few ulp.
# c3 = (3 sin r - 3 r cos r - r^2 sin r) / r^5 cancels to the fourth power of 1/r and needs the wider bound.
_BOUND = 1.0
_WIDE_BOUND = 4.0
_TERMS = 10
_WIDE_TERMS = 14
_C0 = tuple((-1) ** k / math.factorial(2 * k) for k in range(_WIDE_TERMS))
_C1 = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(_WIDE_TERMS))
_C2 = tuple((-1) ** k * 2 * k / math.factorial(2 * k + 1) for k in range(1, _WIDE_TERMS))
_C3 = tuple((-1) ** k * 4 * k * (k - 1) / math.factorial(2 * k + 1) for k in range(2, _WIDE_TERMS))
_HALF_ULP = 2.0**-54
# Below the k-th bound k terms are exact to rounding: the next one is largest, relative to the first, in c1.
_ENOUGH = tuple((math.factorial(2 * k + 1) * _HALF_ULP) ** (1 / k) for k in range(1, 7))

_ANGLE_BOUND = 1 / 32
_ANGLE = (0.0, *((-1) ** (k - 1) * 4 / k * sum(1 / (2 * j - 1) for j in range(1, k + 1)) for k in range(1, 13)))
# No coefficient after the first is larger than it.
_ANGLE_ENOUGH = tuple(_HALF_ULP ** (1 / k) for k in range(1, 8))


def row_sum(values: Tensor, *, keepdim: bool = False) -> Tensor:
    """Return the sum over the last axis, which is meant to be short.

    On the CPU a product with ones is several times faster than a reduction over three numbers at a time.
    """
    if values.device.type != "cpu":
        return values.sum(-1, keepdim=keepdim)
    return values @ _ones(values.shape[-1], values.dtype, keepdim)


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Return <x, y> over the last axis, which is kept."""
    product = x * y
    if product.device.type != "cpu":
        return product.sum(-1, keepdim=True)
    return product @ _ones(product.shape[-1], product.dtype, True)


@functools.cache
def _ones(d: int, dtype: torch.dtype, column: bool) -> Tensor:
    # A tensor made in inference mode could not serve a derivative later.
    with torch.inference_mode(False):
        return torch.ones((d, 1) if column else (d,), dtype=dtype)


def all_finite(values: Tensor) -> bool:
    """Return whether no entry is inf or NaN, several times faster than asking every entry."""
    # x - x is 0 for finite x, else NaN.
    return float((values - values).sum()) == 0


def exp_coefficients(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos r and sin r / r as smooth functions of q = r^2 >= 0."""
    if not q.requires_grad:
        # The values need no series, only the derivatives do: the inner loop of a step is several times faster.
        r = q.sqrt()
        return r.cos(), torch.sinc(r / math.pi)
    small, near, far = _split(q, _BOUND)
    c0, c1 = _closed_forms(far)
    c0 = torch.where(small, _polynomial(_C0[:_TERMS], near), c0)
    return c0, torch.where(small, _polynomial(_C1[:_TERMS], near), c1)


def adjoint_coefficients(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return c1 = sin r / r and c2 = (r cos r - sin r) / r^3 as smooth functions of q = r^2 >= 0.

    They are derivatives of each other in q: c0' = -c1 / 2, c1' = c2 / 2, c2' = c3 / 2.
    """
    if terms := _enough(q, _ENOUGH):
        return _short_series(terms, q)
    small, near, far = _split(q, _BOUND)
    c0, c1 = _closed_forms(far if q.requires_grad else q)
    c2 = torch.where(small, _polynomial(_C2[:_TERMS], near), (c0 - c1) / far)
    return torch.where(small, _polynomial(_C1[:_TERMS], near), c1) if q.requires_grad else c1, c2


def curvature_coefficients(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return c1, c2 and c3 = (3 sin r - 3 r cos r - r^2 sin r) / r^5 as smooth functions of q = r^2 >= 0."""
    if terms := _enough(q, _ENOUGH):
        return _polynomial(_C1[:terms], q), _polynomial(_C2[:terms], q), _polynomial(_C3[:terms], q)
    small, near, far = _split(q, _WIDE_BOUND)
    c0, c1 = _closed_forms(far)
    c2 = (c0 - c1) / far
    c3 = -(3 * c2 + c1) / far
    c1 = torch.where(small, _polynomial(_C1, near), c1)
    return c1, torch.where(small, _polynomial(_C2, near), c2), torch.where(small, _polynomial(_C3, near), c3)


def squared_angle(difference2: Tensor, sum2: Tensor) -> Tensor:
    """Return the squared angle (2 atan2(|x - y|, |x + y|))^2 between unit vectors from |x - y|^2 and |x + y|^2.

    Gradient 0 and the exact second derivatives at angle 0; a finite gradient at angle pi.
    """
    if not sum2.requires_grad and (terms := _enough(ratio := difference2 / sum2, _ANGLE_ENOUGH)):
        return ratio * _polynomial(_ANGLE[1 : 1 + terms], ratio)
    small = difference2 < _ANGLE_BOUND * sum2
    s = torch.where(small, difference2, 0.0) / torch.where(small, sum2, 1.0)
    chord = torch.where(small, 1.0, difference2).sqrt()
    antipodal = sum2 == 0
    cochord = torch.where(antipodal, 0.0, torch.where(antipodal, 1.0, sum2).sqrt())
    # atan2(inf, inf) is pi / 4: the last term hands inf on as NaN.
    far = (2 * torch.atan2(chord, cochord)).square() + (difference2 - difference2)
    return torch.where(small, _polynomial(_ANGLE, s), far)


def _closed_forms(q: Tensor) -> tuple[Tensor, Tensor]:
    r = q.sqrt()
    return r.cos(), torch.sinc(r / math.pi)


def _enough(q: Tensor, bounds: tuple[float, ...]) -> int:
    """Number of terms of a series that are exact to rounding for all q, 0 where a series alone will not do.

    It serves the usual case of a step, short displacements without gradients, where nothing has to be selected.
    """
    if q.requires_grad or q.device.type != "cpu" or not q.numel():
        return 0
    largest = float(q.amax())
    # The k-th bound is that of k terms; bounds grow, and the last ones are no use where the largest is above them.
    terms = bisect.bisect_right(bounds, largest) + 1
    return terms if terms <= len(bounds) else 0


def _split(q: Tensor, bound: float) -> tuple[Tensor, Tensor, Tensor]:
    # The unselected branch gets a harmless input: 0 * inf or 0 * NaN in its backward pass would be NaN.
    small = q < bound
    return small, torch.where(small, q, 0.0), torch.where(small, bound, q)


def _short_series(terms: int, q: Tensor) -> tuple[Tensor, Tensor]:
    """The series of c1 and c2 with so many terms, by Horner's rule side by side."""
    rows = _series_table(terms, q.ndim, q.dtype)
    value = rows[-1] if terms == 1 else torch.addcmul(rows[-2], q, rows[-1])
    for k in range(terms - 3, -1, -1):
        value = torch.addcmul(rows[k], value, q)
    c1, c2 = (value if terms > 1 else value.expand(2, *q.shape)).unbind()
    return c1, c2


@functools.cache
def _series_table(terms: int, ndim: int, dtype: torch.dtype) -> Tensor:
    """Coefficients of c1 and c2, shape (terms, 2, 1, ..., 1)."""
    with torch.inference_mode(False):
        rows = torch.tensor(list(zip(_C1[:terms], _C2[:terms], strict=True)), dtype=dtype)
        return rows.reshape(terms, 2, *(1,) * ndim)


def _polynomial(coefficients: tuple[float, ...], q: Tensor) -> Tensor:
    if len(coefficients) == 1:
        return torch.full_like(q, coefficients[0])
    value = (q * coefficients[-1]).add_(coefficients[-2])
    for coefficient in coefficients[-3::-1]:
        value = (value * q).add_(coefficient)
    return value
