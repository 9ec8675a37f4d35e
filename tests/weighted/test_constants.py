"""C1 W_2 <= W_{m,2} <= C2 W_2 begins with c <= b <= cbar."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jko import weighted
from jko.errors import InvalidInput
from tests.oracles.attention import assert_close
from tests.oracles.weighted import F64, clouds, random_heads

THETA = torch.tensor([0.2, 0.5, 0.3], dtype=F64)


def bounds(D: torch.Tensor, theta: torch.Tensor | None = None) -> tuple[float, float]:
    constants = weighted.equivalence_constants(D, theta)
    return float(constants.lower) ** 2, float(constants.upper) ** 2


@pytest.mark.parametrize("theta", [None, THETA])
def test_the_formula(theta: torch.Tensor | None) -> None:
    D = random_heads(3, 4, seed=0)
    norms = np.linalg.svd(D.numpy(), compute_uv=False)[:, 0]
    factors = np.full(3, 1 / 3) if theta is None else theta.numpy()
    lower, upper = bounds(D, theta)
    assert lower == pytest.approx(1 / (factors @ np.exp(norms)), rel=1e-13)
    assert upper == pytest.approx(1 / (factors @ np.exp(-norms)), rel=1e-13)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), H=st.sampled_from([1, 3]), n=st.integers(1, 6), symmetric=st.booleans())
def test_every_mobility_lies_between(seed: int, H: int, n: int, symmetric: bool) -> None:
    D = random_heads(H, 3, seed)
    D = (D + D.mT) / 2 if symmetric else D
    theta = THETA if H == 3 else None
    x, z = clouds(2, n, 3, seed)
    b = weighted.effective_mobility(weighted.head_mobility(x, D, at=torch.cat([x, z])), theta)
    lower, upper = bounds(D, theta)
    assert bool((b >= lower * (1 - 1e-12)).all())
    assert bool((b <= upper * (1 + 1e-12)).all())


def test_one_head_attains_both() -> None:
    D = random_heads(1, 4, seed=1)
    left, _, right = torch.linalg.svd(D[0])
    lower, upper = bounds(D)
    for sign, expected in ((1, upper), (-1, lower)):
        m = weighted.head_mobility(sign * right[:1], D, at=left[:, 0][None])
        assert_close(m[0, 0], expected, 1e-13)


def test_heads_with_a_common_extreme_pair_attain_both() -> None:
    x, y = clouds(2, 1, 3, seed=2)[:, 0]
    D = torch.tensor([0.5, 1.0, 2.0], dtype=F64)[:, None, None] * x[:, None] * y[None]
    lower, upper = bounds(D, THETA)
    for sign, expected in ((1, upper), (-1, lower)):
        b = weighted.effective_mobility(weighted.head_mobility(sign * y[None], D, at=x[None]), THETA)
        assert_close(b[0], expected, 1e-13)


@pytest.mark.parametrize("beta", [2.0, -2.0])
def test_the_particles_themselves_attain_one(beta: float) -> None:
    D = beta * torch.eye(3, dtype=F64)[None]
    b = weighted.effective_mobility(weighted.head_mobility(clouds(1, 1, 3, seed=3)[0], D))
    assert_close(b[0], bounds(D)[beta > 0], 1e-13)


def test_no_heads_to_speak_of() -> None:
    assert bounds(torch.zeros(2, 3, 3, dtype=F64)) == (1.0, 1.0)


def test_a_head_without_weight_is_left_out() -> None:
    D = torch.stack([torch.eye(3, dtype=F64), 1e4 * torch.eye(3, dtype=F64)])
    for theta in ([1.0, 0.0], [1, 0]):
        assert bounds(D, torch.tensor(theta)) == pytest.approx((math.exp(-1), math.e), rel=1e-14)
    assert bounds(D.flip(0), torch.tensor([0.0, 1.0])) == pytest.approx((math.exp(-1), math.e), rel=1e-14)


def test_roots_are_finite_where_exp_overflows() -> None:
    constants = weighted.equivalence_constants(1000 * torch.eye(2, dtype=F64).expand(3, 2, 2))
    assert float(constants.upper) == pytest.approx(math.exp(500), rel=1e-12)
    assert float(constants.lower) == pytest.approx(math.exp(-500), rel=1e-12)


def test_batches_and_precisions(dtype: torch.dtype, device: torch.device) -> None:
    D = random_heads(12, 3, seed=4).reshape(2, 2, 3, 3, 3)
    actual = weighted.equivalence_constants(D.to(device=device, dtype=dtype), THETA.to(device))
    assert actual.lower.shape == actual.upper.shape == (2, 2)
    assert actual.lower.dtype == actual.upper.dtype == dtype
    for index in np.ndindex(2, 2):
        lower, upper = bounds(D[index], THETA)
        tolerance = 1e-13 if dtype == F64 else 1e-5
        assert_close(actual.lower[index], math.sqrt(lower), tolerance)
        assert_close(actual.upper[index], math.sqrt(upper), tolerance)


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 2), (3,)])
def test_shapes_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"D must have shape \(\*batch, H, d, d\)"):
        weighted.equivalence_constants(torch.ones(shape))


def test_head_weights_that_do_not_fit() -> None:
    with pytest.raises(InvalidInput, match="but there are 2 heads"):
        weighted.equivalence_constants(torch.ones(2, 3, 3), torch.tensor([0.2, 0.3, 0.5]))
