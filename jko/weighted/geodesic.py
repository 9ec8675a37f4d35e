"""Locally shortest paths: L-BFGS, then Newton steps judged by the gradient, then a look for directions downhill."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.numerics import row_sum
from jko.spectrum import smallest_eigenvalue
from jko.status import Status
from jko.weighted.chart import PathChart, Vector
from jko.weighted.path_energy import PathEnergy, PathValue

__all__ = ["Geodesic", "shortest_path"]

# Below this residual Newton's method converges faster than a line search can measure its progress.
_HAND_OVER = 1e-5
_ROUNDS = 40
_NEWTON_STEPS = 6
_CHART_STEPS = 60
_MEMORY = 20
_HALVINGS = 30
_ARMIJO = 1e-4
_CURVED = 1e-4
# The farthest that a point of the path moves in one step, relative to the longest way between the ends.
_FARTHEST = 0.3
# Displacement, in units of the manifold, for difference quotients of the gradient.
_PROBE = 1e-5
# A Hessian with an eigenvalue below this one, where 1 is the flat case, has a direction downhill.
_DOWNHILL = -1e-5
_LEAPS = (0.003, 0.01, 0.03, 0.1, 0.3)
_DENSE = 24
# A relative decrease of the energy that is worth another round.
_PROGRESS = 1e-6


@final
@dataclass(frozen=True, slots=True, eq=False)
class Geodesic:
    """A path at which the energy is stationary, or the best one found.

    Attributes:
        path: shape (S + 1, n, d).
        value: its energy, the squared length.
        longest: length of the longest segment of a particle.
        status: SUCCESS at a local minimum within the tolerance; BEYOND_CUT_LOCUS where the path wants segments longer
            than half the injectivity radius; NOT_CONVERGED or NON_FINITE.
        residual: norm of the gradient in the coordinates of `PathChart`: the relative error of the displacement.
        curvature: smallest eigenvalue of the Hessian in these coordinates, 1 in the flat case.
        evaluations: energies with gradients that were formed.
    """

    path: Tensor
    value: float
    longest: float
    status: Status
    residual: float
    curvature: float
    evaluations: int


def shortest_path(energy: PathEnergy, path: Tensor, rtol: float) -> Geodesic:
    """Return a local minimum of the energy among paths with the ends of `path`, found from there."""
    search = _Search(energy, rtol, Counter())
    point = search.at(path)
    curvature, last = math.nan, (math.inf, math.inf)
    for _ in range(_ROUNDS):
        if not search.moves(point):
            break
        chart = PathChart.at(energy, point.path, point.value)
        residual = search.residual(chart, point)
        if residual > search.tolerance(point):
            if not (residual < last[0] or point.value.value < (1 - _PROGRESS) * last[1]):
                break
            last = residual, point.value.value
            point = _newton(search, _descent(search, chart, point))
            continue
        curvature, direction = smallest_eigenvalue(
            partial(search.product, chart), chart.size, dense=_DENSE, tolerance=1e-4
        )
        if not curvature < _DOWNHILL:
            break
        point, curvature = _leap(search, chart, point, direction), math.nan
    return _judged(search, point, curvature)


def _judged(search: _Search, point: _Point, curvature: float) -> Geodesic:
    value, longest = point.value.value, point.value.longest
    if not math.isfinite(value):
        return Geodesic(point.path, value, longest, Status.NON_FINITE, math.inf, math.nan, search.evaluations)
    if not search.moves(point):
        return Geodesic(point.path, value, longest, Status.SUCCESS, 0.0, 1.0, search.evaluations)
    residual = search.residual(PathChart.at(search.energy, point.path, point.value), point)
    if residual <= search.tolerance(point) and not math.isnan(curvature):
        status = Status.SUCCESS
    else:
        status = Status.BEYOND_CUT_LOCUS if longest > 0.99 * search.longest else Status.NOT_CONVERGED
    return Geodesic(point.path, value, longest, status, residual, curvature, search.evaluations)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """A path with its energy."""

    path: Tensor
    value: PathValue

    @property
    def rounding(self) -> float:
        """The relative error of the displacement that comes from the last digits of the points."""
        speed = math.sqrt(float(self.value.mobility.amax()) / self.value.value)
        return 16 * torch.finfo(self.path.dtype).eps * float(self.path.abs().amax()) * speed * (len(self.path) - 1)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The energy with every evaluation counted."""

    energy: PathEnergy
    rtol: float
    spent: Counter[str]

    @property
    def evaluations(self) -> int:
        return self.spent["evaluations"]

    @property
    def longest(self) -> float:
        """Bound for segments: farther apart than that, the middle says nothing about the mobility between."""
        return (0.5 + 1e-6) * self.energy.manifold.injectivity_radius

    def at(self, path: Tensor) -> _Point:
        self.spent["evaluations"] += 1
        return _Point(path, self.energy.evaluate(path))

    def along(self, chart: PathChart, z: Vector) -> _Point | None:
        """The path with coordinates z; None where its energy is not finite or its segments are too long."""
        try:
            point = self.at(chart.moved(z))
        except InvalidInput:
            # Consecutive points became antipodal: a trial that is far too long.
            return None
        return point if point.value.longest <= self.longest and math.isfinite(point.value.value) else None

    def residual(self, chart: PathChart, point: _Point) -> float:
        """Norm of the gradient at the path of the chart; NaN counts as infinitely large."""
        norm = float(np.linalg.norm(chart.gradient(np.zeros(chart.size), point.value.gradient)))
        return math.inf if math.isnan(norm) else norm

    def tolerance(self, point: _Point) -> float:
        """`rtol`, or what the rounding of the points allows where they hardly move."""
        return max(self.rtol, point.rounding)

    def moves(self, point: _Point) -> bool:
        """Whether there is something to minimize: inner points, and an energy that is finite and no rounding of 0."""
        return len(point.path) > 2 and 0 < point.value.value < math.inf and point.rounding < 1

    def product(self, chart: PathChart, direction: Vector) -> Vector:
        """The Hessian at the path of the chart times a direction, by a central difference of exact gradients."""
        length = float(row_sum(chart.displacement(direction).square()).amax().sqrt())
        if length == 0:
            return np.zeros_like(direction)
        h = _PROBE / length
        sides = [self.along(chart, sign * h * direction) for sign in (1, -1)]
        if sides[0] is None or sides[1] is None:
            return np.full_like(direction, math.nan)
        ahead, behind = (
            chart.gradient(sign * h * direction, side.value.gradient)
            for sign, side in zip((1, -1), sides, strict=True)
            if side is not None
        )
        return (ahead - behind) / (2 * h)


def _descent(search: _Search, chart: PathChart, point: _Point) -> _Point:
    """L-BFGS (Nocedal 1980) from the path of the chart with steps halved until the energy decreases enough.

    It ends where Newton's method takes over, after some steps (a chart at the new path fits better), or where the
    decrease is lost in rounding.
    """
    z = np.zeros(chart.size)
    gradient = chart.gradient(z, point.value.gradient)
    ways = search.energy.manifold.squared_distance(chart.path[0], chart.path[-1])
    bound, solved = _FARTHEST * float(ways.amax().sqrt()), max(_HAND_OVER, search.rtol)
    pairs: deque[tuple[Vector, Vector]] = deque(maxlen=_MEMORY)
    for _ in range(_CHART_STEPS):
        if not solved < float(np.linalg.norm(gradient)) < math.inf:
            break
        step = -_inverse_hessian(pairs, gradient)
        farthest = float(row_sum(chart.displacement(step).square()).amax().sqrt())
        step *= min(1.0, bound / farthest)
        slope = float(gradient @ step)
        for _ in range(_HALVINGS):
            trial = search.along(chart, z + step)
            if trial is not None and trial.value.value <= point.value.value + _ARMIJO * chart.unit * slope:
                break
            step, slope = step / 2, slope / 2
        else:
            break
        assert trial is not None
        new_gradient = chart.gradient(z + step, trial.value.gradient)
        change = new_gradient - gradient
        if float(change @ step) > _CURVED * float(np.linalg.norm(change) * np.linalg.norm(step)):
            pairs.append((step, change))
        z, gradient, point = z + step, new_gradient, trial
    return point


def _inverse_hessian(pairs: deque[tuple[Vector, Vector]], gradient: Vector) -> Vector:
    """Two-loop recursion; without pairs the unit matrix, which is exact in the flat case."""
    q, kept = gradient.copy(), []
    for step, change in reversed(pairs):
        rho = 1 / float(step @ change)
        alpha = rho * float(step @ q)
        q -= alpha * change
        kept.append((rho, alpha))
    if pairs:
        step, change = pairs[-1]
        q *= float(step @ change) / float(change @ change)
    for (step, change), (rho, alpha) in zip(pairs, reversed(kept), strict=True):
        q += (alpha - rho * float(change @ q)) * step
    return q


def _newton(search: _Search, point: _Point) -> _Point:
    """Newton's method with MINRES (Paige and Saunders 1975), accepted on the gradient."""
    from scipy.sparse.linalg import LinearOperator, minres

    chart = PathChart.at(search.energy, point.path, point.value)
    residual = search.residual(chart, point)
    for _ in range(_NEWTON_STEPS):
        if residual <= search.tolerance(point) or residual > 100 * _HAND_OVER:
            break
        current = chart

        def product(direction: Vector, current: PathChart = current) -> Vector:
            return search.product(current, direction.ravel())

        right = -chart.gradient(np.zeros(chart.size), point.value.gradient)
        operator = LinearOperator((chart.size, chart.size), matvec=product, dtype=np.float64)
        try:
            step, _ = minres(operator, right, rtol=1e-4, maxiter=100)
        except ValueError:
            # SciPy refuses products that are not finite; the point stands as it is and is judged.
            break
        candidate = search.along(chart, step)
        if candidate is None:
            break
        next_chart = PathChart.at(search.energy, candidate.path, candidate.value)
        next_residual = search.residual(next_chart, candidate)
        if not next_residual < residual:
            break
        chart, point, residual = next_chart, candidate, next_residual
    return point


def _leap(search: _Search, chart: PathChart, point: _Point, direction: Vector) -> _Point:
    """The lowest of some points along a direction downhill; the Hessian says nothing about the side."""
    trials = [search.along(chart, sign * length * direction) for length in _LEAPS for sign in (1, -1)]
    return min([point, *(trial for trial in trials if trial is not None)], key=lambda trial: trial.value.value)
