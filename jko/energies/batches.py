"""Batches and directions, for energies that take the members of a batch one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from jko.energies.base import Evaluation, PotentialField
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure, check_measure

__all__ = ["check_direction", "for_each", "stacked", "stacked_fields"]


def for_each(measure: ParticleMeasure, call: Callable[[Tensor, Tensor, tuple[int, ...]], Tensor]) -> Tensor:
    """Return `call(points, weights, index)` of each member of a batch, stacked like the batch."""
    rows = [call(*member) for member in _members(measure)]
    return torch.stack(rows).reshape((*measure.batch_shape, *rows[0].shape))


def stacked(measure: ParticleMeasure, evaluate: Callable[[Tensor, Tensor], Evaluation]) -> Evaluation:
    """Return the evaluation of a batch from `evaluate(points, weights)` of each member."""
    parts = [evaluate(x, w) for x, w, _ in _members(measure)]
    if not measure.batch_shape:
        return parts[0]

    def joined(rows: list[Tensor]) -> Tensor:
        return torch.stack(rows).reshape((*measure.batch_shape, *rows[0].shape))

    curvatures = [part.curvature for part in parts if part.curvature is not None]
    return Evaluation(
        value=joined([part.value for part in parts]),
        first_variation=joined([part.first_variation for part in parts]),
        gradient=joined([part.gradient for part in parts]),
        curvature=joined(curvatures) if len(curvatures) == len(parts) else None,
    )


def stacked_fields(
    measure: ParticleMeasure, field: Callable[[Tensor, Tensor, tuple[int, ...]], PotentialField]
) -> PotentialField:
    """Return the first variations of a batch from `field(points, weights, index)` of each member."""
    fields = [field(*member) for member in _members(measure)]
    if not measure.batch_shape:
        return fields[0]
    shape, rows = measure.batch_shape, [(one.value, one.gradient) for one in fields]
    value, gradient = (torch.stack(list(column)) for column in zip(*rows, strict=True))
    return PotentialField(value.reshape(*shape, *value.shape[1:]), gradient.reshape(*shape, *gradient.shape[1:]))


def check_direction(direction: Tensor, measure: ParticleMeasure) -> Tensor:
    """Return directions of the shape of the points of a measure.

    Raises:
        InvalidInput: when they do not fit.
    """
    check_measure(measure)
    points = measure.points
    if direction.shape[-2:] != points.shape[-2:] or direction.ndim > points.ndim:
        raise InvalidInput(f"direction has shape {tuple(direction.shape)}, the particles have {tuple(points.shape)}")
    return direction.expand_as(points)


def _members(measure: ParticleMeasure) -> list[tuple[Tensor, Tensor, tuple[int, ...]]]:
    """Points (n, d), weights (n,) and index of each member of a batch."""
    check_measure(measure)
    shape = measure.batch_shape
    weights = measure.weights.expand(*shape, measure.n)
    indices = itertools.product(*(range(size) for size in shape))
    return [(measure.points[index], weights[index], index) for index in indices]
