"""Steps at an equilibrium in R^d, where forces cancel and only rounding is left of the residual."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from schemes.problems import attention, objective_of, tokens

import jko
from jko.schemes.minimizers import judge, reported_residual


def ring() -> jko.GradientFlow:
    """W = |x|^4/4 - |x|^2/2, whose equilibria have the mean square radius 1/3."""
    energy = 0.25 * jko.InteractionEnergy(jko.PowerKernel(4)) + (-0.5) * jko.InteractionEnergy(jko.PowerKernel(2))
    return jko.GradientFlow(energy, jko.Wasserstein2(), jko.Euclidean())


@pytest.mark.parametrize("tau", [1.0, 4.0])
def test_a_long_run_rests_at_its_equilibrium(tau):
    start = jko.ParticleMeasure(torch.from_numpy(np.random.default_rng(0).standard_normal((12, 2))))
    sol = jko.solve(ring(), start, jko.JKO(tau), t1=60 * tau)
    assert sol.status.ok
    assert float(sol.records.residual.max()) <= 1e-8
    centered = sol.points[-1] - sol.points[-1].mean(0)
    assert abs(float(centered.square().sum(-1).mean()) - 1 / 3) < 1e-8


def test_only_rounding_is_forgiven():
    """A displacement that is wrong by a thousand roundings of the positions is no success."""
    flow, tau = attention([[[0.5, 0.0, 0.0], [0.0, 0.2, 0.0], [0.0, 0.0, -0.3]]], "w2"), 0.1
    mu = jko.ParticleMeasure(tokens(5))
    y = mu.points
    problem, origin = objective_of(flow, mu, tau, rtol=1e-15)
    step = jko.JKO(tau, minimizer=jko.Anderson(rtol=1e-14), fallback=None).step(flow, mu)
    solved = problem.evaluate(flow.manifold.log(y, step.measure.points)[None])
    assert judge(problem, solved, origin.objective)[0].ok
    assert reported_residual(problem, solved) <= problem.rtol
    shift = flow.manifold.project_vector(y, torch.full_like(y, 1000 * 30 * 2.2e-16))
    wrong = problem.evaluate(solved.xi + shift)
    assert judge(problem, wrong, origin.objective)[0] is jko.Status.NOT_CONVERGED
    assert reported_residual(problem, wrong) == wrong.residual > problem.rtol
