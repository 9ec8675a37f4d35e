"""Test functions of the weak form: smooth functions of position with an exact bound of their Hessian."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.manifolds import AbstractManifold, Euclidean, Sphere

__all__ = ["Probe", "bump_integrals", "default_probes"]

_NODES = 8


@final
@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A function phi on a manifold.

    Attributes:
        name: formula.
        value: phi at points (..., d), shape (...).
        gradient: its ambient gradient, shape (..., d); the caller projects.
        hessian_bound: beta >= norm(Hess phi(v, v)) for all points and unit tangent vectors v.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor], Tensor]
    hessian_bound: float


def default_probes(manifold: AbstractManifold, d: int) -> tuple[Probe, ...]:
    """Return spherical harmonics of degrees 1, 2 (and 3 for d = 3) on the sphere, plane waves in R^d.

    Raises:
        InvalidInput: for another manifold, where a Hessian bound is not known.
    """
    if isinstance(manifold, Sphere) and d >= 2:
        found = [_linear(d), _quadratic(d)]
        return (*found, _cubic()) if d == 3 else tuple(found)
    if isinstance(manifold, Euclidean):
        return tuple(_wave(d, frequency) for frequency in (1.0, 2.0))
    raise InvalidInput(f"no test functions are known on {type(manifold).__name__}; pass functions of your own")


def _linear(d: int) -> Probe:
    a = torch.arange(1, d + 1, dtype=torch.float64)
    a = a / a.norm()
    # On the sphere Hess = -<a, x> g.
    return Probe("<a, x>", lambda x: x @ a.to(x), lambda x: a.to(x).expand_as(x), 1.0)


def _quadratic(d: int) -> Probe:
    a = torch.linspace(1, -1, d, dtype=torch.float64)
    # Hess(v, v) = 2 <v, A v> - 2 <x, A x> |v|^2, at most twice the difference of the extreme eigenvalues.
    return Probe("<x, A x>", lambda x: x.square() @ a.to(x), lambda x: 2 * a.to(x) * x, 4.0)


def _cubic() -> Probe:
    # Hess(v, v) = <v, M v> - 3 x1 x2 x3 |v|^2; M is traceless with Frobenius norm sqrt 2, so norm(M) <= 2 / sqrt 3.
    return Probe(
        "x1 x2 x3",
        lambda x: x.prod(-1),
        lambda x: torch.stack([x[..., 1] * x[..., 2], x[..., 0] * x[..., 2], x[..., 0] * x[..., 1]], -1),
        math.sqrt(3.0),
    )


def _wave(d: int, frequency: float) -> Probe:
    a = frequency * torch.linspace(1, 0.5, d, dtype=torch.float64)
    a = frequency * a / a.norm()

    def gradient(x: Tensor) -> Tensor:
        return -torch.sin(x @ a.to(x))[..., None] * a.to(x)

    return Probe(f"cos<a, x>, norm(a) = {frequency:g}", lambda x: torch.cos(x @ a.to(x)), gradient, frequency**2)


def bump_integrals(times: Tensor) -> Tensor:
    """Return the integrals of a smooth bump with support [t_0, t_N] and maximum 1 over the intervals of a grid."""
    start, end = float(times[0]), float(times[-1])
    abscissas, factors = np.polynomial.legendre.leggauss(_NODES)
    middles, halves = (times[1:] + times[:-1]) / 2, times.diff() / 2
    at = middles[:, None] + halves[:, None] * torch.from_numpy(abscissas)
    r = 2 * (at - start) / (end - start) - 1
    bump = torch.exp(1 - 1 / (1 - r.square()).clamp_min(1e-300))
    return halves * (bump @ torch.from_numpy(factors))
