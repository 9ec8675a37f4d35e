"""The lowest eigenvalue against matrices of known spectrum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jko.spectrum import smallest_eigenvalue


@pytest.mark.parametrize("size", [1, 10, 60], ids=["one", "dense", "Lanczos"])
def test_the_lowest_eigenvalue_and_its_vector(size: int) -> None:
    basis = np.linalg.qr(np.random.Generator(np.random.Philox(3)).standard_normal((size, size)))[0]
    values = np.linspace(-0.5, 2.0, size)
    matrix = (basis * values) @ basis.T
    value, vector = smallest_eigenvalue(lambda z: matrix @ z, size, dense=20, tolerance=1e-10)
    assert value == pytest.approx(-0.5, abs=1e-9)
    assert abs(float(vector @ basis[:, 0])) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("size", [10, 60], ids=["dense", "Lanczos"])
def test_products_that_are_not_finite_give_none(size: int) -> None:
    value, _ = smallest_eigenvalue(lambda z: np.full_like(z, math.nan), size, dense=20, tolerance=1e-6)
    assert math.isnan(value)
