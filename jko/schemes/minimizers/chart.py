"""Scaled tangent coordinates in which the transport term of a step is |z|^2 / 2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jko.schemes.objective import StepProblem, Trial

__all__ = ["Chart", "Vector"]

Vector = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """Scaled tangent coordinates z of the moving particles around a base displacement of the others."""

    problem: StepProblem
    base: Tensor
    moving: Tensor
    basis: Tensor
    scale: Tensor
    masses: Tensor
    # Whether the moving particles have mass; tracers move after them, on their own.
    massive: bool

    @staticmethod
    def at(problem: StepProblem, start: Trial, moving: Tensor) -> Chart:
        """Return the chart of the particles marked in `moving`, shape (n,), around the displacement of `start`."""
        # Their numbers: at every use of a mask the host waits for a GPU to count it.
        moving = moving.nonzero()[:, 0]
        weights = problem.measure.weights.to(torch.float64)[moving]
        masses = torch.where(weights > 0, weights, 1.0 / len(moving))
        scale = (problem.tau / (masses * problem.mobility.to(torch.float64)[:, moving])).sqrt()
        basis = problem.manifold.tangent_basis(problem.measure.points[moving].to(torch.float64))
        return Chart(problem, start.xi.clone(), moving, basis, scale, masses, bool((weights > 0).all()))

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.base.shape[0] * self.basis.shape[0] * self.basis.shape[2]

    def displacement(self, z: Vector) -> Tensor:
        """Return the full displacement (G, n, d) at coordinates z."""
        xi = self.base.clone()
        xi[:, self.moving] = self.tangent(z)[:, self.moving]
        return xi

    def tangent(self, z: Vector) -> Tensor:
        """Return the tangent vectors (G, n, d) with coordinates z, zero at the particles that rest."""
        groups, (count, _, rank) = self.base.shape[0], self.basis.shape
        columns = torch.from_numpy(z).to(self.basis).reshape(groups, count, rank, 1)
        vectors = (self.basis @ columns)[..., 0] * self.scale[..., None]
        full = torch.zeros_like(self.base)
        full[:, self.moving] = vectors.to(self.base.dtype)
        return full

    def coordinates(self, xi: Tensor) -> Vector:
        """Return the coordinates of the moving part of a displacement."""
        return self._components(xi, self.scale.reciprocal())

    def gradient(self, field: Tensor) -> Vector:
        """Return the gradient in z that belongs to a field per unit mass, such as the stationarity."""
        return self._components(field, self.masses * self.scale)

    def _components(self, vectors: Tensor, factor: Tensor) -> Vector:
        part = vectors[:, self.moving].to(torch.float64)
        columns = (self.basis.mT @ part[..., None])[..., 0] * factor[..., None]
        flat: Vector = columns.flatten().cpu().numpy()
        return flat

    def residual(self, trial: Trial) -> float:
        """Return the residual that the moving particles can lower."""
        return trial.mass_residual if self.massive else trial.residual

    def objective(self, trial: Trial) -> float:
        """Return the sum of the objectives of the groups, or for tracers of their potentials."""
        if not trial.finite:
            return math.inf
        if self.massive:
            return math.fsum(trial.objective)
        cost = (trial.xi.to(torch.float64).square().sum(-1) * self.problem.mobility)[:, self.moving]
        values = trial.potential[:, self.moving].to(torch.float64) + cost / (2 * self.problem.tau)
        return float((values * self.masses).sum())
