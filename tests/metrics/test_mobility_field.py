"""The effective mobility away from the particles."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import jko
from jko import weighted
from jko.metrics import MobilityField


def matrices(count, symmetric, seed):
    D = torch.from_numpy(np.random.default_rng(seed).standard_normal((count, 3, 3)))
    return D + D.mT if symmetric else D


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("head_weights", [None, torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)])
def test_values_and_gradient(symmetric, head_weights):
    D = matrices(3, symmetric, 0)
    sphere = jko.Sphere()
    masses = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    mu = jko.ParticleMeasure(sphere.random_point((4,), 3, 1), masses)
    energy = jko.AttentionEnergy(jko.ConstantHeads(D, head_weights), sign=-1)
    field = MobilityField(energy, mu, 0.0)

    def expected(points):
        return weighted.effective_mobility(weighted.head_mobility(mu.points, D, masses, at=points), head_weights)

    targets = sphere.random_point((6,), 3, 2)
    values, gradient = field.at(targets)
    torch.testing.assert_close(values, expected(targets), rtol=1e-12, atol=0)
    h = 1e-6
    for k in range(3):
        shift = torch.zeros(3, dtype=torch.float64)
        shift[k] = h
        slope = (expected(targets + shift) - expected(targets - shift)) / (2 * h)
        torch.testing.assert_close(gradient[:, k], slope, rtol=1e-7, atol=1e-7)


def test_at_the_particles_it_is_the_mobility_of_the_metric():
    D = matrices(2, True, 3)
    mu = jko.ParticleMeasure(jko.Sphere().random_point((5,), 3, 1))
    flow = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(D)))
    values, _ = MobilityField(flow.energy, mu, 0.0).at(mu.points)
    torch.testing.assert_close(values, flow.metric.mobility(flow.fields(mu, 0.0)), rtol=1e-13, atol=0)
