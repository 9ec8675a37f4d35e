"""What the package asks of a device: few waits of the host, and few arrays in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jko
from tests.devices.pretended import watched
from tests.schemes.problems import METRICS, attention, solver, succeeded, tokens

F32, F64 = torch.float32, torch.float64
N, H = 20, 3
every_metric = pytest.mark.parametrize("metric", METRICS)


def problem(there: str, metric: str, dtype: torch.dtype = F64) -> tuple[jko.GradientFlow, jko.ParticleMeasure]:
    return attention(jko.initial_heads(H, 3, 0), metric), jko.ParticleMeasure(tokens(N)).to(dtype, torch.device(there))


# Waits of a step beside its passes, and waits of one pass: measured, to be lowered and not to be raised.
@every_metric
@pytest.mark.parametrize(("method", "once", "each"), [("anderson", 28, 7), ("trust", 35, 6)])
def test_the_host_waits_a_few_times_a_pass(there: str, metric: str, method: str, once: int, each: int) -> None:
    flow, measure = problem(there, metric)
    scheme = jko.JKO(0.02, **solver(method))
    with watched() as traffic:
        passes = succeeded(scheme.step(flow, measure)).info.evaluations
    # The trust region solves the heads of a head-wise step one after the other, a pass of one head at a time.
    solved = H if (metric, method) == ("headwise", "trust") else 1
    assert traffic.to_host.total() <= solved * (once + each * passes), traffic.to_host
    # No more than the first choice of the moving particles is by a mask, which the host has to count.
    assert traffic.to_host["index"] + traffic.to_host["index_put_"] == 0
    assert traffic.to_host["nonzero"] <= solved


@pytest.mark.parametrize(
    ("scheme", "passes"), [(jko.ExplicitEuler(0.1), 2), (jko.ExponentialEuler(0.1), 2), (jko.RK4(0.1), 5)], ids=str
)
def test_explicit_steps_wait_a_few_times_a_pass(there: str, scheme: Any, passes: int) -> None:
    flow, measure = problem(there, "weighted")
    with watched() as traffic:
        succeeded(scheme.step(flow, measure))
    # One torch.equal a pass: that of the heads with their transposes.
    assert traffic.to_host["equal"] == passes
    # Two more than before mobilities were looked at for the ends of the range of floats.
    assert traffic.to_host.total() <= 10 * passes


@every_metric
def test_a_pass_in_single_precision_has_no_large_array_in_double_precision(there: str, metric: str) -> None:
    flow, measure = problem(there, metric, F32)
    with watched() as traffic:
        flow.velocity(measure, 0.0)
    # One sum of masses for each head: n H numbers; n^2 pairs and n H d coordinates are more.
    assert max(traffic.doubles.values()) == N * H
