from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from scipy import stats

from jko.errors import InvalidInput
from jko.initial import initial_heads, initial_tokens
from jko.random import symmetric_increments


def test_heads_have_variance_4_on_and_2_off_the_diagonal() -> None:
    heads = initial_heads(20_000, 3, 5)
    assert heads.shape == (20_000, 3, 3)
    assert torch.equal(heads, heads.mT)
    for i in range(3):
        for j in range(i, 3):
            sample = heads[:, i, j]
            variance = 4.0 if i == j else 2.0
            assert abs(float(sample.mean())) < 4 * math.sqrt(variance / len(sample))
            assert abs(float(sample.var()) / variance - 1) < 4 * math.sqrt(2 / len(sample))
    correlation = torch.corrcoef(heads.flatten(1)[:, [0, 1, 2, 4, 5, 8]].T)
    assert float((correlation - torch.eye(6, dtype=torch.float64)).abs().max()) < 4 / math.sqrt(20_000)


def test_first_heads_are_those_of_a_smaller_number() -> None:
    assert torch.equal(initial_heads(100, 3, 42)[:10], initial_heads(10, 3, 42))
    assert not torch.equal(initial_heads(10, 3, 42), initial_heads(10, 3, 43))


def test_heads_and_tokens_do_not_share_a_stream_with_the_noise() -> None:
    heads = initial_heads(50, 3, 0)
    for path in range(3):
        noise = 2 * symmetric_increments(0, path, 50, 3, 20, 1.0)
        assert not bool(torch.isclose(noise, heads).all(-1).all(-1).any())
        # The first matrices of each head, side by side: 300 independent pairs of upper entries.
        upper = torch.triu_indices(3, 3)
        pair = torch.stack((noise[0][:, upper[0], upper[1]].flatten(), heads[:, upper[0], upper[1]].flatten()))
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 4 / math.sqrt(pair.shape[1])
    around_vertices = initial_tokens(300, 3, 0)
    offsets = (around_vertices - around_vertices.round()).flatten()
    first = symmetric_increments(0, 0, 1, 30, 1, 1.0).flatten()
    assert abs(float(torch.corrcoef(torch.stack((offsets, first)))[0, 1])) < 4 / math.sqrt(900)


@pytest.mark.parametrize("d", [3, 4, 7])
def test_tokens_gather_around_the_vertices(d: int) -> None:
    n = 12_000
    tokens = initial_tokens(n, d, 42)
    assert tokens.shape == (n, d)
    torch.testing.assert_close(tokens.norm(dim=-1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-15)
    vertices = tokens.round()
    assert torch.equal(vertices.abs().sum(-1), torch.ones(n, dtype=torch.float64))
    labels = (2 * vertices.abs().argmax(-1) + (vertices.sum(-1) < 0)).numpy()
    assert stats.chisquare(np.bincount(labels, minlength=2 * d)).pvalue > 1e-3
    # Central projection undoes the normalization up to the radial factor 1 + N(0, 0.05^2), so tangential coordinates
    # over the radial one have variance s^2 (1 + 3 s^2), s = 0.05.
    tangential = tokens / (tokens * vertices).sum(-1, keepdim=True)
    sample = tangential[vertices == 0]
    assert abs(float(sample.mean())) < 4 * 0.05 / math.sqrt(len(sample))
    variance = 0.05**2 * (1 + 3 * 0.05**2)
    assert abs(float(sample.var()) / variance - 1) < 4.1 * math.sqrt(2 / len(sample))


def test_tokens_on_the_circle_gather_around_five_angles() -> None:
    n = 12_000
    tokens = initial_tokens(n, 2, 1)
    torch.testing.assert_close(tokens.norm(dim=-1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-15)
    angles = torch.atan2(tokens[:, 1], tokens[:, 0])
    turns = angles * 5 / (2 * math.pi)
    labels = turns.round()
    assert stats.chisquare(np.bincount(labels.remainder(5).long().numpy(), minlength=5)).pvalue > 1e-3
    offsets = (turns - labels) * 2 * math.pi / 5
    assert abs(float(offsets.mean())) < 4 * 0.05 / math.sqrt(n)
    assert abs(float(offsets.std()) / 0.05 - 1) < 4 / math.sqrt(2 * n)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_first_tokens_are_those_of_a_smaller_cloud(d: int) -> None:
    assert torch.equal(initial_tokens(300, d, 42)[:37], initial_tokens(37, d, 42))
    assert not torch.equal(initial_tokens(37, d, 42), initial_tokens(37, d, 43))


def test_precision_and_device_round_the_same_numbers() -> None:
    for sample in (initial_heads, initial_tokens):
        single = sample(6, 3, 0, dtype=torch.float32, device="cpu")
        assert single.dtype == torch.float32
        assert torch.equal(single, sample(6, 3, 0).to(torch.float32))


def test_global_generators_are_untouched() -> None:
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002
    initial_heads(3, 3, 0)
    initial_tokens(5, 3, 0)
    initial_tokens(5, 2, 0)
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


@pytest.mark.parametrize(
    ("sample", "arguments", "name"),
    [
        (initial_tokens, (0, 3, 0), "n must"),
        (initial_tokens, (3, 1, 0), "dimension"),
        (initial_tokens, (3, 0, 0), "dimension"),
        (initial_tokens, (3, 3, -1), "seed"),
        (initial_heads, (0, 3, 0), "num_heads"),
        (initial_heads, (3, 0, 0), "dimension"),
        (initial_heads, (3, 3, 2**32), "seed"),
    ],
)
def test_bad_arguments_are_named(sample, arguments: tuple, name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        sample(*arguments)
