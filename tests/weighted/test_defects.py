"""How far heads are from those of a gradient flow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

import jko
from jko import weighted


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def test_symmetry_defect() -> None:
    D = torch.tensor([[[1.0, 2.0], [5.0, 0.0]], [[1.0, 3.0], [3.0, 1.0]]], dtype=torch.float64)
    assert weighted.symmetry_defect(D).tolist() == pytest.approx([3 * 2**0.5, 0.0], abs=1e-15)
    D = random(4, 2, 5, 5)
    expected = (D - D.transpose(-1, -2)).square().sum((-1, -2)).sqrt()
    torch.testing.assert_close(weighted.symmetry_defect(D), expected, rtol=1e-14, atol=0)


def test_value_defect_is_the_smallest_distance() -> None:
    V, D = random(3, 4, 4), random(3, 4, 4, seed=1)
    result = weighted.value_defect(V, D)
    for h in range(3):
        best = minimize_scalar(lambda c, h=h: float((V[h] - c * D[h]).square().sum()), options={"xtol": 1e-12})
        assert float(result.defect[h]) == pytest.approx(best.fun**0.5, rel=1e-12)
        assert float(result.factor[h]) == pytest.approx(best.x, rel=1e-6)
    torch.testing.assert_close(((V - result.factor[:, None, None] * D) * D).sum((-1, -2)), torch.zeros(3).double())


def test_value_defect_of_multiples_and_of_zero() -> None:
    D = random(2, 3, 3)
    factors = torch.tensor([-2.0, 0.5], dtype=torch.float64)
    result = weighted.value_defect(factors[:, None, None] * D, D)
    torch.testing.assert_close(result.factor, factors)
    assert float(result.defect.abs().max()) < 1e-14
    result = weighted.value_defect(D, torch.zeros_like(D))
    assert result.factor.tolist() == [0.0, 0.0]
    torch.testing.assert_close(result.defect, torch.linalg.matrix_norm(D))
    batched = weighted.value_defect(random(5, 2, 3, 3), D)
    assert batched.defect.shape == batched.factor.shape == (5, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weighted.symmetry_defect(torch.ones(3, 3)), r"got \(3, 3\)"),
        (lambda: weighted.symmetry_defect(torch.ones(1, 3, 2)), r"got \(1, 3, 2\)"),
        (lambda: weighted.value_defect(torch.ones(1, 3, 3), torch.ones(2, 3, 3)), "one value matrix a head"),
        (lambda: weighted.value_defect(torch.ones(3), torch.ones(2, 3, 3)), "V must have shape"),
    ],
)
def test_bad_shapes_are_refused(call, message: str) -> None:
    with pytest.raises(jko.InvalidInput, match=message):
        call()
