"""Particle measures: the layout is (points, coordinates), precision is kept, bad input is refused by name."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jko.errors import InvalidInput, JKOError
from jko.manifolds import Euclidean, Sphere
from jko.measure import ParticleMeasure

POINTS = [[0.0, 0.1], [1.0, 0.2], [2.0, 0.3]]


# H09: no guess at what a shape means


def test_one_dimensional_array_is_refused_with_both_remedies() -> None:
    with pytest.raises(InvalidInput, match=r"\(4,\).*points\[:, None\].*points\[None, :\]"):
        ParticleMeasure(torch.arange(4.0))


@pytest.mark.parametrize(
    ("shape", "batch_shape", "n", "d"),
    [((4, 1), (), 4, 1), ((1, 4), (), 1, 4), ((2, 4, 1), (2,), 4, 1), ((5, 2, 3, 2), (5, 2), 3, 2)],
)
def test_layout_is_batch_particles_coordinates(
    shape: tuple[int, ...], batch_shape: tuple[int, ...], n: int, d: int
) -> None:
    mu = ParticleMeasure(torch.zeros(shape))
    assert (mu.batch_shape, mu.n, mu.d) == (batch_shape, n, d)
    assert mu.weights.shape == (n,)


def test_layout_decides_the_distance() -> None:
    x, y = torch.arange(4.0), torch.arange(1.0, 5.0)
    line = Euclidean().squared_distance(ParticleMeasure(x[:, None]).points, ParticleMeasure(y[:, None]).points)
    single = Euclidean().squared_distance(ParticleMeasure(x[None]).points, ParticleMeasure(y[None]).points)
    assert line.mean() == 1
    assert single.mean() == 4


def test_sphere_of_the_line_gets_a_clear_answer() -> None:
    mu = ParticleMeasure([[1.0], [-1.0]])
    with pytest.raises(InvalidInput, match=r"S\^0.*d >= 2"):
        Sphere().check(mu.points)


@pytest.mark.parametrize("shape", [(), (0,), (3,)])
def test_too_few_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"\(\*batch, n, d\)"):
        ParticleMeasure(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 3, 2), (2, 0, 2)])
def test_nothing_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="no particles or no coordinates"):
        ParticleMeasure(torch.zeros(shape))


@pytest.mark.parametrize(
    ("points", "weights"),
    [((3, 2), (2,)), ((3, 2), (3, 1)), ((3, 2), (1, 3)), ((3, 2), ()), ((2, 3, 1), (2,)), ((2, 3, 1), (3, 2))],
)
def test_weights_of_another_shape_are_not_broadcast(points: tuple[int, ...], weights: tuple[int, ...]) -> None:
    w = torch.ones(weights) / max(1, weights[-1] if weights else 1)
    with pytest.raises(InvalidInput, match=r"weights have shape .* must have shape"):
        ParticleMeasure(torch.zeros(points), w)


def test_weights_per_measure_of_a_batch() -> None:
    w = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    mu = ParticleMeasure(torch.zeros(2, 2, 3), w)
    assert torch.equal(mu.weights, w)
    assert torch.equal(ParticleMeasure(torch.zeros(2, 2, 3), w[0]).weights, w[0])


# precision


def test_lists_and_integers_become_float64() -> None:
    mu = ParticleMeasure(POINTS, [0.1, 0.2, 0.7])
    assert mu.dtype == torch.float64
    assert mu.points[0, 1].item() == 0.1  # to the last bit, not the nearest float32
    assert mu.weights.tolist() == [0.1, 0.2, 0.7]
    assert ParticleMeasure([[1, 2], [3, 4]]).dtype == torch.float64
    assert ParticleMeasure(torch.tensor([[1, 2]])).dtype == torch.float64


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numpy_keeps_its_precision_whatever_its_memory(kind: type[np.floating]) -> None:
    array = np.array(POINTS, dtype=kind)
    frozen = array.copy()
    frozen.flags.writeable = False
    for view in (array, frozen, array[::-1], np.asfortranarray(array), list(array)):
        mu = ParticleMeasure(view)
        assert mu.points.numpy().dtype == kind
        assert np.array_equal(mu.points.numpy(), np.asarray(view))
        assert mu.points.is_contiguous()


def test_uniform_weights_follow_the_points(dtype: torch.dtype, device: torch.device) -> None:
    mu = ParticleMeasure(torch.zeros(7, 2, dtype=dtype, device=device))
    assert mu.weights.dtype == mu.dtype == dtype
    assert mu.weights.device == mu.device == mu.points.device
    assert torch.allclose(mu.weights, torch.full((7,), 1 / 7, dtype=dtype, device=device), rtol=1e-7)


@pytest.mark.parametrize("n", [3, 5, 960])
def test_float32_weights_sum_to_one_in_float64(n: int) -> None:
    w = torch.full((n,), 1 / n, dtype=torch.float32)
    mu = ParticleMeasure(torch.zeros(n, 1, dtype=torch.float64), w)
    assert mu.weights.dtype == torch.float64
    assert abs(mu.weights.sum().item() - 1) < 1e-15 * n
    assert abs(ParticleMeasure(torch.zeros(n, 1), w).to(torch.float64).weights.sum().item() - 1) < 1e-15 * n


def test_to_changes_precision_and_nothing_else(device: torch.device) -> None:
    mu = ParticleMeasure(POINTS, [0.1, 0.2, 0.7])
    single = mu.to(torch.float32, device)
    assert single.dtype == single.weights.dtype == torch.float32
    assert single.device.type == single.weights.device.type == device.type
    assert torch.allclose(single.points.cpu().double(), mu.points, rtol=1e-7)
    assert torch.allclose(single.weights.cpu().double(), mu.weights, rtol=1e-6)
    assert torch.equal(mu.to().points, mu.points)
    assert mu.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex128, torch.bool])
def test_other_types_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InvalidInput, match=str(dtype)):
        ParticleMeasure(torch.zeros(2, 2, dtype=dtype))


@pytest.mark.parametrize("points", [None, "points", [[1.0], [1.0, 2.0]], [["a", "b"]], object()])
def test_what_is_no_array_is_refused(points: object) -> None:
    with pytest.raises(InvalidInput, match="points must be an array of numbers"):
        ParticleMeasure(points)


# values


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_first_bad_coordinate_is_named(value: float) -> None:
    points = torch.zeros(4, 2)
    points[2, 1] = points[3, 0] = value
    with pytest.raises(InvalidInput, match=r"points\[2, 1\] is (nan|-?inf)"):
        ParticleMeasure(points)


def test_bad_weights_are_named() -> None:
    points = torch.zeros(2, 1, dtype=torch.float64)
    with pytest.raises(InvalidInput, match=r"weights\[1\] is nan"):
        ParticleMeasure(points, [0.5, float("nan")])
    with pytest.raises(InvalidInput, match=r"weights\[0\] = -0.5 is negative"):
        ParticleMeasure(points, [-0.5, 1.5])
    with pytest.raises(InvalidInput, match=r"sum to 1\.2, not 1"):
        ParticleMeasure(points, [0.6, 0.6])
    with pytest.raises(InvalidInput, match=r"sum to 0, not 1"):
        ParticleMeasure(points, [0.0, 0.0])
    with pytest.raises(InvalidInput, match=r"sum to 0\.9, not 1"):
        ParticleMeasure(torch.zeros(2, 2, 1), [[0.5, 0.5], [0.5, 0.4]])


def test_errors_belong_to_both_families() -> None:
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(InvalidInput, JKOError)


def test_tracers_are_kept() -> None:
    mu = ParticleMeasure(POINTS, [0.5, 0.5, 0.0])
    assert mu.n == 3
    assert mu.weights[2] == 0


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_any_point_of_the_simplex_is_kept_to_the_last_bit(n: int, d: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    points, weights = generator.standard_normal((n, d)), generator.dirichlet(np.ones(n))
    mu = ParticleMeasure(points, weights)
    assert np.array_equal(mu.points.numpy(), points)
    assert np.array_equal(mu.weights.numpy(), weights)


# immutability


def test_arguments_are_copied() -> None:
    points, weights = torch.zeros(2, 1), torch.tensor([0.5, 0.5])
    array = np.zeros((2, 1))
    mu, nu = ParticleMeasure(points, weights), ParticleMeasure(array)
    points += 1
    weights *= 0
    array += 1
    assert mu.points.abs().max() == nu.points.abs().max() == 0
    assert mu.weights.sum() == 1


def test_fields_cannot_be_set() -> None:
    mu = ParticleMeasure(POINTS)
    with pytest.raises(AttributeError):
        mu.points = torch.zeros(3, 2)
    with pytest.raises((AttributeError, TypeError)):
        mu.mass = 1.0


def test_copies_and_pickles() -> None:
    mu = ParticleMeasure(POINTS, [0.1, 0.2, 0.7])
    for nu in (copy.copy(mu), copy.deepcopy(mu), pickle.loads(pickle.dumps(mu))):
        assert torch.equal(nu.points, mu.points)
        assert torch.equal(nu.weights, mu.weights)


def test_moved_keeps_the_weights_and_copies_the_points() -> None:
    mu = ParticleMeasure(POINTS, [0.1, 0.2, 0.7])
    target = (mu.points + 1).mT.contiguous().mT
    nu = mu.moved(target)
    assert torch.equal(nu.points, target)
    assert nu.points.is_contiguous()
    assert torch.equal(nu.weights, mu.weights)
    target += 1
    assert torch.equal(nu.points, mu.points + 1)


def test_moved_refuses_other_points() -> None:
    mu = ParticleMeasure(POINTS)
    with pytest.raises(InvalidInput, match=r"\(2, 3\) cannot replace \(3, 2\)"):
        mu.moved(mu.points.mT)
    with pytest.raises(InvalidInput, match=r"float32.*float64"):
        mu.moved(mu.points.float())
    with pytest.raises(InvalidInput, match=r"points\[0, 0\] is nan"):
        mu.moved(mu.points * float("nan"))


def test_repr_is_short() -> None:
    assert repr(ParticleMeasure(torch.zeros(2, 3, 1))) == (
        "ParticleMeasure(n=3, d=1, batch_shape=(2,), dtype=torch.float32, device=cpu)"
    )
    assert "batch" not in repr(ParticleMeasure(torch.zeros(300, 3)))
