"""Attention by its formulas: whole (H, n, n) arrays, nothing shared with the package; and one assertion for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Relative to the largest entry: rounding of exponents up to 10 and of sums over a few hundred particles.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5}


@dataclass(frozen=True)
class Problem:
    """Particles (n, d) or a cloud for every head (H, n, d), weights (n,), heads (H, d, d)."""

    points: Tensor
    weights: Tensor
    D: Tensor

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Problem:
        return Problem(*(a.to(device=device, dtype=dtype) for a in (self.points, self.weights, self.D)))


def problem(
    n: int,
    d: int,
    H: int,
    *,
    symmetric: bool = True,
    own: bool = False,
    weights: str = "unequal",
    seed: int = 0,
    sphere: bool = False,
) -> Problem:
    generator = np.random.default_rng((seed, n, d, H))
    points = generator.standard_normal((H, n, d) if own else (n, d))
    points *= 1 / np.linalg.norm(points, axis=-1, keepdims=True) if sphere else 0.8 / np.sqrt(d)
    D = generator.standard_normal((H, d, d))
    if symmetric:
        D = (D + D.transpose(0, 2, 1)) / 2
    w = np.ones(n) if weights == "equal" else generator.uniform(0.2, 2.0, n)
    if weights == "tracers":
        w[1::3] = 0.0
    return Problem(torch.from_numpy(points), torch.from_numpy(w / w.sum()), torch.from_numpy(D))


def exponents(x: Tensor, D: Tensor, y: Tensor | None = None) -> Tensor:
    """<x_i, D_h y_j>, shape (H, m, n)."""
    y = x if y is None else y
    clouds = [a.expand(D.shape[0], *a.shape[-2:]) for a in (x, y)]
    return torch.einsum("hid,hde,hje->hij", clouds[0], D, clouds[1])


def sums(x: Tensor, w: Tensor, D: Tensor) -> dict[str, Tensor]:
    """The four pair sums by the names of `PairSums`."""
    kernel = exponents(x, D).exp()
    cloud = x.expand(D.shape[0], *x.shape[-2:])
    return {
        "mass": torch.einsum("hij,j->hi", kernel, w),
        "first": torch.einsum("hij,j,hjd->hdi", kernel, w, cloud),
        "mass_transposed": torch.einsum("hji,j->hi", kernel, w),
        "first_transposed": torch.einsum("hji,j,hjd->hdi", kernel, w, cloud),
    }


def second_moments(x: Tensor, w: Tensor, D: Tensor) -> dict[str, Tensor]:
    """sum_j w_j K x_j x_j^T of both sides, entries a <= b row by row, shape (H, d (d + 1) / 2, n)."""
    kernel = exponents(x, D).exp()
    cloud = x.expand(D.shape[0], *x.shape[-2:])
    d = x.shape[-1]
    rows = [(a, b) for a in range(d) for b in range(a, d)]
    return {
        name: torch.stack([torch.einsum(path, kernel, w, cloud[..., a] * cloud[..., b]) for a, b in rows], 1)
        for name, path in (("second", "hij,j,hj->hi"), ("second_transposed", "hji,j,hj->hi"))
    }


def head_curvatures(x: Tensor, w: Tensor, D: Tensor) -> Tensor:
    """Ambient Hessian of the first variation of E_h at the particles, the measure fixed, shape (H, n, d, d)."""
    forward = torch.einsum("hij,j,hae,je,hbf,jf->hiab", exponents(x, D).exp(), w, D, x, D, x)
    backward = torch.einsum("hji,j,hea,je,hfb,jf->hiab", exponents(x, D).exp(), w, D, x, D, x)
    return (forward + backward) / 2


def head_energies(x: Tensor, w: Tensor, D: Tensor) -> Tensor:
    """E_h = 1/2 sum_ij w_i w_j K_h(x_i, x_j), shape (H,)."""
    return torch.einsum("i,hij,j->h", w, exponents(x, D).exp(), w) / 2


def head_gradients(x: Tensor, w: Tensor, D: Tensor) -> Tensor:
    """Ambient gradient of E_h per unit mass, shape (H, n, d)."""
    s = sums(x, w, D)
    forward = torch.einsum("hde,hei->hid", D, s["first"])
    backward = torch.einsum("hed,hei->hid", D, s["first_transposed"])
    return (forward + backward) / 2


def softmax_outputs(x: Tensor, w: Tensor, D: Tensor) -> Tensor:
    """sum_j A_ij D_h x_j with softmax weights A, not projected, shape (H, n, d)."""
    attention = (exponents(x, D) + w.log()).softmax(-1)
    return torch.einsum("hij,hde,je->hid", attention, D, x)


def derivative(function: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor) -> Tensor:
    """Derivative along a direction, by reverse mode twice (forward mode warns)."""
    return torch.autograd.functional.jvp(function, x, direction)[1]


def average(values: Tensor, head_weights: Tensor | None, axis: int = 0) -> Tensor:
    """Average over the heads."""
    if head_weights is None:
        return values.mean(axis)
    return torch.einsum("h,h...->...", head_weights.to(values), values.movedim(axis, 0))


def tangent(x: Tensor, v: Tensor) -> Tensor:
    """Projection onto the tangent space of the sphere."""
    return v - (x * v).sum(-1, keepdim=True) * x


def assert_close(actual: Tensor | float, expected: Tensor | float, tolerance: float, scale: float = 0.0) -> None:
    """Demand equal shapes and errors below `tolerance` times the largest entry of what is expected (or `scale`)."""
    a, e = (torch.as_tensor(v, dtype=torch.float64).detach().cpu() for v in (actual, expected))
    assert a.shape == e.shape, f"shape {tuple(a.shape)}, expected {tuple(e.shape)}"
    bound = tolerance * max(float(e.abs().max()) if e.numel() else 0.0, scale)
    # Written so that NaN fails.
    assert bool(((a - e).abs() <= bound).all()), f"largest error {float((a - e).abs().max()):.3g}, allowed {bound:.3g}"
