"""Scaled tangent coordinates in which the transport term of a step is |z|^2 / 2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jko.memory import check_fits
from jko.schemes.objective import StepObjective, Trial

__all__ = ["Chart", "Vector"]

Vector = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """Scaled tangent coordinates z of the moving particles around a starting displacement of the others."""

    objective: StepObjective
    start: Tensor
    moving: Tensor
    basis: Tensor
    scale: Tensor
    masses: Tensor
    # Whether the moving particles have mass; tracers move after them, on their own.
    massive: bool

    @staticmethod
    def at(objective: StepObjective, start: Trial, moving: Tensor) -> Chart:
        """Return the chart of the particles marked in `moving`, shape (n,), around the displacement of `start`."""
        # Their numbers: at every use of a mask the host waits for a GPU to count it.
        moving, movement = moving.nonzero()[:, 0], objective.movement
        weights = movement.weights.to(torch.float64)[moving]
        masses = torch.where(weights > 0, weights, 1.0 / len(moving))
        # z = (w b / tau)^(1/2) xi makes sum_i w_i b_i |xi_i|^2 / (2 tau) = |z|^2 / 2.
        scale = (objective.tau / (masses * movement.mobility.to(torch.float64)[:, moving])).sqrt()
        shape, way_out = (*movement.base.shape, movement.base.shape[-1]), "take fallback=None, or Anderson alone"
        check_fits("the tangent bases of TrustNewton", shape, torch.float64, movement.base.device, way_out)
        basis = objective.manifold.tangent_basis(movement.base[..., moving, :].to(torch.float64))
        return Chart(objective, start.xi.clone(), moving, basis, scale, masses, bool((weights > 0).all()))

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.start.shape[0] * self.basis.shape[0] * self.basis.shape[2]

    def displacement(self, z: Vector) -> Tensor:
        """Return the full displacement (G, n, d) at coordinates z."""
        xi = self.start.clone()
        xi[:, self.moving] = self.tangent(z)[:, self.moving]
        return xi

    def tangent(self, z: Vector) -> Tensor:
        """Return the tangent vectors (G, n, d) with coordinates z, zero at the particles that rest."""
        groups, (count, _, rank) = self.start.shape[0], self.basis.shape[-3:]
        columns = torch.from_numpy(z).to(self.basis).reshape(groups, count, rank, 1)
        vectors = (self.basis @ columns)[..., 0] * self.scale[..., None]
        full = torch.zeros_like(self.start)
        full[:, self.moving] = vectors.to(self.start.dtype)
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

    def value(self, trial: Trial) -> float:
        """Return the sum of the objectives of the groups, or for tracers of their potentials."""
        if not trial.finite:
            return math.inf
        if self.massive:
            return math.fsum(trial.objective)
        cost = (trial.xi.to(torch.float64).square().sum(-1) * self.objective.movement.mobility)[:, self.moving]
        values = trial.potential[:, self.moving].to(torch.float64) + cost / (2 * self.objective.tau)
        return float((values * self.masses).sum())
