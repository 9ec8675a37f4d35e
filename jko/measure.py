"""Particle measures: weighted points, validated once and never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from jko.checks import (
    as_float_tensor,
    check_finite,
    check_kind,
    check_no_gradient,
    check_simplex,
    simplex_tolerance,
)
from jko.errors import InvalidInput
from jko.storable import storable

__all__ = ["ParticleMeasure", "check_measure"]


@storable
@final
@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class ParticleMeasure:
    """A particle measure u = sum_i w_i delta_{x_i}.

    Args:
        points: particles, shape (*batch, n, d), float32 or float64 (integers become float64). Copied.
        weights: masses on the simplex, shape (n,) or (*batch, n); None means 1/n. A particle of weight 0 is a
            tracer: it moves with the field and changes nothing else. Weights of another precision than the
            points are converted and the rounding of the conversion is removed; nothing else is renormalized.

    Raises:
        InvalidInput: for tensors that require a gradient, a shape without particles or coordinates, a one-dimensional
            array, non-finite entries,
            negative weights or weights that do not sum to 1.
    """

    points: Tensor
    weights: Tensor

    def __init__(self, points: Any, weights: Any = None) -> None:
        x = as_float_tensor(points, "points")
        if x.ndim < 2:
            raise InvalidInput(
                f"points must have shape (*batch, n, d), got {tuple(x.shape)}; for n particles on the line write "
                "points[:, None], for one particle in R^d write points[None, :]"
            )
        if x.shape[-2] == 0 or x.shape[-1] == 0 or x.numel() == 0:
            raise InvalidInput(f"points of shape {tuple(x.shape)} hold no particles or no coordinates")
        check_finite(x, "points")
        object.__setattr__(self, "points", x.contiguous())
        object.__setattr__(self, "weights", _weights(weights, x))

    @staticmethod
    def of_checked(points: Tensor, weights: Tensor) -> ParticleMeasure:
        """Return a measure of tensors that the caller has checked and will not change: no copy, no further check."""
        measure = object.__new__(ParticleMeasure)
        object.__setattr__(measure, "points", points)
        object.__setattr__(measure, "weights", weights)
        return measure

    @property
    def n(self) -> int:
        """Number of particles."""
        return self.points.shape[-2]

    @property
    def d(self) -> int:
        """Number of ambient coordinates."""
        return self.points.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """Leading axes: a batch of measures with the same n."""
        return self.points.shape[:-2]

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of points and weights."""
        return self.points.dtype

    @property
    def device(self) -> torch.device:
        """Device of points and weights."""
        return self.points.device

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> ParticleMeasure:
        """Return the same measure in another precision or on another device."""
        return ParticleMeasure(self.points.to(device=device, dtype=dtype), self.weights.to(device=device))

    def moved(self, points: Tensor) -> ParticleMeasure:
        """Return the measure with the same weights at new `points` of the same shape, dtype and device."""
        if points.shape != self.points.shape:
            raise InvalidInput(f"points of shape {tuple(points.shape)} cannot replace {tuple(self.points.shape)}")
        if points.dtype != self.dtype or points.device != self.device:
            raise InvalidInput(
                f"points are {points.dtype} on {points.device}, the measure is {self.dtype} on {self.device}; "
                "convert them first"
            )
        check_no_gradient(points, "points")
        check_finite(points, "points")
        return ParticleMeasure.of_checked(points.detach().clone(memory_format=torch.contiguous_format), self.weights)

    def __repr__(self) -> str:
        batch = f", batch_shape={tuple(self.batch_shape)}" if self.batch_shape else ""
        return f"ParticleMeasure(n={self.n}, d={self.d}{batch}, dtype={self.dtype}, device={self.device})"


def check_measure(measure: Any, name: str = "measure") -> None:
    """Refuse what is no `ParticleMeasure`: points alone are none."""
    if not isinstance(measure, ParticleMeasure):
        check_kind(measure, ParticleMeasure, name, hint="wrap it in ParticleMeasure")


def _weights(weights: Any, points: Tensor) -> Tensor:
    shape = points.shape[:-1]
    if weights is None:
        return torch.full(shape[-1:], 1.0 / shape[-1], dtype=points.dtype, device=points.device)
    w = as_float_tensor(weights, "weights")
    if tuple(w.shape) not in (tuple(shape), tuple(shape[-1:])):
        raise InvalidInput(
            f"weights have shape {tuple(w.shape)}; for points of shape {tuple(points.shape)} they must have shape "
            f"{tuple(shape[-1:])}" + (f" or {tuple(shape)}" if len(shape) > 1 else "")
        )
    check_simplex(w, "weights", tolerance=max(simplex_tolerance(w.dtype), simplex_tolerance(points.dtype)))
    if w.dtype == points.dtype:
        return w.to(points.device)
    w = w.to(device=points.device, dtype=torch.float64)
    return (w / w.sum(-1, keepdim=True)).to(points.dtype)
