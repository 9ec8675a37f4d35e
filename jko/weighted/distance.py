"""The dynamic distance W_{m,2} between two particle measures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from jko.checks import as_float_tensor, check_integer, check_positive
from jko.errors import InvalidInput
from jko.heads import AbstractHeads
from jko.heads.base import check_head_matrices, check_head_weights
from jko.manifolds import AbstractManifold, Sphere
from jko.measure import ParticleMeasure
from jko.memory import check_fits
from jko.status import Status
from jko.weighted.geodesic import Geodesic, shortest_path
from jko.weighted.labels import best_labels, interchangeable, midpoint_cost
from jko.weighted.path_energy import PathEnergy

__all__ = ["WeightedDistance", "weighted_distance"]

_LABEL_ROUNDS = 10
_TIE = 1e-10


@final
@dataclass(frozen=True, slots=True, eq=False)
class WeightedDistance:
    """The outcome of `weighted_distance`.

    Attributes:
        value: W_{m,2}, a length (not squared); inf with Status.NON_FINITE.
        path: the geodesic, points x^0 ... x^S of shape (S + 1, n, d), float64.
        labels: particle i ends at points1[labels[i]], shape (n,).
        status: SUCCESS at a local minimum within the tolerance. BEYOND_CUT_LOCUS where the path wants segments longer
            than half the injectivity radius: take more segments. NOT_CONVERGED where the minimizer stopped above its
            tolerance, as in R^d when mobilities that vanish at infinity leave no minimum. NON_FINITE where a mobility
            left the range of floats.
        longest_segment: longest way of a particle over one segment. The midpoint rule resolves the mobility where
            this is small against 1 / |D|.
        residual: relative error of the displacement that the gradient at the path leaves; that of the value is
            about its square.
        curvature: smallest eigenvalue of the Hessian at the path, in coordinates in which the energy of a flat space
            has the unit matrix; 1 where nothing can move, NaN where it was not found.
        evaluations: path energies with gradients that were formed, over all labels tried.
    """

    value: float
    path: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    status: Status
    longest_segment: float
    residual: float
    curvature: float
    evaluations: int


def weighted_distance(
    points0: Any,
    points1: Any,
    D_or_path: AbstractHeads | Callable[[float], Any] | Any,
    weights: Any = None,
    *,
    head_weights: Any = None,
    segments: int = 16,
    manifold: AbstractManifold = Sphere(),
    rtol: float = 1e-8,
) -> WeightedDistance:
    """Return the dynamic distance W_{m,2} of eq. (29), T = 1, between two measures with n particles each.

    It is the root of the minimum of int_0^1 sum_i w_i b(x_i(s)) |x_i'(s)|^2 ds over paths of the particles, by
    Lemma 3.8 and eq. (36), with the mobility b = 1 / mean_h(1 / m_h) of the measure at s in the heads at s. The path
    has S segments and the midpoint rule for measure and mobility, with an error O(S^-2); the path is minimized by
    L-BFGS and Newton steps, and a stationary path that is no local minimum is left downhill.

    What is found is an upper bound of (29), up to O(S^-2), for three reasons. Particles do not split: among measures
    it may pay to split mass, for one atom with D = beta I on S^{d-1}, d >= 3, beyond the distance pi / sqrt(1 + beta);
    atoms given as several coincident particles can. Ends are labels: the start is the W_2-optimal assignment, and
    others are tried that are cheaper in the mobility along the path found, until none is; only particles of EQUAL
    weight exchange their ends, so with all weights different particle i goes to points1[i]. And the minimum is a local
    one, found from the geodesics of the manifold.

    For fixed heads it is symmetric, and a path through a third measure gives the triangle inequality
    D_{S+R}^2 <= (S + R) (D_S^2 / S + D_R^2 / R). For heads that move neither holds.

    Args:
        points0: particles at s = 0, shape (n, d). All work is done in float64.
        points1: particles at s = 1, shape (n, d).
        D_or_path: head matrices of shape (H, d, d); or a path s -> (H, d, d) on [0, 1], as heads or as a function,
            read in the middle of each segment. Another interval: `lambda s: heads.at(t0 + s * (t1 - t0))`.
        weights: masses of the particles, the same at both ends, shape (n,); None means 1/n. A particle of weight 0
            follows the geodesic of the manifold and costs nothing.
        head_weights: weights of the heads, shape (H,); None means those of the heads given, or 1/H.
        segments: number S of segments.
        manifold: where the particles live.
        rtol: relative residual that counts as solved (more where points hardly move and rounding prevents it).

    Raises:
        InvalidInput: for shapes that do not fit together, points off the manifold, a particle whose end is antipodal
            to its start, or heads that are not defined on [0, 1].
    """
    rtol = check_positive(rtol, "rtol")
    start, end, w = _measures(points0, points1, weights, manifold)
    _check_size(start, check_integer(segments, "segments", least=1))
    matrices, theta = _heads(D_or_path, head_weights, check_integer(segments, "segments", least=1), start)
    steps = torch.linspace(0, 1, segments + 1, dtype=start.dtype, device=start.device)[:, None, None]
    massive = w > 0
    problem = _Problem(start, end, w, PathEnergy(w[massive], matrices, theta, manifold), steps, rtol)
    labels = problem.first_labels()
    best = problem.solve(labels)
    evaluations = best.evaluations
    for _ in range(_LABEL_ROUNDS):
        if not math.isfinite(best.value):
            break
        other = problem.better_labels(best, labels)
        if torch.equal(other, labels):
            break
        trial = problem.solve(other)
        evaluations += trial.evaluations
        if not trial.value < (1 - _TIE) * best.value:
            break
        best, labels = trial, other
    path = problem.straight(labels)
    path[:, massive] = best.path
    value = math.sqrt(best.value)
    return WeightedDistance(value, path, labels, best.status, best.longest, best.residual, best.curvature, evaluations)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """Two clouds, and the energy of paths between their particles of positive mass."""

    start: Tensor
    end: Tensor
    weights: Tensor
    energy: PathEnergy
    steps: Tensor
    rtol: float

    def straight(self, labels: Tensor) -> Tensor:
        """Return the geodesics of the manifold with these ends, shape (S + 1, n, d)."""
        manifold, end = self.energy.manifold, self.end[labels]
        path = manifold.exp(self.start, self.steps * manifold.log(self.start, end))
        path[-1] = end
        return path

    def solve(self, labels: Tensor) -> Geodesic:
        """Return the geodesic of the particles of positive mass with these ends."""
        return shortest_path(self.energy, self.straight(labels)[:, self.weights > 0], self.rtol)

    def first_labels(self) -> Tensor:
        """Return the W_2-optimal assignment among particles of equal weight."""
        identity = torch.arange(len(self.start), device=self.start.device)
        cost = self.energy.manifold.squared_distance(self.start[:, None], self.end[None])
        return self._assigned(self.weights[:, None] * cost, identity)

    def better_labels(self, found: Geodesic, labels: Tensor) -> Tensor:
        """Return the assignment that is best in the mobility half-way along a path."""
        massive, energy, count = self.weights > 0, self.energy, len(self.steps) - 1
        middle = energy.manifold.project_point((found.path[count // 2] + found.path[(count + 1) // 2]) / 2)
        cost = self.start.new_zeros(len(massive), len(massive))
        cost[massive[:, None] & massive] = midpoint_cost(
            self.start[massive],
            self.end[massive],
            energy.weights,
            energy.D[len(energy.D) // 2],
            energy.head_weights,
            middle,
            energy.manifold,
        ).flatten()
        return self._assigned(cost, labels)

    def _assigned(self, cost: Tensor, labels: Tensor) -> Tensor:
        return best_labels(cost, interchangeable(self.weights), labels)


def _measures(points0: Any, points1: Any, weights: Any, manifold: AbstractManifold) -> tuple[Tensor, Tensor, Tensor]:
    """Return both clouds and the masses in float64, the clouds on the manifold to its last digits."""
    clouds = []
    for points, name in ((points0, "points0"), (points1, "points1")):
        x = as_float_tensor(points, name)
        if x.ndim != 2 or x.numel() == 0:
            raise InvalidInput(f"{name} must have shape (n, d), got {tuple(x.shape)}; pass one measure at a time")
        manifold.check(x, name)
        clouds.append(manifold.project_point(x.to(torch.float64)))
    start, end = clouds[0], clouds[1].to(clouds[0].device)
    if start.shape != end.shape:
        raise InvalidInput(
            f"points0 have shape {tuple(start.shape)} and points1 {tuple(end.shape)}; both measures need the same "
            "number of particles in the same space, repeat particles to split their mass"
        )
    measure = ParticleMeasure(start, weights)
    return measure.points, end, measure.weights


def _check_size(points: Tensor, segments: int, heads: int = 1, nodes: int = 1) -> None:
    """Refuse what memory cannot hold before any of it is made."""
    (n, d), way_out = points.shape, "take fewer particles, segments or heads"
    for name, shape, copies in (
        ("the differences of all pairs", (n, n, d), 2),
        ("the kernels of the heads", (heads, n, n), 3),
        ("the heads along the path", (nodes, heads, d, d), 2),
        ("the frames along the path", (segments, n, d, d), 2),
        ("the stiffness of the paths", (n, segments, segments), 3),
        # The memory of L-BFGS, of points and gradients.
        ("the paths of the particles", (segments + 1, n, d), 50),
    ):
        check_fits(name, shape, points.dtype, points.device, way_out, copies=copies)


def _heads(D_or_path: Any, head_weights: Any, segments: int, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrices in the middle of each segment, (S, H, d, d) or (1, H, d, d), and the weights of the heads."""
    moves, path = True, D_or_path
    if isinstance(path, AbstractHeads):
        if path.head_weights is not None and head_weights is not None:
            raise InvalidInput("the heads have weights of their own; leave head_weights out, or give heads without")
        head_weights = head_weights if path.head_weights is None else path.head_weights
        moves, path = path.moves, path.at
    elif not callable(path):
        path, moves = (lambda _: D_or_path), False
    times = [(k + 0.5) / segments for k in range(segments if moves else 1)]
    first = check_head_matrices(path(times[0]), "D")
    _check_size(points, segments, len(first), len(times))
    read = [first, *(check_head_matrices(path(s), "D") for s in times[1:])]
    if len({D.shape for D in read}) > 1:
        raise InvalidInput(
            f"D changes its shape along the path, which starts with {tuple(read[0].shape)}; their number is fixed"
        )
    D = torch.stack(read).to(points)
    if D.shape[-1] != points.shape[-1]:
        raise InvalidInput(
            f"D has matrices of shape {tuple(D.shape[-2:])}, but the points have {points.shape[-1]} coordinates"
        )
    heads = D.shape[1]
    theta = check_head_weights(head_weights, heads)
    theta = torch.full((heads,), 1.0 / heads, dtype=torch.float64) if theta is None else theta
    active = theta > 0
    return D[:, active.to(D.device)], theta[active].to(points)
