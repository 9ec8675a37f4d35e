"""Coordinates of a path of particles in which its energy is close to half the squared norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jko.manifolds import AbstractManifold
from jko.weighted.path_energy import PathEnergy, PathValue

__all__ = ["PathChart", "Vector"]

Vector = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class PathChart:
    """Tangent coordinates z of the inner points of a path, scaled by the energy of its displacements.

    Particle i moves by the tangent vectors E_i^k (R_i z_i)^k, k = 1 ... S - 1: E_i is a frame transported in parallel
    along the path, and R_i R_i^T the inverse of 2 S w_i times the second differences with the mobilities of the path,
    times 2 F. For constant mobility in R^d the energy is F (1 + |z|^2), whatever S is.

    Attributes:
        path: the path at z = 0, shape (S + 1, n, d).
        frame: shape (S - 1, n, d, k).
        root: R, shape (n, S - 1, S - 1).
        unit: 2 F.
        manifold: where the particles live.
    """

    path: Tensor
    frame: Tensor
    root: Tensor
    unit: float
    manifold: AbstractManifold

    @staticmethod
    def at(energy: PathEnergy, path: Tensor, value: PathValue) -> PathChart:
        """Return the chart around a path with its energy."""
        manifold, segments, unit = energy.manifold, path.shape[0] - 1, 2 * value.value
        frames = [manifold.tangent_basis(path[0])]
        for k in range(segments - 1):
            moved = manifold.transport(path[k, :, None], path[k + 1, :, None], frames[-1].mT)
            frames.append(moved.mT)
        stiffness = (2 * segments * energy.weights * value.mobility).mT
        # Any positive matrix will do; one that rounding cannot make indefinite.
        stiffness = torch.maximum(stiffness, 1e-10 * stiffness.amax(-1, keepdim=True))
        matrix = torch.diag_embed(stiffness[:, :-1] + stiffness[:, 1:])
        off = stiffness[:, 1:-1]
        matrix -= torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
        lower = torch.linalg.cholesky(matrix)
        identity = torch.eye(segments - 1, dtype=path.dtype, device=path.device).expand_as(lower)
        inverse = torch.linalg.solve_triangular(lower, identity, upper=False)
        return PathChart(path, torch.stack(frames[1:]), math.sqrt(unit) * inverse.mT, unit, manifold)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.frame[..., 0, :].numel()

    def displacement(self, z: Vector) -> Tensor:
        """Return the tangent vectors of shape (S - 1, n, d) at the inner points."""
        inner, n, _, k = self.frame.shape
        coordinates = torch.from_numpy(z).to(self.path).reshape(n, inner, k)
        return (self.frame @ (self.root @ coordinates).transpose(0, 1)[..., None])[..., 0]

    def moved(self, z: Vector) -> Tensor:
        """Return the path with coordinates z."""
        inner = self.manifold.exp(self.path[1:-1], self.displacement(z))
        return torch.cat([self.path[:1], inner, self.path[-1:]])

    def gradient(self, z: Vector, gradient: Tensor) -> Vector:
        """Return the gradient in z of the energy over 2 F, from its ambient gradient at the path `moved(z)`."""
        pulled = self.manifold.exp_adjoint(self.path[1:-1], self.displacement(z), gradient)
        inside = (self.frame.mT @ pulled[..., None])[..., 0]
        flat: Vector = (self.root.mT @ inside.transpose(0, 1)).reshape(-1).cpu().numpy() / self.unit
        return flat
