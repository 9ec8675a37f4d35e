"""Second-order test: a scheme is the flow of f0 + tau f1 up to O(tau^2), with f1 computed here by autograd.

For JKO with the mobility frozen at the old measure, f(x, y) = -s grad E(x) / b(y) gives
f1 = (d_1 f - d_2 f)[f0] / 2; for the head-wise step f1 = mean_h d_1 f_h[f_h] - D f_T[f_T] / 2; for explicit Euler
f1 = -D f0[f0] / 2. Heads that move add d_t f / 2 for JKO and subtract it for explicit Euler. On the sphere the
derivatives are covariant: ambient derivatives, projected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import jko
from jko.heads import AbstractHeads

N, T = 5, 0.4
STEPS = (8, 16, 32, 64)
METRICS = {"w2": jko.Wasserstein2(), "weighted": jko.WeightedWasserstein(), "headwise": jko.HeadwiseWasserstein()}


class RotatingHeads(AbstractHeads):
    """Smooth heads D(t) = A + sin(t) B, so that no grid is special."""

    def __init__(self, A: Tensor, B: Tensor) -> None:
        self.A, self.B = A, B

    def at(self, t: float) -> Tensor:
        return self.A + math.sin(t) * self.B

    @property
    def head_weights(self) -> Tensor | None:
        return None

    @property
    def t1(self) -> float:
        return math.inf

    @property
    def moves(self) -> bool:
        return True


@dataclass
class Formula:
    """The velocities of the three metrics from the plain formulas, and the modified velocity of a scheme."""

    heads: AbstractHeads
    metric: str
    sign: int

    def gradients(self, x: Tensor, D: Tensor) -> Tensor:
        """P_x DK_h for symmetric D, shape (H, n, d)."""
        K = torch.exp(torch.einsum("ia,hab,jb->hij", x, D, x)) / x.shape[0]
        ambient = self.sign * torch.einsum("hij,hab,jb->hia", K, D, x)
        return ambient - (ambient * x).sum(-1, keepdim=True) * x

    def masses(self, y: Tensor, D: Tensor) -> Tensor:
        return torch.exp(torch.einsum("ia,hab,jb->hij", y, D, y)).mean(-1)

    def parts(self, x: Tensor, y: Tensor, D: Tensor) -> Tensor:
        """f_h(x, y), or for a metric that is not lifted one part f(x, y); shape (G, n, d)."""
        gradients, masses = self.gradients(x, D), self.masses(y, D)
        if self.metric == "headwise":
            return -gradients / masses[..., None]
        if self.metric == "weighted":
            return -(gradients.mean(0) * (1 / masses).mean(0)[:, None])[None]
        return -gradients.mean(0)[None]

    def f0(self, x: Tensor, D: Tensor) -> Tensor:
        return self.parts(x, x, D).mean(0)

    def modified(self, x: Tensor, t: float, scheme: str) -> tuple[Tensor, Tensor]:
        """f0 and f1 at (x, t)."""
        D = self.heads.at(t)
        f0, parts = self.f0(x, D), self.parts(x, x, D)
        total = along(lambda z: self.f0(z, D), x, f0)
        if scheme == "jko":
            first = torch.stack(
                [along(lambda z, g=g: self.parts(z, x, D)[g], x, parts[g]) for g in range(parts.shape[0])]
            )
            f1 = first.mean(0) - total / 2
        else:
            f1 = -total / 2
        if self.heads.moves:
            step = 1e-4
            rate = (self.f0(x, self.heads.at(t + step)) - self.f0(x, self.heads.at(t - step))) / (2 * step)
            f1 = f1 + (rate if scheme == "jko" else -rate) / 2
        return f0, f1 - (f1 * x).sum(-1, keepdim=True) * x


def along(field: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Tensor:
    """Ambient derivative of a field along v."""
    return torch.autograd.functional.jvp(field, x, v)[1]


def modified_flow(formula: Formula, x0: Tensor, tau: float, scheme: str, *, order: int) -> Tensor:
    def right(t: float, flat: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(flat).reshape(N, 3)
        x = x / x.norm(dim=-1, keepdim=True)
        f0, f1 = formula.modified(x, t, scheme)
        return (f0 + (tau * f1 if order == 2 else 0)).flatten().numpy()

    start = x0.flatten().numpy()
    end = solve_ivp(right, (0.0, T), start, method="DOP853", rtol=1e-11, atol=1e-13).y[:, -1]
    x = torch.from_numpy(end).reshape(N, 3)
    return x / x.norm(dim=-1, keepdim=True)


def order_of(errors: list[float]) -> tuple[float, float]:
    logs = np.log2(errors)
    slope, offset = np.polyfit(np.log2([T / k for k in STEPS]), logs, 1)
    fit = slope * np.log2([T / k for k in STEPS]) + offset
    return float(slope), 1 - float(np.var(logs - fit) / np.var(logs))


def problem(moving: bool) -> tuple[AbstractHeads, Tensor]:
    A = 0.4 * jko.initial_heads(2, 3, 3)
    B = 0.4 * jko.initial_heads(2, 3, 4)
    heads: AbstractHeads = RotatingHeads(A, B) if moving else jko.ConstantHeads(A)
    return heads, jko.Sphere().random_point((N,), 3, 11)


def errors(formula: Formula, x0: Tensor, scheme_name: str, *, order: int) -> list[float]:
    flow = jko.GradientFlow(jko.AttentionEnergy(formula.heads, sign=formula.sign), METRICS[formula.metric])
    found = []
    for steps in STEPS:
        tau = T / steps
        scheme = jko.JKO(tau, minimizer=jko.Anderson(rtol=1e-11)) if scheme_name == "jko" else jko.ExplicitEuler(tau)
        end = jko.solve(flow, jko.ParticleMeasure(x0), scheme, t1=T, save=jko.Save(every=steps)).points[-1]
        found.append(float((end - modified_flow(formula, x0, tau, scheme_name, order=order)).abs().max()))
    return found


@pytest.mark.parametrize("moving", [False, True], ids=["frozen", "smooth"])
@pytest.mark.parametrize("scheme", ["jko", "explicit"])
@pytest.mark.parametrize("metric", METRICS)
def test_a_scheme_is_the_flow_of_its_modified_velocity(metric: str, scheme: str, moving: bool) -> None:
    heads, x0 = problem(moving)
    sign = 1 if metric == "weighted" else -1
    slope, r2 = order_of(errors(Formula(heads, metric, sign), x0, scheme, order=2))
    assert slope == pytest.approx(2, abs=0.1)
    assert r2 > 0.99


def test_without_the_correction_the_order_is_one() -> None:
    heads, x0 = problem(moving=False)
    slope, _ = order_of(errors(Formula(heads, "weighted", 1), x0, "jko", order=1))
    assert slope == pytest.approx(1, abs=0.1)
