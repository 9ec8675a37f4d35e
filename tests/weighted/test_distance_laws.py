"""What a distance has to satisfy, and what it does not for heads that move."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from jko import weighted
from jko.status import Status
from tests.oracles.attention import assert_close
from tests.oracles.weighted import F64, clouds, dirichlet, random_heads

THETA = torch.tensor([0.2, 0.5, 0.3], dtype=F64)
ROUNDING = 1e-9


def distance(
    x: Tensor, z: Tensor, D: object, S: int = 6, w: Tensor | None = None, theta: Tensor | None = None
) -> float:
    result = weighted.weighted_distance(x, z, D, w, head_weights=theta, segments=S)
    assert result.status is Status.SUCCESS, (result.status, result.residual)
    return result.value


def setting(H: int, seed: int) -> tuple[Tensor, Tensor | None]:
    return random_heads(H, 3, seed), THETA if H == 3 else None


# the sandwich


@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("equal", [True, False])
def test_equivalent_to_the_plain_distance(H: int, seed: int, equal: bool) -> None:
    D, theta = setting(H, seed)
    n = 2 + seed
    x, z = clouds(2, n, 3, seed)
    w = None if equal else dirichlet(n, seed)
    plain = distance(x, z, torch.zeros(1, 3, 3), w=w)
    actual = distance(x, z, D, w=w, theta=theta)
    constants = weighted.equivalence_constants(D, theta)
    lower, upper = float(constants.lower) * plain, float(constants.upper) * plain
    assert lower < actual < upper
    # The bounds are worth something: they fail for a distance that is off by the width of the sandwich.
    assert not lower < actual * upper / lower < upper


@pytest.mark.parametrize("beta", [1.0, -1.0])
def test_one_bound_is_attained(beta: float) -> None:
    D = beta * torch.eye(3, dtype=F64)[None]
    x, z = clouds(2, 1, 3, seed=0)
    constants = weighted.equivalence_constants(D)
    plain = distance(x, z, torch.zeros(1, 3, 3))
    assert distance(x, z, D) == pytest.approx(
        plain * float(constants.upper if beta > 0 else constants.lower), rel=1e-12
    )


# symmetry


@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_symmetric(H: int, seed: int) -> None:
    D, theta = setting(H, seed)
    x, z = clouds(2, 4, 3, seed)
    there = weighted.weighted_distance(x, z, D, head_weights=theta, segments=6)
    back = weighted.weighted_distance(z, x, D, head_weights=theta, segments=6)
    assert there.value == pytest.approx(back.value, rel=ROUNDING)
    assert back.labels[there.labels].tolist() == [0, 1, 2, 3]
    assert_close(back.path.flip(0)[:, there.labels], there.path, 1e-6)


# the triangle


@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_triangle(H: int, seed: int) -> None:
    D, theta = setting(H, seed)
    x, y, z = clouds(3, 3, 3, seed)
    first, second = distance(x, y, D, theta=theta), distance(y, z, D, theta=theta)
    whole = distance(x, z, D, S=12, theta=theta)
    assert whole <= first + second
    # A path of S + R segments through y, with the time that each part has of them.
    assert whole <= math.sqrt(2 * (first**2 + second**2)) * (1 + ROUNDING)


@pytest.mark.parametrize(("S", "R"), [(6, 6), (3, 9), (8, 4)])
def test_triangle_is_sharp_on_a_geodesic(S: int, R: int) -> None:
    D, theta = setting(3, 5)
    x, z = clouds(2, 3, 3, seed=5)
    whole = weighted.weighted_distance(x, z, D, head_weights=theta, segments=S + R)
    y, z = whole.path[S], z[whole.labels]
    first, second = distance(x, y, D, S, theta=theta), distance(y, z, D, R, theta=theta)
    bound = math.sqrt((S + R) * (first**2 / S + second**2 / R))
    assert whole.value == pytest.approx(bound, rel=ROUNDING)
    # The speed is constant up to O(S^-2), so that this is the sum of both.
    assert whole.value == pytest.approx(first + second, rel=1e-3)
    assert first / whole.value == pytest.approx(S / (S + R), rel=0.02)


# heads that move: the first half of the circle is cheap late, the second half early


def moving(s: float) -> Tensor:
    return 2 * (1 - 2 * s) * torch.diag(torch.tensor([1.0, -1.0], dtype=F64))[None]


def at(angle: float) -> Tensor:
    return torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=F64)


def test_moving_heads_are_not_symmetric() -> None:
    there, back = (distance(at(a), at(b), moving, S=24) for a, b in ((0, math.pi / 2), (math.pi / 2, 0)))
    assert there == pytest.approx(2.26, abs=0.01)
    assert back == pytest.approx(1.03, abs=0.01)


def test_moving_heads_break_the_triangle() -> None:
    first, second = (
        distance(at(0), at(math.pi / 4), moving, S=12),
        distance(at(math.pi / 4), at(math.pi / 2), moving, S=12),
    )
    whole = distance(at(0), at(math.pi / 2), moving, S=24)
    assert first == pytest.approx(second, rel=1e-6)
    assert whole > 1.3 * (first + second)
    # Every one of these paths resolves its mobility: the gap is no error of the midpoint rule.
    assert distance(at(0), at(math.pi / 2), moving, S=48) == pytest.approx(whole, rel=1e-3)
