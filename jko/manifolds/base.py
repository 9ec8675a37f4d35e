"""The contract of a manifold: what a minimizing movement needs to know about the space of its particles."""

from __future__ import annotations

import abc

import torch

from jko.checks import check_integer
from jko.random import Purpose, stream
from jko.typing import Float, Tensor

__all__ = ["AbstractManifold", "normal_points"]

# `initial_tokens` draws from the streams 0 and 1 of this purpose.
_POINTS_STREAM = 2


class AbstractManifold(abc.ABC):
    """A complete Riemannian manifold embedded in R^d, with the metric of R^d on its tangent spaces.

    The last axis of every tensor holds the d ambient coordinates; all leading axes (heads, particles, batch)
    broadcast. Points are assumed to lie on the manifold and vectors to be tangent, except where a method says
    "ambient"; only `check` verifies that. Non-finite entries give non-finite results. A result may share memory
    with an argument.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def injectivity_radius(self) -> float:
        """Largest r such that geodesics of every length below r are the only shortest ones; inf if all are."""

    @abc.abstractmethod
    def dimension(self, d: int) -> int:
        """Return the dimension of the tangent spaces when points have d coordinates."""

    @abc.abstractmethod
    def check(self, points: Tensor, name: str = "points") -> None:
        """Refuse points that are not on the manifold within rounding (1e-5 in float32, 1e-9 in float64).

        Raises:
            InvalidInput: naming the first bad row of `name` and the remedy.
        """

    @abc.abstractmethod
    def squared_distance(
        self, x: Float[Tensor, "*#batch d"], y: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch"]:
        """Return the squared geodesic distance d^2(x, y), shape (*batch).

        Differentiable twice by autograd with gradient exactly 0 at x = y; the gradient is finite everywhere.
        """

    @abc.abstractmethod
    def exp(self, y: Float[Tensor, "*#batch d"], xi: Float[Tensor, "*#batch d"]) -> Float[Tensor, "*#batch d"]:
        """Return Exp_y(xi), the end of the geodesic from y with initial velocity xi at time 1.

        The result lies on the manifold to rounding for any number of repetitions.
        """

    @abc.abstractmethod
    def exp_differential(
        self, y: Float[Tensor, "*#batch d"], xi: Float[Tensor, "*#batch d"], eta: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return (d Exp_y)_xi eta = d/de Exp_y(xi + e eta) at e = 0, tangent at Exp_y(xi)."""

    @abc.abstractmethod
    def exp_adjoint(
        self, y: Float[Tensor, "*#batch d"], xi: Float[Tensor, "*#batch d"], g: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return (d Exp_y)_xi^* g for an ambient vector g: the gradient of xi -> <g, Exp_y(xi)>, tangent at y.

        <(d Exp_y)_xi eta, g> = <eta, exp_adjoint(y, xi, g)> for every eta tangent at y.
        """

    @abc.abstractmethod
    def exp_adjoint_derivative(
        self,
        y: Float[Tensor, "*#batch d"],
        xi: Float[Tensor, "*#batch d"],
        g: Float[Tensor, "*#batch d"],
        eta: Float[Tensor, "*#batch d"],
    ) -> Float[Tensor, "*#batch d"]:
        """Return d/de exp_adjoint(y, xi + e eta, g) at e = 0, with the ambient vector g fixed; tangent at y.

        It is the Hessian of xi -> <g, Exp_y(xi)> applied to eta.
        """

    @abc.abstractmethod
    def log(self, y: Float[Tensor, "*#batch d"], x: Float[Tensor, "*#batch d"]) -> Float[Tensor, "*#batch d"]:
        """Return the shortest tangent vector at y with Exp_y(log) = x; its length is the distance.

        Raises:
            InvalidInput: naming the first pair with more than one shortest geodesic, within rounding.
        """

    @abc.abstractmethod
    def project_point(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Return the point of the manifold nearest to the ambient z.

        Raises:
            InvalidInput: naming the first row that has no nearest point.
        """

    @abc.abstractmethod
    def project_vector(
        self, x: Float[Tensor, "*#batch d"], v: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return P_x v, the orthogonal projection of the ambient vector v to the tangent space at x."""

    @abc.abstractmethod
    def transport(
        self, y: Float[Tensor, "*#batch d"], x: Float[Tensor, "*#batch d"], v: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return v, tangent at y, transported in parallel along the shortest geodesic from y to x.

        Raises:
            InvalidInput: as `log`.
        """

    @abc.abstractmethod
    def tangent_basis(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d k"]:
        """Return an orthonormal basis of the tangent space at x in the k = dimension(d) columns."""

    @abc.abstractmethod
    def random_point(
        self,
        shape: tuple[int, ...],
        d: int,
        seed: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "*shape d"]:
        """Return independent random points, shape (*shape, d): uniform on a compact manifold, standard normal in R^d.

        The draw is made in float64 on the CPU and depends on the seed alone, then it is converted and moved.

        Raises:
            InvalidInput: for a seed that is no whole number in [0, 2^32), or a d without a manifold.
        """

    def retract(self, y: Float[Tensor, "*#batch d"], v: Float[Tensor, "*#batch d"]) -> Float[Tensor, "*#batch d"]:
        """Return the projected update project_point(y + v), the move of the explicit Euler scheme.

        Raises:
            InvalidInput: as `project_point`.
        """
        return self.project_point(y + v)


def normal_points(shape: tuple[int, ...], d: int, seed: int) -> Tensor:
    """Return standard normal numbers of shape (*shape, d) in float64 on the CPU from the stream of points of `seed`."""
    d = check_integer(d, "d", least=1)
    generator = stream(seed, 0, _POINTS_STREAM, purpose=Purpose.INITIAL_TOKENS)
    return torch.from_numpy(generator.standard_normal((*shape, d)))
