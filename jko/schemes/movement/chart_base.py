"""Where the tangent spaces of a step with a transport solver are attached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure
from jko.transport import Coupling

__all__ = ["ChartBase"]

# A mean of points on the sphere that is this short says nothing about where they are.
_SHORT = 0.1


@final
@dataclass(frozen=True, slots=True, eq=False)
class ChartBase:
    """Base points z and the mobility of the quadratic B |xi|^2 there.

    Attributes:
        points: z, shape (m, d).
        mobility: B, shape (m,).
        complete: whether the quadratic is the whole transport term: every particle has one source.
    """

    points: Tensor
    mobility: Tensor
    complete: bool = False

    @staticmethod
    def of_coupling(
        coupling: Coupling,
        source: ParticleMeasure,
        mobility: Tensor,
        target: ParticleMeasure,
        manifold: AbstractManifold,
    ) -> ChartBase:
        """Return the barycenters of the sources of every target, weighted by P_ji b_j; tracers keep their place.

        In R^d this makes the quadratic the whole transport term, up to a constant. Of the target only the weights and
        the places of tracers are read.
        """
        rows, columns = coupling.rows, coupling.columns
        shares = coupling.masses.to(mobility) * mobility[rows]
        total = torch.zeros_like(target.weights).index_add(0, columns, shares)
        massive = target.weights > 0
        mean = torch.zeros_like(target.points).index_add(0, columns, shares[:, None] * source.points[rows])
        mean = mean / total.masked_fill(~massive, 1.0)[:, None]
        counts = torch.bincount(columns, minlength=target.n)
        heaviest = _heaviest(shares, rows, columns, target.n)
        length = torch.linalg.vector_norm(mean, dim=-1)
        lone = counts == 1
        if manifold.injectivity_radius < float("inf"):
            lone = lone | (length < _SHORT)
        spread = massive & ~lone
        points = torch.where(massive[:, None], source.points[heaviest], target.points)
        if bool(spread.any()):
            points[spread] = manifold.project_point(mean[spread])
        average = (mobility * source.weights).sum()
        share = torch.where(massive, total / target.weights.masked_fill(~massive, 1.0), average)
        return ChartBase(points, share, complete=bool((counts[massive] == 1).all()))


def _heaviest(shares: Tensor, rows: Tensor, columns: Tensor, m: int) -> Tensor:
    """Return for every target the source that gives it most; 0 where nothing does."""
    best = torch.zeros(m, dtype=shares.dtype, device=shares.device).scatter_reduce(0, columns, shares, "amax")
    first = torch.where(shares == best[columns], rows, -1)
    return torch.zeros(m, dtype=rows.dtype, device=rows.device).scatter_reduce(0, columns, first, "amax")
