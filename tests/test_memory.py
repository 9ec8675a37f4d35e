"""Requests that cannot fit are refused before any work, with the array, its size and the way out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import jko
from jko import memory
from jko.grid import time_grid
from jko.memory import check_fits, free_memory
from jko.random import symmetric_increments
from jko.reductions import Blocked
from jko.transport import Coupling, ExactOT, Sinkhorn, squared_wasserstein
from jko.weighted import weighted_distance

CPU = torch.device("cpu")
FREE = 2.0**33


def cloud(n: int, d: int) -> jko.ParticleMeasure:
    points = torch.zeros(n, d, dtype=torch.float64)
    points[:, 0] = 1
    return jko.ParticleMeasure(points)


def heads(count: int, d: int, t1: float = 0.01) -> jko.OrnsteinUhlenbeckHeads:
    return jko.OrnsteinUhlenbeckHeads(torch.eye(d, dtype=torch.float64).expand(count, d, d), t1=t1)


def flow(count: int, d: int, metric: Any = None) -> jko.GradientFlow:
    return jko.GradientFlow(jko.AttentionEnergy(heads(count, d)), metric)


def many_heads(s: float) -> torch.Tensor:
    return torch.eye(60, dtype=torch.float64).expand(100, 60, 60)


def moving(x: torch.Tensor, t: float) -> torch.Tensor:
    pytest.fail("the pass began")


POTENTIAL = jko.GradientFlow(jko.PotentialEnergy(moving), jko.Wasserstein2())
QUADRATIC = jko.GradientFlow(jko.PotentialEnergy(lambda x: x[..., 1].sin()), jko.Wasserstein2())
EYES = torch.eye(3, dtype=torch.float64)[None]

REQUESTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "Newton blocks of many heads": (
        lambda: jko.JKO(0.01).step(flow(12, 384), cloud(4, 384)),
        r"the maps of second moments of shape \(12, 73920, 73920\) in float64, 4 times over",
        r"Anderson\(newton=False\)",
    ),
    "the same in the first pass of a run": (
        lambda: jko.solve(flow(12, 384), cloud(4, 384), jko.JKO(0.01), t1=0.01),
        "the maps of second moments",
        r"Anderson\(newton=False\)",
    ),
    "the same head by head": (
        lambda: jko.JKO(0.01).step(flow(12, 384, jko.HeadwiseWasserstein()), cloud(4, 384)),
        "the maps of second moments",
        r"Anderson\(newton=False\)",
    ),
    "the same in a sum": (
        lambda: (2.0 * flow(12, 384).energy + POTENTIAL.energy).evaluate(cloud(4, 384), 0.0, curvature=True),
        "the maps of second moments",
        r"Anderson\(newton=False\)",
    ),
    "Newton blocks of a potential": (
        lambda: jko.JKO(0.01).step(POTENTIAL, cloud(500, 800)),
        "the Newton blocks",
        r"Anderson\(newton=False\)",
    ),
    "Hessians of a potential": (
        lambda: POTENTIAL.energy.evaluate(cloud(1000, 1000), 0.0, curvature=True),
        "the Hessians at the particles",
        r"Anderson\(newton=False\)",
    ),
    "Hessians of an interaction": (
        lambda: jko.InteractionEnergy(jko.GaussianKernel(1.0)).evaluate(cloud(1000, 1000), 0.0, curvature=True),
        "the Hessians at the particles",
        r"Anderson\(newton=False\)",
    ),
    "second moments of the ledger": (
        lambda: jko.ExplicitEuler(0.01, ledger=True).step(flow(1, 1000), cloud(1000, 1000)),
        "the second moments",
        r"ExplicitEuler\(tau\)",
    ),
    "Ornstein-Uhlenbeck heads": (lambda: heads(4, 3, 1e9), "the values at the nodes", "a larger dt"),
    "oscillating heads": (lambda: jko.OscillatingHeads(EYES, t1=1e9), "the values at the nodes", "a larger dt"),
    "Ito heads": (
        lambda: jko.ItoHeads(EYES, lambda D, t: -D, lambda D, t: 0.0, t1=1e9),
        "the values at the nodes",
        "a larger dt",
    ),
    "times of a path": (
        lambda: jko.OscillatingHeads(EYES[:, :2, :2], t1=2.8e6),
        "the times of the nodes|the values at the nodes",
        "a larger dt",
    ),
    "increments": (lambda: symmetric_increments(0, 0, 1, 3, 10**12, 0.1), "the increments of the noise", "fewer steps"),
    "times of the steps": (lambda: time_grid(0.0, 1e10, 1e-3), "the times of the steps", "a larger tau"),
    "clouds of a run": (
        lambda: jko.solve(
            jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(EYES))), cloud(5000, 3), jko.JKO(1e-5), t1=1.0
        ),
        "the clouds that the run keeps",
        r"Save\(every=...\)",
    ),
    "exact transport in a step": (
        lambda: jko.JKO(0.1, transport=ExactOT()).step(POTENTIAL, cloud(50_000, 3)),
        "the matrices over all pairs",
        r"Sinkhorn\(eps, lazy=True\)",
    ),
    "a stored kernel in a step": (
        lambda: jko.JKO(0.1, transport=Sinkhorn(0.1, lazy=False)).step(POTENTIAL, cloud(50_000, 3)),
        "the matrices over all pairs",
        r"Sinkhorn\(eps, lazy=True\)",
    ),
    "a plan as a matrix": (
        lambda: Coupling.identity(cloud(50_000, 3).weights).dense(50_000, 50_000),
        "the matrices over all pairs",
        "fewer particles",
    ),
    "exact distance": (
        lambda: squared_wasserstein(cloud(50_000, 3), cloud(50_000, 3), jko.Sphere()),
        "the matrices over all pairs",
        "fewer particles",
    ),
    "pairs of a weighted distance": (
        lambda: weighted_distance(cloud(30_000, 3).points, cloud(30_000, 3).points, EYES),
        "the differences of all pairs",
        "fewer particles",
    ),
    "kernels of a weighted distance": (
        lambda: weighted_distance(cloud(4000, 3).points, cloud(4000, 3).points, EYES.expand(100, 3, 3)),
        "the kernels of the heads",
        "or heads",
    ),
    "tangent bases of the fallback": (
        lambda: jko.JKO(0.1, minimizer=jko.TrustNewton()).step(QUADRATIC, cloud(2000, 800)),
        "the tangent bases of TrustNewton",
        "Anderson alone",
    ),
    "stiffness of a weighted distance": (
        lambda: weighted_distance(cloud(1000, 3).points, cloud(1000, 3).points, EYES, segments=1000),
        "the stiffness of the paths",
        "segments",
    ),
    "paths of a weighted distance": (
        lambda: weighted_distance(cloud(10, 3).points, cloud(10, 3).points, EYES, segments=10**8),
        "the frames along the path",
        "segments",
    ),
    "heads along a weighted distance": (
        lambda: weighted_distance(cloud(2, 60).points, cloud(2, 60).points, many_heads, segments=2000),
        "the heads along the path",
        "segments",
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_cannot_fit_is_refused_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        pytest.fail("the pass began")

    monkeypatch.setattr(memory, "free_memory", lambda device: FREE)
    monkeypatch.setattr(Blocked, "exponential_sums", forbidden)
    call, array, way_out = REQUESTS[name]
    begin = time.perf_counter()
    with pytest.raises(
        jko.InvalidInput, match=rf"({array}).* take [0-9.e+]+ GiB, but 8 GiB are free on cpu; .*{way_out}"
    ):
        call()
    assert time.perf_counter() - begin < 5.0


def test_what_the_error_advises_does_the_step() -> None:
    step = jko.JKO(0.01, minimizer=jko.Anderson(newton=False)).step(flow(12, 384), cloud(4, 384))
    assert step.info.status.ok


def test_an_array_is_measured_with_its_copies_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: FREE)
    check_fits("arrays", (2**10, 2**20), torch.float64, CPU, "none")
    check_fits("arrays", (2**11, 2**20), torch.float32, CPU, "none")
    for shape, dtype, copies in (
        ((2**10 + 1, 2**20), torch.float64, 1),
        ((2**11 + 1, 2**20), torch.float32, 1),
        ((2**9 + 1, 2**20), torch.float64, 2),
        ((1e200, 1e200), torch.float64, 1),
    ):
        with pytest.raises(jko.InvalidInput, match="arrays of shape"):
            check_fits("arrays", shape, dtype, CPU, "none", copies=copies)


def test_small_arrays_are_made_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: pytest.fail("asked"))
    check_fits("arrays", (2**23,), torch.float64, CPU, "none")


def test_the_limit_of_a_control_group_counts_where_it_is_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4096 kB\n", encoding="ascii")
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    assert free_memory(CPU) == 2**22
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    assert free_memory(CPU) == 2**22
    (tmp_path / "memory/memory.limit_in_bytes").write_text("2048\n", encoding="ascii")
    assert free_memory(CPU) == 2048
    (tmp_path / "memory.max").write_text("1024\n", encoding="ascii")
    assert free_memory(CPU) == 1024


def test_without_any_word_of_the_system_there_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    assert 2**20 < free_memory(CPU) < math.inf  # all of the machine
    monkeypatch.delattr(memory.os, "sysconf")
    assert free_memory(CPU) == math.inf
    assert free_memory(torch.device("meta")) == math.inf
