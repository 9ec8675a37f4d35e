"""What is known about the coupling that an exact transport found."""

from __future__ import annotations

import torch
from torch import Tensor

from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure
from jko.transport import Coupling, CouplingCertificate

__all__ = ["certify_coupling"]

_ENTRIES = 1 << 20


def certify_coupling(
    coupling: Coupling,
    source: ParticleMeasure,
    target: ParticleMeasure,
    factor: Tensor,
    potential: Tensor,
    manifold: AbstractManifold,
    tolerance: float,
) -> CouplingCertificate:
    """Examine where mass would rather be: phi(x_i) + f_j d^2(x_i, y_j) against its least value over all new particles.

    The solver's duals have shown the coupling optimal between the two sets of weights. A gain here says that other
    weights, or another place, would lower the objective further: mass of y_j would rather be at another particle.

    Args:
        coupling: P.
        source: y.
        target: x.
        factor: b_j / (2 tau), shape (n,).
        potential: first variation phi of the energy at x, shape (m,).
        manifold: the geometry of d.
        tolerance: relative accuracy to which the step was solved.
    """
    x, y, phi, f = (part.to(torch.float64) for part in (target.points, source.points, potential, factor))
    massive = target.weights > 0
    rows, columns = coupling.rows, coupling.columns
    own = f[rows] * manifold.squared_distance(x[columns], y[rows])
    block = max(1, _ENTRIES // target.n)
    least = torch.cat(
        [
            (phi + f[i : i + block, None] * manifold.squared_distance(x, y[i : i + block, None]))[:, massive].amin(1)
            for i in range(0, source.n, block)
        ]
    )
    gain = phi[columns] + own - least[rows]
    eps = float(torch.finfo(target.dtype).eps)
    reach = torch.maximum(x.abs().amax(), y.abs().amax())
    slack = 8 * (eps * (phi.abs().amax() + f[rows] * reach * own.div(f[rows]).sqrt()) + tolerance * own)
    passed = bool((gain <= slack).all())
    return CouplingCertificate(passed, max(0.0, float(gain.amax())), optimal=True)
