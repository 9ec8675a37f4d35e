"""The kept clouds, alike or not."""

from __future__ import annotations

import pytest
import torch

import jko
from jko.trajectory import Trajectory


def cloud(n, seed, weights=None):
    return jko.ParticleMeasure(jko.Sphere().random_point((n,), 3, seed), weights)


def test_clouds_of_one_size_are_stacked():
    clouds = [cloud(4, seed) for seed in range(3)]
    kept = Trajectory.of(clouds)
    assert kept.uniform
    assert torch.equal(kept.stacked_points, torch.stack([c.points for c in clouds]))
    assert torch.equal(kept.common_weights, clouds[0].weights)
    assert set(kept.tensors()) == {"points", "weights"}


def test_clouds_of_different_sizes_come_one_by_one():
    clouds = [cloud(4, 0), cloud(2, 1, torch.tensor([0.25, 0.75], dtype=torch.float64)), cloud(2, 2)]
    kept = Trajectory.of(clouds)
    assert not kept.uniform
    for k in (0, 1, 2, -1, -3):
        assert torch.equal(kept.measure(k).points, clouds[k].points)
        assert torch.equal(kept.measure(k).weights, clouds[k].weights)
    for read in ("stacked_points", "common_weights"):
        with pytest.raises(jko.InvalidInput, match=r"2 to 4 particles.*use \.measure\(k\)"):
            getattr(kept, read)
    with pytest.raises(IndexError, match="cloud 3 was asked for, and 3 were kept"):
        kept.measure(3)


def test_clouds_of_one_size_with_different_weights_share_no_weights():
    kept = Trajectory.of([cloud(2, 0), cloud(2, 1, torch.tensor([0.25, 0.75], dtype=torch.float64))])
    assert kept.stacked_points.shape == (2, 2, 3)
    with pytest.raises(jko.InvalidInput, match="weights changed"):
        _ = kept.common_weights


@pytest.mark.parametrize("sizes", [(3, 3), (3, 2, 2)])
def test_reading_back_gives_the_same_clouds(sizes):
    kept = Trajectory.of([cloud(n, seed) for seed, n in enumerate(sizes)])
    back = Trajectory.from_tensors(kept.tensors())
    assert back.sizes == kept.sizes
    assert torch.equal(back.points, kept.points)
    assert torch.equal(back.weights, kept.weights)


@pytest.mark.parametrize(
    "tensors",
    [
        {"points": torch.zeros(2, 3), "weights": torch.zeros(2)},
        {"points": torch.zeros(2, 3, 3), "weights": torch.zeros(2)},
        {"points": torch.zeros(5, 3), "weights": torch.zeros(5), "sizes": torch.tensor([2, 2])},
        {"points": torch.zeros(5, 3), "weights": torch.zeros(4), "sizes": torch.tensor([3, 2])},
        {"points": torch.zeros(5, 3), "weights": torch.zeros(5), "sizes": torch.tensor([5, 0])},
    ],
)
def test_tensors_of_something_else_are_refused(tensors):
    with pytest.raises(ValueError, match="points"):
        Trajectory.from_tensors(tensors)
