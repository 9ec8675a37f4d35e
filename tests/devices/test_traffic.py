"""What the package asks of a device: few waits of the host, and no arrays over pairs or heads in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

import jko
from jko.flows import AbstractFlow
from jko.reductions import AbstractReduction, Auto, Blocked
from tests.devices.pretended import Traffic, watched
from tests.oracles.attention import problem
from tests.schemes.problems import METRICS, attention, succeeded, tokens

every_metric = pytest.mark.parametrize("metric", METRICS)
N, H = 40, 3


def flow(metric: str) -> jko.GradientFlow:
    return attention(jko.initial_heads(H, 3, 0), metric)


def cloud(device: str, dtype: torch.dtype = torch.float64) -> jko.ParticleMeasure:
    return jko.ParticleMeasure(tokens(N)).to(dtype, torch.device(device))


@every_metric
@pytest.mark.parametrize("minimizer", ["anderson", "trust"])
def test_waits_of_a_step(pretended_device: str, metric: str, minimizer: str) -> None:
    pass
