from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jko.errors import InvalidInput
from jko.random import Purpose, check_word, stream, symmetric_increments

WORDS = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1))
KEYS = st.tuples(WORDS, WORDS, WORDS, st.sampled_from(Purpose))


@settings(deadline=None, derandomize=True)
@given(KEYS, KEYS)
@example((0, 0, 0, Purpose.NOISE), (0, 0, 0, Purpose.INITIAL_HEADS))
@example((0, 0, 1, Purpose.NOISE), (0, 0, 0, Purpose.INITIAL_HEADS))
@example((1, 0, 0, Purpose.NOISE), (0, 1, 0, Purpose.NOISE))
def test_streams_coincide_only_for_equal_keys(first: tuple, second: tuple) -> None:
    draws = [stream(*key[:3], purpose=key[3]).integers(2**63, size=2).tolist() for key in (first, second)]
    assert (draws[0] == draws[1]) == (first == second)


def test_the_noise_stream_is_philox_seeded_with_the_three_numbers() -> None:
    expected = np.random.Generator(np.random.Philox(np.random.SeedSequence((3, 1, 4)))).standard_normal(5)
    np.testing.assert_array_equal(stream(3, 1, 4).standard_normal(5), expected)


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_seed_path_and_head_are_words(bad: int) -> None:
    for key in ((bad, 0, 0), (0, bad, 0), (0, 0, bad)):
        with pytest.raises(InvalidInput, match=str(bad)):
            stream(*key)


@pytest.mark.parametrize("bad", [1.5, True, "7", None])
def test_seeds_are_whole_numbers(bad: object) -> None:
    with pytest.raises(InvalidInput, match=f"seed must be a whole number, got {bad!r}"):
        check_word(bad, "seed")


def test_numpy_integers_are_seeds() -> None:
    assert check_word(np.int64(5), "seed") == 5
    with pytest.raises(InvalidInput, match="seed must be at least 0"):
        check_word(np.int32(-5), "seed")


def test_fewer_heads_and_steps_are_the_leading_part() -> None:
    full = symmetric_increments(7, 2, 100, 3, 40, 0.01)
    assert torch.equal(symmetric_increments(7, 2, 10, 3, 40, 0.01), full[:, :10])
    assert torch.equal(symmetric_increments(7, 2, 100, 3, 17, 0.01), full[:17])


def test_another_dt_rescales_the_same_numbers() -> None:
    unit = symmetric_increments(1, 0, 2, 3, 5, 1.0)
    torch.testing.assert_close(symmetric_increments(1, 0, 2, 3, 5, 0.25), unit / 2, rtol=1e-15, atol=0)


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_increments_are_symmetric_to_the_last_bit(d: int) -> None:
    increments = symmetric_increments(0, 0, 3, d, 50, 0.01)
    assert increments.shape == (50, 3, d, d)
    assert increments.dtype == torch.float64
    assert torch.equal(increments, increments.mT)


def test_variances_are_dt_on_and_half_of_it_off_the_diagonal() -> None:
    dt, d = 0.02, 3
    noise = symmetric_increments(11, 0, 4, d, 10_000, dt) / math.sqrt(dt)
    for i, j in itertools.combinations_with_replacement(range(d), 2):
        sample = noise[..., i, j].flatten()
        variance = 1.0 if i == j else 0.5
        # Standard errors of a Gaussian sample: mean sqrt(v/N), variance v sqrt(2/N); four of each.
        assert abs(float(sample.mean())) < 4 * math.sqrt(variance / len(sample))
        assert abs(float(sample.var()) / variance - 1) < 4 * math.sqrt(2 / len(sample))


def test_entries_heads_paths_and_seeds_are_uncorrelated() -> None:
    upper = torch.triu_indices(3, 3)
    sources = []
    for seed, path in [(0, 0), (0, 1), (1, 0), (1, 1), (2**32 - 1, 0)]:
        noise = symmetric_increments(seed, path, 3, 3, 10_000, 1.0)
        sources += list(noise[:, :, upper[0], upper[1]].flatten(1).T)
    correlation = torch.corrcoef(torch.stack(sources))
    off = correlation[~torch.eye(len(sources), dtype=torch.bool)]
    # N(0, 1/N) each, about 4000 of them: five standard errors bound the largest, and they must scatter as they should.
    assert float(off.abs().max()) < 5 / math.sqrt(10_000)
    assert 0.9 < float(off.std()) * math.sqrt(10_000) < 1.1


def test_successive_increments_are_uncorrelated() -> None:
    series = symmetric_increments(3, 0, 1, 1, 40_000, 1.0).flatten()
    for lag in (1, 2, 7):
        assert abs(float((series[:-lag] * series[lag:]).mean())) < 4 / math.sqrt(len(series))


def test_global_generators_are_untouched() -> None:
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002
    symmetric_increments(0, 0, 2, 3, 4, 0.1)
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"num_heads": 0}, "num_heads"),
        ({"dimension": 0}, "dimension"),
        ({"steps": 0}, "steps"),
        ({"dt": 0.0}, "dt"),
        ({"dt": math.nan}, "dt"),
        ({"seed": -1}, "seed"),
        ({"path": -1}, "path"),
    ],
)
def test_bad_arguments_are_named(change: dict, name: str) -> None:
    arguments = {"seed": 0, "path": 0, "num_heads": 1, "dimension": 2, "steps": 1, "dt": 0.1} | change
    with pytest.raises(InvalidInput, match=name):
        symmetric_increments(**arguments)
