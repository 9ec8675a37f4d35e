"""log E where E overflows, and everywhere else."""

from __future__ import annotations

import math

import pytest
import torch

import jko


@pytest.mark.parametrize(("position", "expected"), [(10.0, 99.306853), (30.0, 899.306853)])
def test_one_particle_far_out(position: float, expected: float, dtype: torch.dtype) -> None:
    energy = jko.AttentionEnergy(jko.ConstantHeads(torch.eye(2)[None]))
    measure = jko.ParticleMeasure(torch.tensor([[position, 0.0]], dtype=dtype))
    assert float(energy.log_value(measure, 0.0)) == pytest.approx(expected, abs=1e-6)
    assert float(energy.log_value(measure, 0.0)) == pytest.approx(position**2 - math.log(2), rel=1e-14)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("head_weights", [None, [0.2, 0.5, 0.3]])
def test_the_logarithm_of_the_value(head_weights: list[float] | None, sign: int) -> None:
    D = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = torch.tensor([0.1, 0.0, 0.4, 0.3, 0.2], dtype=torch.float64)
    points = jko.Sphere().random_point((2, 5), 3, seed=2)
    energy = jko.AttentionEnergy(jko.ConstantHeads(D, head_weights), sign=sign)
    measure = jko.ParticleMeasure(points, weights)
    expected = (sign * energy.value(measure, 0.0)).log()
    assert energy.log_value(measure, 0.0).shape == (2,)
    assert torch.allclose(energy.log_value(measure, 0.0), expected, rtol=1e-13, atol=1e-13)


def test_far_below_the_smallest_number() -> None:
    energy = jko.AttentionEnergy(jko.ConstantHeads(-torch.eye(2)[None]))
    measure = jko.ParticleMeasure(torch.tensor([[30.0, 0.0]], dtype=torch.float64))
    assert float(energy.value(measure, 0.0)) == 0
    assert float(energy.log_value(measure, 0.0)) == pytest.approx(-900 - math.log(2), rel=1e-14)
