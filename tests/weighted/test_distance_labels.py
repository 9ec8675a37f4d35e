"""Who ends where, and when mass would rather split."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from jko import weighted
from jko.manifolds import Sphere
from jko.status import Status
from jko.weighted.labels import best_labels, interchangeable, midpoint_cost
from tests.oracles.attention import assert_close
from tests.oracles.weighted import F64, clouds, mobility, random_heads


def named(n: int) -> Tensor:
    """Weights that are equal to six digits, but different: every particle keeps its label."""
    w = 1 + 1e-7 * torch.arange(n, dtype=F64)
    return w / w.sum()


# assignments


def test_the_best_of_all_assignments_is_found_where_the_plain_one_is_not() -> None:
    x, z = clouds(2, 3, 3, seed=112)
    D = random_heads(2, 3, seed=12, scale=1.5)
    result = weighted.weighted_distance(x, z, D, segments=6)
    values = {
        p: weighted.weighted_distance(x, z[list(p)], D, named(3), segments=6).value
        for p in itertools.permutations(range(3))
    }
    plain = min(values, key=lambda p: float(Sphere().squared_distance(x, z[list(p)]).sum()))
    labels = tuple(result.labels.tolist())
    assert result.status is Status.SUCCESS
    assert labels == min(values, key=lambda p: values[p])
    assert result.value == pytest.approx(values[labels], rel=1e-5)
    assert result.value < 0.9 * values[plain]


def test_only_particles_of_equal_weight_change_places() -> None:
    x, _ = clouds(2, 4, 3, seed=1)
    z = x[[1, 0, 3, 2]]
    D = 0.1 * random_heads(1, 3, seed=1)
    w = torch.tensor([0.1, 0.2, 0.35, 0.35], dtype=F64)
    result = weighted.weighted_distance(x, z, D, w, segments=3)
    assert result.labels.tolist() == [0, 1, 3, 2]
    # The last two stay where they are; for equal weights all do.
    assert_close(result.path[-1, 2:], x[2:], 1e-14)
    assert weighted.weighted_distance(x, z, D, segments=3).value < 1e-14
    keys = interchangeable(torch.tensor([0.5, 0.25, 0.25, 0.0, 0.0], dtype=F64))
    assert keys.nonzero().tolist() == [[0, 0], [1, 1], [1, 2], [2, 1], [2, 2], [3, 3], [4, 4]]


def test_assignment_keeps_what_is_as_good() -> None:
    allowed = torch.ones(3, 3, dtype=torch.bool)
    cost = torch.ones(3, 3, dtype=F64)
    given = torch.tensor([2, 0, 1])
    assert best_labels(cost, allowed, given).tolist() == [2, 0, 1]
    cost[0, 1] = cost[1, 0] = 0.5
    assert best_labels(cost, allowed, given).tolist() == [1, 0, 2]
    assert best_labels(cost, torch.eye(3, dtype=torch.bool), torch.arange(3)).tolist() == [0, 1, 2]
    unreachable = torch.full((2, 2), torch.inf, dtype=F64)
    assert best_labels(unreachable, allowed[:2, :2], torch.tensor([1, 0])).tolist() == [1, 0]


def test_midpoint_cost() -> None:
    x, z, middle = clouds(3, 3, 3, seed=2)
    z[1] = -x[2]
    w, theta = torch.tensor([0.5, 0.2, 0.3], dtype=F64), torch.tensor([0.4, 0.6], dtype=F64)
    D = random_heads(2, 3, seed=2)
    cost = midpoint_cost(x, z, w, D, theta, middle, Sphere())
    assert (cost == torch.inf).nonzero().tolist() == [[2, 1]]
    y = (x[0] + z[2]) / (x[0] + z[2]).norm()
    # The mobility of the middle atoms at y: that of a cloud with one more atom, without mass.
    b = mobility(torch.cat([middle, y[None]]), torch.cat([w, torch.zeros(1, dtype=F64)]), D, theta)[-1]
    assert_close(cost[0, 2], w[0] * b * (x[0] @ z[2]).acos() ** 2, 1e-12)


# splitting


def two_halves(L: float, d: int) -> tuple[Tensor, Tensor]:
    x, z = torch.zeros(2, d, dtype=F64), torch.zeros(2, d, dtype=F64)
    x[:, 0] = 1
    z[:, 0], z[:, 1] = math.cos(L), math.sin(L)
    return x, z


@pytest.mark.parametrize("beta", [1.0, 3.0])
@pytest.mark.parametrize("d", [2, 3])
def test_an_atom_splits_beyond_its_length(beta: float, d: int) -> None:
    # On the circle there is no room beside the geodesic, and the curvature of the sphere does not help.
    longest = math.pi / math.sqrt(beta + (d > 2))
    D = beta * torch.eye(d, dtype=F64)[None]
    # The ends of a geodesic are not opposite; where it never gets too long, nothing splits.
    ratios = [ratio for ratio in (0.9, 0.97, 1.03, 1.1) if ratio * longest < 3.1]
    assert len(ratios) == (2 if longest == math.pi else 4)
    for ratio in ratios:
        L = ratio * longest
        x, z = two_halves(L, d)
        atom = weighted.weighted_distance(x[:1], z[:1], D)
        halves = weighted.weighted_distance(x, z, D)
        assert atom.status is halves.status is Status.SUCCESS
        assert atom.value == pytest.approx(math.exp(beta / 2) * L, rel=1e-12)
        apart = float((halves.path[:, 0] - halves.path[:, 1]).norm(dim=-1).max())
        if ratio < 1:
            assert halves.value == pytest.approx(atom.value, rel=1e-12)
            assert apart < 1e-6
            # The second variation of the energy over that of the speed alone, 1 - (L / longest)^2.
            assert halves.curvature == pytest.approx(1 - ratio**2, abs=0.01)
        else:
            assert halves.value < atom.value * (1 - 1e-4)
            assert apart > 0.1
            assert halves.curvature > 0.05


def test_the_energy_of_a_slight_split() -> None:
    """The same change of sign, from the path alone: half-atoms at +-e sin(pi s) beside the geodesic."""
    beta, S, e = 1.0, 400, 1e-3
    D = beta * torch.eye(3, dtype=F64)[None]
    w, theta = torch.full((2,), 0.5, dtype=F64), torch.ones(1, dtype=F64)
    s = torch.linspace(0, 1, S + 1, dtype=F64)[:, None]
    changes = []
    for ratio in (0.95, 1.05):
        L = ratio * math.pi / math.sqrt(1 + beta)
        along = torch.cat([(L * s).cos(), (L * s).sin(), 0 * s], -1)
        side = e * (math.pi * s).sin() * torch.tensor([0.0, 0.0, 1.0], dtype=F64)
        path = torch.stack([along + side, along - side], 1)
        path = path / path.norm(dim=-1, keepdim=True)
        energy = weighted.path_energy.PathEnergy(w, D, theta, Sphere()).evaluate(path).value
        changes.append((energy - math.e * L**2) / e**2)
        # e^beta int (delta'^2 - (1 + beta) L^2 delta^2) ds
        assert changes[-1] == pytest.approx(math.e * (math.pi**2 - (1 + beta) * L**2) / 2, rel=0.01)
    assert changes[0] > 0 > changes[1]


def test_points_that_never_split_under_negative_heads() -> None:
    x, z = two_halves(3.0, 3)
    result = weighted.weighted_distance(x, z, -torch.eye(3, dtype=F64)[None])
    assert result.value == pytest.approx(math.exp(-0.5) * 3.0, rel=1e-12)
