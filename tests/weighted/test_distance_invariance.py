"""What leaves the distance as it is: rotations, labels, units, heads that are the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from jko import weighted
from jko.manifolds import Euclidean, Sphere
from jko.status import Status
from tests.oracles.attention import assert_close
from tests.oracles.weighted import F64, clouds, dirichlet, random_heads

THETA = torch.tensor([0.2, 0.5, 0.3], dtype=F64)
ROUNDING = 1e-9


def rotation(d: int, seed: int) -> Tensor:
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))
    return torch.from_numpy(q)


@pytest.mark.parametrize("sphere", [True, False])
@pytest.mark.parametrize("equal", [True, False])
def test_rotations_and_labels(sphere: bool, equal: bool) -> None:
    n = 4
    x, z = clouds(2, n, 3, seed=6) * (1 if sphere else 0.6)
    D, theta = random_heads(3, 3, seed=6), THETA
    w = None if equal else dirichlet(n, 6)
    manifold = Sphere() if sphere else Euclidean()
    options = {"head_weights": theta, "segments": 5, "manifold": manifold}
    result = weighted.weighted_distance(x, z, D, w, **options)
    Q = rotation(3, 7)
    rotated = weighted.weighted_distance(x @ Q.mT, z @ Q.mT, Q @ D @ Q.mT, w, **options)
    assert rotated.value == pytest.approx(result.value, rel=ROUNDING)
    assert_close(rotated.path, result.path @ Q.mT, 1e-6)
    p, q = [2, 0, 3, 1], [1, 0, 2, 3]
    if equal:
        named = weighted.weighted_distance(x[p], z[q], D, **options)
        assert [q[j] for j in named.labels.tolist()] == result.labels[p].tolist()
    else:
        named = weighted.weighted_distance(x[p], z[p], D, w[p], **options)
        assert named.labels.tolist() == result.labels.tolist() == [0, 1, 2, 3]
    assert named.value == pytest.approx(result.value, rel=ROUNDING)
    assert_close(named.path, result.path[:, p], 1e-6)
    heads = weighted.weighted_distance(x, z, D.flip(0), w, **{**options, "head_weights": theta.flip(0)})
    assert heads.value == pytest.approx(result.value, rel=ROUNDING)


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_units_of_length(size: float) -> None:
    x, z = clouds(2, 4, 3, seed=7) * 0.6
    D, theta = random_heads(3, 3, seed=7), THETA
    results = [
        weighted.weighted_distance(c * x, c * z, D / c**2, head_weights=theta, segments=5, manifold=Euclidean())
        for c in (1.0, size)
    ]
    assert results[1].status is Status.SUCCESS
    assert results[1].value == pytest.approx(size * results[0].value, rel=ROUNDING)
    assert_close(results[1].path, size * results[0].path, 1e-6)


def test_equal_heads_are_one_head() -> None:
    x, z = clouds(2, 3, 3, seed=8)
    D = random_heads(1, 3, seed=8)
    one = weighted.weighted_distance(x, z, D, segments=5)
    copies = weighted.weighted_distance(x, z, D.expand(3, 3, 3), head_weights=THETA, segments=5)
    padded = weighted.weighted_distance(
        x, z, torch.cat([D, 1e4 * D]), head_weights=torch.tensor([1.0, 0.0]), segments=5
    )
    assert one.status is copies.status is padded.status is Status.SUCCESS
    assert copies.value == pytest.approx(one.value, rel=1e-12)
    assert padded.value == pytest.approx(one.value, rel=1e-12)
