"""The unit sphere S^{d-1} in R^d with its geodesic distance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch

from jko.checks import check_finite, first_bad_index
from jko.errors import InvalidInput
from jko.manifolds.base import AbstractManifold, normal_points
from jko.numerics import adjoint_coefficients, curvature_coefficients, exp_coefficients, inner, row_sum, squared_angle
from jko.typing import Float, Tensor

__all__ = ["Sphere"]

# Rounding of the coordinates leaves P_y x of an antipodal pair within a few ulp of 0.
_ANTIPODAL_ULPS = 8


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sphere(AbstractManifold):
    """The unit sphere S^{d-1}, d >= 2: Exp_y(xi) = cos|xi| y + (sin|xi| / |xi|) xi."""

    @property
    def injectivity_radius(self) -> float:
        """pi: antipodal points are joined by every great circle through them."""
        return math.pi

    def dimension(self, d: int) -> int:
        """Return d - 1."""
        return d - 1

    def check(self, points: Tensor, name: str = "points") -> None:
        """Refuse rows that are no unit vectors, and d = 1."""
        if points.ndim == 0 or points.shape[-1] == 0:
            raise InvalidInput(f"{name} of shape {tuple(points.shape)} have no coordinates; the last axis holds them")
        if points.shape[-1] == 1:
            raise InvalidInput(
                f"{name} of shape {tuple(points.shape)} have d = 1, and S^0 is two points without motion between "
                "them; the sphere needs d >= 2"
            )
        check_finite(points, name)
        norm = _norm(points.to(torch.float64)).squeeze(-1)
        bad = (norm - 1).abs() > (1e-5 if points.dtype == torch.float32 else 1e-9)
        if bool(bad.any()):
            index = first_bad_index(bad)
            raise InvalidInput(
                f"{name}{_row(index)} has norm {float(norm[index]):.10g}, not 1; points of the sphere are unit "
                "vectors, use Sphere().project_point if normalizing is what you mean"
            )

    def squared_distance(
        self, x: Float[Tensor, "*#batch d"], y: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch"]:
        """Return the squared angle between x and y."""
        return squared_angle(row_sum((x - y).square()), row_sum((x + y).square()))

    def exp(self, y: Float[Tensor, "*#batch d"], xi: Float[Tensor, "*#batch d"]) -> Float[Tensor, "*#batch d"]:
        """Return cos r y + (sin r / r) xi with r = |xi|, normalized."""
        c0, c1 = exp_coefficients(inner(xi, xi))
        z = c0 * y + c1 * xi
        # The norm is 1 up to rounding, which would add up over thousands of steps.
        return z / torch.linalg.vector_norm(z, dim=-1, keepdim=True)

    def exp_differential(
        self, y: Float[Tensor, "*#batch d"], xi: Float[Tensor, "*#batch d"], eta: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return c1 eta + <xi, eta> (c2 xi - c1 y)."""
        c1, c2 = adjoint_coefficients(inner(xi, xi))
        along = inner(xi, eta)
        return c1 * eta + along * (c2 * xi - c1 * y)

    def exp_adjoint(
        self, y: Float[Tensor, "*#batch d"], xi: Float[Tensor, "*#batch d"], g: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return c1 P_y g + (c2 <xi, g> - c1 <y, g>) xi."""
        c1, c2 = adjoint_coefficients(inner(xi, xi))
        normal = inner(y, g)
        return c1 * (g - normal * y) + (c2 * inner(xi, g) - c1 * normal) * xi

    def exp_adjoint_derivative(
        self,
        y: Float[Tensor, "*#batch d"],
        xi: Float[Tensor, "*#batch d"],
        g: Float[Tensor, "*#batch d"],
        eta: Float[Tensor, "*#batch d"],
    ) -> Float[Tensor, "*#batch d"]:
        """Differentiate every c and every xi of `exp_adjoint`, with c1' = c2 <xi, eta> and c2' = c3 <xi, eta>."""
        c1, c2, c3 = curvature_coefficients(inner(xi, xi))
        normal, along, radial = inner(y, g), inner(xi, eta), inner(xi, g)
        return (
            c2 * along * (g - normal * y)
            + (c2 * inner(eta, g) + along * (c3 * radial - c2 * normal)) * xi
            + (c2 * radial - c1 * normal) * eta
        )

    def log(self, y: Float[Tensor, "*#batch d"], x: Float[Tensor, "*#batch d"]) -> Float[Tensor, "*#batch d"]:
        """Return the angle times the direction of P_y x; antipodal pairs are refused."""
        sine, length, angle = _departure(y, x)
        zero = length == 0
        return torch.where(zero, 1.0, angle / torch.where(zero, 1.0, length)) * sine

    def project_point(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Return z / |z|; zero rows are refused."""
        # Dividing by the largest entry first keeps the squares from under- and overflowing. As a constant it
        # leaves the derivative right, because the result does not depend on the length of z.
        largest = z.detach().abs().amax(-1, keepdim=True)
        zero = largest == 0
        if bool(zero.any()):
            index = first_bad_index(zero.squeeze(-1))
            raise InvalidInput(
                f"row{_row(index)} of the points of shape {tuple(z.shape)} is zero, so it has no nearest point on the "
                "sphere; remove it"
            )
        z = z / largest
        return z / _norm(z)

    def project_vector(
        self, x: Float[Tensor, "*#batch d"], v: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return v - <x, v> x."""
        return v - inner(x, v) * x

    def transport(
        self, y: Float[Tensor, "*#batch d"], x: Float[Tensor, "*#batch d"], v: Float[Tensor, "*#batch d"]
    ) -> Float[Tensor, "*#batch d"]:
        """Return the reflection of v at the hyperplane normal to x + y; antipodal pairs are refused."""
        # This reflection maps y to -x. Its normal is built from a direction tangent at y, not from x + y, which
        # near the antipode of y is nothing but the rounding of the two norms.
        sine, length, angle = _departure(y, x)
        middle = (angle / 2).cos() * y + (angle / 2).sin() * (sine / torch.where(length == 0, 1.0, length))
        return self.project_vector(x, v - 2 * inner(middle, v) * middle)

    def tangent_basis(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d k"]:
        """Return the last columns of the Householder reflection that maps e_1 to x or -x."""
        # The reflection that maps e_1 to -x or x, whichever is farther, so that its normal has length >= sqrt 2.
        d = x.shape[-1]
        identity = torch.eye(d, dtype=x.dtype, device=x.device)
        normal = torch.where(x[..., :1] < 0, x - identity[0], x + identity[0])
        scaled = 2 * normal / inner(normal, normal)
        return identity[:, 1:] - scaled[..., :, None] * normal[..., None, 1:]

    def random_point(
        self,
        shape: tuple[int, ...],
        d: int,
        seed: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "*shape d"]:
        """Return uniform points: normalized Gaussian vectors."""
        if d == 1:
            raise InvalidInput("S^0 (d = 1) is two points without motion between them; the sphere needs d >= 2")
        return self.project_point(normal_points(shape, d, seed)).to(dtype=dtype, device=device)


def _norm(x: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return length


def _row(index: tuple[int, ...]) -> str:
    return str(list(index)) if index else ""


def _departure(y: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return P_y x, its length (the sine of the angle from y to x) and the angle; antipodal pairs are refused."""
    cosine = inner(x, y)
    # From the shorter of x - y and x + y, which are exact where they are short; x - <x, y> y cancels at both ends.
    near = torch.where(cosine < 0, x + y, x - y)
    sine = near - inner(near, y) * y
    length = _norm(sine)
    antipodal = ((cosine < 0) & (length <= _ANTIPODAL_ULPS * torch.finfo(length.dtype).eps)).squeeze(-1)
    if bool(antipodal.any()):
        index = first_bad_index(antipodal)
        which = f"pair {index[0] if len(index) == 1 else index}" if index else "the pair"
        raise InvalidInput(
            f"{which} is antipodal within rounding: every direction is the start of a shortest geodesic, so none is "
            "the logarithm; move one of the points"
        )
    # The sine of this very vector, not |x - y|: norms that are off by rounding must not lengthen it where x = y.
    return sine, length, torch.atan2(length, cosine)
