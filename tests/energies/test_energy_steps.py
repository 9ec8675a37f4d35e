"""Steps of energies without heads against closed forms: what a minimizing movement in R^d must do exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import jko
from jko.energies import AbstractEnergy, FunctionEnergy, InteractionEnergy, PotentialEnergy, Scaled
from jko.kernels import FunctionKernel, GaussianKernel, LogarithmicKernel, PowerKernel
from jko.schemes import Step
from tests.schemes.problems import gap, succeeded

F64 = torch.float64
SQUARE = 0.5 * InteractionEnergy(PowerKernel(2))
LOGARITHM = InteractionEnergy(LogarithmicKernel())
ATTENTION = InteractionEnergy(FunctionKernel(lambda x, y: (x * y).sum(-1).exp()))


def flow_of(energy: AbstractEnergy, manifold: Any = None) -> jko.GradientFlow:
    return jko.GradientFlow(energy, jko.Wasserstein2(), jko.Euclidean() if manifold is None else manifold)


def step(energy: AbstractEnergy, mu: jko.ParticleMeasure, tau: float, **options: Any) -> Step:
    return jko.JKO(tau, **options).step(flow_of(energy), mu)


def precise() -> dict[str, Any]:
    return {"minimizer": jko.Anderson(rtol=1e-12), "fallback": jko.TrustNewton(rtol=1e-12)}


def cloud(n: int = 8, d: int = 2, seed: int = 0, *, equal: bool = False, tracer: bool = False) -> jko.ParticleMeasure:
    generator = np.random.default_rng((seed, n, d))
    w = np.ones(n) if equal else generator.uniform(0.2, 2.0, n)
    if tracer:
        w[n // 2] = 0.0
    return jko.ParticleMeasure(generator.standard_normal((n, d)), w / w.sum())


def average(mu: jko.ParticleMeasure, values: Tensor) -> Tensor:
    return torch.einsum("n,n...->...", mu.weights, values)


# quadratic interaction


@settings(max_examples=15)
@given(
    n=st.integers(1, 9),
    d=st.integers(1, 4),
    tau=st.sampled_from([0.01, 0.3, 2.0, 20.0]),
    tracer=st.booleans(),
    seed=st.integers(0, 99),
)
def test_deviations_from_the_mean_shrink(n: int, d: int, tau: float, tracer: bool, seed: int) -> None:
    mu = cloud(n, d, seed, tracer=tracer and n > 1)
    y = succeeded(step(SQUARE, mu, tau, **precise())).measure.points
    mean = average(mu, mu.points)
    assert gap(average(mu, y), mean) < 1e-12
    # Tracers too: they feel the same attraction to the mean.
    assert gap(y - mean, (mu.points - mean) / (1 + tau)) < 1e-10


def test_repulsion_by_the_square_spreads() -> None:
    mu = cloud()
    y = succeeded(step(-1 * SQUARE, mu, 0.25, **precise())).measure.points
    mean = average(mu, mu.points)
    assert gap(y - mean, (mu.points - mean) / 0.75) < 1e-10


def test_single_precision_steps() -> None:
    mu = cloud().to(torch.float32)
    moved = succeeded(step(SQUARE, mu, 0.5)).measure
    mean = average(mu, mu.points)
    assert moved.dtype == torch.float32
    assert gap(moved.points - mean, ((mu.points - mean) / 1.5).double()) < 5e-6


# the identities of homogeneous energies

PARTS: list[tuple[float, float, InteractionEnergy]] = [
    (0.5, 2.0, InteractionEnergy(PowerKernel(2))),
    (0.25, 4.0, InteractionEnergy(PowerKernel(4))),
    (-0.3, 1.5, InteractionEnergy(PowerKernel(1.5))),
    (0.2, -1.0, InteractionEnergy(PowerKernel(-1))),
]


@pytest.mark.parametrize("tau", [0.05, 1.0])
@pytest.mark.parametrize("terms", [(0,), (1,), (0, 3), (0, 1, 2, 3)])
def test_virial_identity(tau: float, terms: tuple[int, ...]) -> None:
    # sum w <x', x' - x> / tau = - sum_j p_j E_j(x') for parts homogeneous of degree p_j.
    mu = cloud(6)
    energy: AbstractEnergy = 1.0 * PotentialEnergy(lambda x: 0.5 * x.square().sum(-1))
    for k in terms:
        energy = energy + PARTS[k][0] * PARTS[k][2]
    moved = succeeded(step(energy, mu, tau, **precise())).measure
    work = float(average(mu, (moved.points * (moved.points - mu.points)).sum(-1))) / tau
    virial = float(average(mu, moved.points.square().sum(-1)))
    virial += sum(PARTS[k][0] * PARTS[k][1] * float(PARTS[k][2].value(moved, 0.0)) for k in terms)
    assert work == pytest.approx(-virial, abs=1e-10)


@pytest.mark.parametrize(("chi", "tau"), [(0.5, 0.05), (0.5, 0.1), (-0.5, 0.1), (-0.5, 5.0), (-6.0, 1.0)])
@pytest.mark.parametrize("n", [2, 7])
def test_logarithmic_identity(chi: float, tau: float, n: int) -> None:
    # mean|x'|^2 - mean|x|^2 = -tau chi/(2 pi) (N - 1)/N - W^2, whatever the positions.
    mu = cloud(n, equal=True)
    done = succeeded(step((chi / (2 * math.pi)) * LOGARITHM, mu, tau, **precise()))
    change = done.measure.points.square().sum(-1).mean() - mu.points.square().sum(-1).mean()
    expected = -tau * chi / (2 * math.pi) * (n - 1) / n - done.info.columns["squared_distance"]
    assert float(change) == pytest.approx(expected, abs=1e-10)
    assert gap(average(mu, done.measure.points), average(mu, mu.points)) < 1e-12


def test_attraction_by_the_logarithm_has_no_minimizer_beyond_a_step_size() -> None:
    # Two particles at distance r: r' + tau c / r' = r needs r^2 >= 4 tau c.
    mu = jko.ParticleMeasure([[1.0, 0.0], [-1.0, 0.0]])
    c = 0.7
    done = succeeded(step(c * LOGARITHM, mu, 1.0, **precise()))
    r = float((done.measure.points[0] - done.measure.points[1]).norm())
    assert r == pytest.approx(1 + math.sqrt(1 - c), rel=1e-10)
    failed = step(c * LOGARITHM, mu, 2.0, fallback=jko.TrustNewton(max_passes=100))
    assert not failed.info.status.ok
    assert failed.measure is mu


# stationary states


def settled(energy: AbstractEnergy, mu: jko.ParticleMeasure, tau: float, steps: int) -> Tensor:
    """Particles about their mean after some large steps."""
    flow, scheme = flow_of(energy), jko.JKO(tau)
    for _ in range(steps):
        mu = succeeded(scheme.step(flow, mu)).measure
    return mu.points - average(mu, mu.points)


def test_the_disk() -> None:
    # W = |x|^2/2 - log|x|: mean|x|^2 = (N - 1)/(2N) exactly.
    n = 6
    x = settled(SQUARE + (-1) * LOGARITHM, cloud(n, equal=True), 3.0, 8)
    assert float(x.square().sum(-1).mean()) == pytest.approx((n - 1) / (2 * n), abs=1e-6)


def test_the_ring() -> None:
    # W = |x|^4/4 - |x|^2/2: radius 1/sqrt(3), isotropic.
    energy = 0.25 * InteractionEnergy(PowerKernel(4)) + (-1) * SQUARE
    angles = torch.tensor([0.1, 1.2, 2.0, 3.3, 4.1, 5.5], dtype=F64)
    radii = torch.tensor([0.5, 0.7, 0.6, 0.4, 0.55, 0.65], dtype=F64)
    mu = jko.ParticleMeasure(radii[:, None] * torch.stack([angles.cos(), angles.sin()], 1))
    x = settled(energy, mu, 4.0, 12)
    assert gap(x.norm(dim=-1), torch.full((6,), 1 / math.sqrt(3), dtype=F64)) < 1e-4
    assert gap(x.mT @ x / 6, torch.eye(2, dtype=F64) / 6) < 1e-4


# potential energies: the step is the proximal map of tau V


@pytest.mark.parametrize("rate", [2.0, -0.5])
@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_quadratic_potentials(rate: float, tau: float) -> None:
    center, mu = torch.tensor([1.0, -2.0], dtype=F64), cloud(tracer=True)
    energy = rate * PotentialEnergy(lambda x: 0.5 * (x - center).square().sum(-1))
    y = succeeded(step(energy, mu, tau, **precise())).measure.points
    assert gap(y - center, (mu.points - center) / (1 + tau * rate)) < 1e-10


@pytest.mark.parametrize("sign", [1, -1])
def test_the_step_is_the_proximal_map(sign: int) -> None:
    # x' + tau grad V(x') = x for every particle, tracers included, whatever the coupling.
    def V(x: Tensor) -> Tensor:
        return x.square().sum(-1).square() / 4 + x[..., 0].cos()

    mu, tau = cloud(6, tracer=True), 0.2
    if sign == -1:
        # Beyond a radius the quartic has no proximal point.
        mu = jko.ParticleMeasure(0.3 * mu.points, mu.weights)
    done = succeeded(step(sign * PotentialEnergy(V), mu, tau, **precise()))
    x = done.measure.points.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(V(x).sum(), x)
    assert gap(x + sign * tau * gradient, mu.points) < 1e-10
    alone = [
        succeeded(step(sign * PotentialEnergy(V), jko.ParticleMeasure(p[None]), tau, **precise())) for p in mu.points
    ]
    assert gap(done.measure.points, torch.cat([part.measure.points for part in alone])) < 1e-10


def test_a_potential_in_time_is_taken_at_the_end_of_the_step() -> None:
    mu = cloud(3)
    energy = PotentialEnergy(lambda x, t: (1 + t) * x.square().sum(-1) / 2)
    done = succeeded(jko.JKO(0.5, **precise()).step(flow_of(energy), mu, t=1.0))
    assert gap(done.measure.points, mu.points / (1 + 0.5 * 2.5)) < 1e-10
    assert done.info.columns["time_part"] == pytest.approx(0.5 * float(average(mu, mu.points.square().sum(-1))) / 2)


def test_ornstein_uhlenbeck_without_noise() -> None:
    # About the center every step divides by 1 + tau lambda; after N steps (1 + T lambda / N)^-N, of order 1.
    mu, center, errors = cloud(5, 1), 3.0, []
    flow = flow_of(PotentialEnergy(lambda x: (x[..., 0] - center) ** 2 / 2))
    for n in (10, 20, 40):
        sol = jko.solve(flow, mu, jko.JKO(1.0 / n), t1=1.0)
        assert gap(sol.points[-1] - center, (mu.points - center) * (1 + 1 / n) ** -n) < 1e-8
        errors.append(gap(sol.points[-1] - center, (mu.points - center) * math.exp(-1)))
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.1)
    assert errors[1] / errors[2] == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("known", [False, True])
def test_given_derivatives_serve_the_fallback(known: bool) -> None:
    given = {
        "gradient": lambda x: x.sinh(),
        "hessian_product": (lambda x, v: x.cosh() * v) if known else None,
    }
    energy = PotentialEnergy(lambda x: x.cosh().sum(-1), **given)
    mu = cloud(5)
    done = succeeded(step(energy, mu, 30.0, minimizer=jko.TrustNewton(rtol=1e-11), fallback=None))
    assert gap(done.measure.points + 30 * done.measure.points.sinh(), mu.points) < 1e-9


# energies given as functions


def test_a_function_is_the_energy_that_it_computes() -> None:
    def attract(points: Tensor, weights: Tensor, t: float) -> Tensor:
        squares = (points[:, None] - points).square().sum(-1)
        return weights @ squares @ weights / 4

    mu = cloud()
    for tau in (0.1, 20.0):
        one, other = (succeeded(step(e, mu, tau, **precise())) for e in (FunctionEnergy(attract, moves=False), SQUARE))
        assert gap(one.measure.points, other.measure.points) < 1e-10
        assert one.info.columns["energy_previous"] == pytest.approx(other.info.columns["energy_previous"])


def test_an_energy_without_the_weights_is_not_certified() -> None:
    mu = cloud(equal=True)
    done = succeeded(step(FunctionEnergy(lambda x, w, t: 0.5 * x.square().sum(-1).mean()), mu, 0.5))
    assert gap(done.measure.points, mu.points / 1.5) < 1e-7
    assert done.info.columns["certified"] == 0.0
    coupled = step(FunctionEnergy(lambda x, w, t: 0.5 * w @ x.square().sum(-1)), mu, 0.5)
    assert coupled.info.columns["certified"] == 1.0


# factors, overflow, heads off, copies


def half_exponential(points: Tensor, weights: Tensor, t: float) -> Tensor:
    return weights @ (points @ points.mT).exp() @ weights / 2


@pytest.mark.parametrize("energy", [ATTENTION, FunctionEnergy(half_exponential)], ids=["kernel", "function"])
def test_factors_one_half_and_two(energy: AbstractEnergy) -> None:
    line = step(energy, jko.ParticleMeasure([[1.0]]), 0.1)
    x = float(succeeded(line).measure.points)
    assert x == pytest.approx(0.833187, abs=5e-7)
    assert abs(x - 1 + 0.1 * x * math.exp(x * x)) < 1e-7
    y = jko.ParticleMeasure([[math.cos(a), math.sin(a)] for a in (0.5, -0.5)])
    for sign, angle in ((1, 0.569039), (-1, 0.427282)):
        on_circle = jko.JKO(0.1).step(flow_of(sign * energy, jko.Sphere()), y)
        angles = torch.atan2(*succeeded(on_circle).measure.points.mT.flip(0).unbind())
        assert gap(angles, [angle, -angle]) < 6e-7


@pytest.mark.parametrize("energy", [ATTENTION, FunctionEnergy(half_exponential)], ids=["kernel", "function"])
def test_overflow_is_told(energy: AbstractEnergy) -> None:
    mu = jko.ParticleMeasure([[30.0, 0.0]])
    failed = step(energy, mu, 0.1)
    assert failed.info.status is jko.Status.NON_FINITE
    assert failed.measure is mu
    assert "not finite" in failed.info.detail
    assert energy.description in failed.info.detail
    repelled = InteractionEnergy(FunctionKernel(lambda x, y: (-(x * y).sum(-1)).exp()))
    still = succeeded(step(repelled, mu, 0.1))
    assert gap(still.measure.points, mu.points) == 0.0


def test_everything_switched_off() -> None:
    mu = cloud()
    for energy in (
        Scaled(ATTENTION, lambda t: math.sin(math.pi * t)) + 0.0 * LOGARITHM,
        Scaled(PotentialEnergy(lambda x: x.square().sum(-1)), 0.0),
        0.0 * FunctionEnergy(half_exponential),
        InteractionEnergy(GaussianKernel(1e-3)),
    ):
        done = succeeded(jko.JKO(1.0).step(flow_of(energy), mu, t=0.0))
        assert gap(done.measure.points, mu.points) < 1e-12


@pytest.mark.parametrize("factor", [1.0, 0.001])
def test_copies_of_particles_change_nothing(factor: float) -> None:
    expected = {
        1.0: [[-0.029913, -0.034444], [-0.009755, -0.054233]],
        0.001: [[-3.3915e-5, -4.0524e-5], [-1.1545e-5, -6.4206e-5]],
    }[factor]
    tolerance = 1e-5 if factor == 1.0 else 1e-8
    pair = torch.tensor([[0.6, 0.1], [-0.2, 0.7]], dtype=F64)
    for m in (1, 10, 100):
        mu = jko.ParticleMeasure(pair.repeat(m, 1))
        done = succeeded(step(factor * ATTENTION, mu, 0.1))
        assert gap(done.info.displacement, torch.tensor(expected, dtype=F64).repeat(m, 1)) < tolerance


def test_two_particles_at_one_place_stay_together() -> None:
    mu = jko.ParticleMeasure([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    for p in (1.0, 1.5, 2.0, 4.0):
        y = succeeded(step(InteractionEnergy(PowerKernel(p)), mu, 0.1)).measure.points
        assert gap(y[0], y[1]) < 1e-12
        assert float(y[0, 0]) > 0.0
    lonely = jko.ParticleMeasure([[1.0, 2.0]])
    for energy in (LOGARITHM, -1 * LOGARITHM, InteractionEnergy(PowerKernel(-1)), InteractionEnergy(GaussianKernel())):
        assert gap(succeeded(step(energy, lonely, 1.0)).measure.points, lonely.points) == 0.0


def test_coincident_charges_fail_with_a_status() -> None:
    mu = jko.ParticleMeasure([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    failed = step(-1 * LOGARITHM, mu, 0.1)
    assert failed.info.status is jko.Status.NON_FINITE
    assert "log|x - y|" in failed.info.detail


def test_head_wise_steps_share_the_other_energies() -> None:
    heads = jko.ConstantHeads(torch.eye(2, dtype=F64).expand(2, 2, 2))
    energy = jko.AttentionEnergy(heads) + 0.5 * SQUARE + PotentialEnergy(lambda x: x.square().sum(-1))
    flow = jko.GradientFlow(energy, jko.HeadwiseWasserstein(), jko.Euclidean())
    mu = cloud(5, tracer=True)
    done = succeeded(jko.JKO(0.05).step(flow, mu))
    weighted = jko.GradientFlow(energy, jko.WeightedWasserstein(), jko.Euclidean())
    # Equal heads: both geometries have one mobility.
    assert gap(done.measure.points, succeeded(jko.JKO(0.05).step(weighted, mu)).measure.points) < 1e-7
