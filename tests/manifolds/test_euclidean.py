"""What is special about R^d: distances from differences, whatever the distance from the origin."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from jko.manifolds import Euclidean

SPACE = Euclidean()


# H12: cancellation in |x|^2 + |y|^2 - 2 <x, y>


def test_two_points_far_from_the_origin_in_single_precision() -> None:
    assert SPACE.squared_distance(torch.tensor([40000.0]), torch.tensor([40003.0])) == 9


def test_small_move_of_a_far_cloud_in_single_precision() -> None:
    x = 100 + 0.01 * torch.from_numpy(np.random.default_rng(0).standard_normal((50, 16)))
    y = x + 0.0025
    single = SPACE.squared_distance(x.float(), y.float())
    assert single.mean().item() == pytest.approx(1e-4, rel=0.01)
    matrix = SPACE.squared_distance(x.float()[:, None], x.float()[None])
    assert bool((matrix >= 0).all())
    assert bool((matrix.diagonal() == 0).all())


def test_positions_of_very_different_size() -> None:
    x = torch.tensor([[0.0], [1.0], [1e8]], dtype=torch.float64)
    assert SPACE.squared_distance(x, x + 0.1).mean().item() == pytest.approx(0.01, rel=1e-6)


def test_every_shortest_path_is_a_straight_line() -> None:
    y = SPACE.random_point((5,), 3, 0)
    assert SPACE.injectivity_radius == math.inf
    assert torch.equal(SPACE.log(y, -y), -2 * y)
    assert SPACE.dimension(3) == 3
