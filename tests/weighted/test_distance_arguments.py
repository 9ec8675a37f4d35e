"""Arguments, precisions and outcomes other than success."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from jko import weighted
from jko.errors import InvalidInput
from jko.heads import ConstantHeads, TabulatedHeads
from jko.manifolds import Euclidean
from jko.status import Status
from tests.oracles.attention import assert_close
from tests.oracles.weighted import F64, clouds, dirichlet, random_heads

THETA = torch.tensor([0.3, 0.7], dtype=F64)
D = random_heads(2, 3, seed=0)
X, Z = clouds(2, 4, 3, seed=0)


def test_precisions_and_devices(dtype: torch.dtype, device: torch.device) -> None:
    exact = weighted.weighted_distance(X, Z, D, dirichlet(4, 0), head_weights=THETA, segments=4)
    arguments = (a.to(device=device, dtype=dtype) for a in (X, Z, D, dirichlet(4, 0)))
    result = weighted.weighted_distance(*arguments, head_weights=THETA.to(device=device, dtype=dtype), segments=4)
    assert result.status is Status.SUCCESS
    assert result.path.dtype == F64
    assert result.path.device.type == result.labels.device.type == device.type
    tolerance = 1e-12 if dtype == F64 else 1e-5
    assert result.value == pytest.approx(exact.value, rel=tolerance)
    assert_close(result.path, exact.path, 1e-6 if dtype == F64 else 1e-5)
    assert_close(result.path.norm(dim=-1), torch.ones(5, 4), 1e-14)


def test_arguments_are_not_changed_and_nothing_asks_for_a_gradient() -> None:
    arguments = [a.clone() for a in (X, Z, D)]
    result = weighted.weighted_distance(*arguments, segments=3)
    assert not result.path.requires_grad
    assert all(torch.equal(a, b) for a, b in zip(arguments, (X, Z, D), strict=True))
    with torch.no_grad():
        assert weighted.weighted_distance(X, Z, D, segments=3).value == result.value


def test_the_same_twice() -> None:
    first, second = (weighted.weighted_distance(X, Z, D, segments=5) for _ in range(2))
    assert first.value == second.value
    assert torch.equal(first.path, second.path)
    assert first.evaluations == second.evaluations


def test_a_looser_tolerance_is_cheaper_and_nearly_as_good() -> None:
    loose = weighted.weighted_distance(X, Z, D, segments=5, rtol=1e-3)
    tight = weighted.weighted_distance(X, Z, D, segments=5)
    assert loose.status is Status.SUCCESS
    assert loose.evaluations <= tight.evaluations
    # The value loses the square of what the path loses.
    assert 0 <= loose.value / tight.value - 1 + 1e-12 < 1e-6


def test_tracers_follow_the_geodesic_and_cost_nothing() -> None:
    w = torch.tensor([0.5, 0.0, 0.5, 0.0], dtype=F64)
    massive = w > 0
    result = weighted.weighted_distance(X, Z, D, w, segments=4)
    alone = weighted.weighted_distance(X[massive], Z[massive], D, segments=4)
    assert result.value == pytest.approx(alone.value, rel=1e-13)
    assert_close(result.path[:, massive], alone.path, 1e-13)
    assert result.labels[1] == 1
    assert result.labels[3] == 3
    middle = (X[1] + Z[1]) / (X[1] + Z[1]).norm()
    assert_close(result.path[2, 1], middle, 1e-13)
    far = torch.cat([X[:1], 50 * X[1:2]]), torch.cat([Z[:1], 60 * Z[1:2]])
    options: dict[str, Any] = {"segments": 3, "manifold": Euclidean()}
    light = weighted.weighted_distance(*far, D, torch.tensor([1.0, 0.0]), **options)
    assert light.value == pytest.approx(weighted.weighted_distance(X[:1], Z[:1], D, **options).value, rel=1e-13)


def test_one_segment_is_the_midpoint_cost() -> None:
    w = dirichlet(4, 1)
    result = weighted.weighted_distance(X, Z, D, w, head_weights=THETA, segments=1)
    middle = (X + Z) / (X + Z).norm(dim=-1, keepdim=True)
    b = weighted.effective_mobility(weighted.head_mobility(middle, D, w), THETA)
    cost = (w * b * (X * Z).sum(-1).acos().square()).sum()
    assert result.value == pytest.approx(math.sqrt(float(cost)), rel=1e-12)
    assert result.status is Status.SUCCESS
    assert result.curvature == 1.0
    assert result.residual == 0.0


# outcomes


def test_segments_that_grow_too_long_are_reported() -> None:
    # One head of norm 9: mobilities over many powers of ten, which few segments would jump over.
    x, z = clouds(2, 1, 3, seed=3)
    steep = random_heads(1, 3, seed=3, scale=4.0)
    result = weighted.weighted_distance(x, z, steep, segments=4)
    assert result.status is Status.BEYOND_CUT_LOCUS
    assert result.longest_segment == pytest.approx(math.pi / 2, rel=1e-4)
    assert math.isfinite(result.value)
    assert weighted.weighted_distance(x, z, steep, segments=64).status is Status.SUCCESS


def test_a_metric_that_vanishes_at_infinity_has_no_geodesic() -> None:
    falling = -torch.eye(2, dtype=F64)[None]
    x, z = torch.tensor([[2.0, 0.0]], dtype=F64), torch.tensor([[-2.0, 0.1]], dtype=F64)
    result = weighted.weighted_distance(x, z, falling, segments=3, manifold=Euclidean())
    assert result.status is Status.NOT_CONVERGED
    assert math.isnan(result.curvature)
    assert result.residual > 1e-8


@pytest.mark.parametrize("size", [1000.0, -1000.0])
def test_mobilities_outside_the_range_of_floats(size: float) -> None:
    identity = size * torch.eye(3, dtype=F64)[None]
    result = weighted.weighted_distance(X, Z, identity, segments=3)
    assert result.status is Status.NON_FINITE
    assert math.isinf(result.value)
    assert math.isinf(result.residual)
    assert result.path.shape == (4, 4, 3)


# refusals

REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: weighted.weighted_distance(X[0], Z, D), r"points0 must have shape \(n, d\), got \(3,\)"),
    (lambda: weighted.weighted_distance(X, Z[None], D), r"points1 must have shape \(n, d\), got \(1, 4, 3\)"),
    (lambda: weighted.weighted_distance(X[:0], Z[:0], D), r"points0 must have shape \(n, d\), got \(0, 3\)"),
    (lambda: weighted.weighted_distance(X, Z[:2], D), r"points0 have shape \(4, 3\) and points1 \(2, 3\)"),
    (lambda: weighted.weighted_distance(2 * X, Z, D), r"points0\[0\] has norm 2"),
    (lambda: weighted.weighted_distance(X, 0 * Z, D), r"points1\[0\] has norm 0"),
    (lambda: weighted.weighted_distance(X * math.nan, Z, D), r"points0\[0, 0\] is nan"),
    (lambda: weighted.weighted_distance(X[:1], -X[:1], D), "antipodal"),
    (lambda: weighted.weighted_distance(X, Z, D[0]), r"D must have shape \(H, d, d\), got \(3, 3\)"),
    (lambda: weighted.weighted_distance(X, Z, D[None]), r"D must have shape \(H, d, d\)"),
    (lambda: weighted.weighted_distance(X, Z, torch.ones(2, 2, 2)), r"shape \(2, 2\), but the points have 3"),
    (lambda: weighted.weighted_distance(X, Z, lambda s: D[: 1 + (s > 0.5)]), "D changes its shape along the path"),
    (lambda: weighted.weighted_distance(X, Z, lambda s: None), "D must be an array of numbers"),
    (lambda: weighted.weighted_distance(X, Z, "D"), "D must be an array of numbers"),
    (lambda: weighted.weighted_distance(X, Z, D, torch.ones(3) / 3), r"weights have shape \(3,\)"),
    (lambda: weighted.weighted_distance(X, Z, D, torch.ones(4)), "weights sum to 4"),
    (lambda: weighted.weighted_distance(X, Z, D, head_weights=torch.ones(3) / 3), "for 2 heads"),
    (lambda: weighted.weighted_distance(X, Z, ConstantHeads(D, THETA), head_weights=THETA), "weights of their own"),
    (lambda: weighted.weighted_distance(X, Z, D, segments=0), "segments must be at least 1, got 0"),
    (lambda: weighted.weighted_distance(X, Z, D, segments=2.5), "segments must be a whole number"),
    (lambda: weighted.weighted_distance(X, Z, D, rtol=0.0), "rtol must be positive"),
    (
        lambda: weighted.weighted_distance(X, Z, TabulatedHeads([0.0, 0.5], torch.stack([D, D]))),
        r"lies outside \[0, 0.5\]",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


def test_antipodal_pairs_that_another_label_avoids(dtype: torch.dtype) -> None:
    x: Tensor = X[:2].to(dtype)
    z = torch.stack([-x[0], x[0]]) if float(x[0] @ x[1]) > 0 else torch.stack([x[0], -x[0]])
    x = torch.stack([x[0], -x[0]])
    assert weighted.weighted_distance(x, z, D, segments=3).value < 1e-6
