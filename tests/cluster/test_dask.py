"""Sweeps and the paper's jobs on a cluster: a local one of dask stands for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest
import torch

import jko
from jko.paper import Regime, Setting, execute, is_finished, load_job, paper_jobs

distributed = pytest.importorskip("distributed")

# What the cluster itself warns about is not ours: sockets that close late, and ports that others use.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

SWEEP: dict[str, Any] = {
    "measure": {"n": 8},
    "scheme": {"tau": 0.02},
    "solve": {"t1": 0.1},
    "sweep": {"H": [1, 2], "metric": ["weighted", "headwise"]},
}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two processes of a local cluster."""
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as connected,
    ):
        yield connected


def events_elsewhere(client: Any) -> int:
    """Return how many events of tasks the workers recorded; they are processes other than this one."""
    found = client.run(lambda dask_worker: (os.getpid(), len(dask_worker.state.log)))
    assert all(pid != os.getpid() for pid, _ in found.values())
    return sum(events for _, events in found.values())


def test_a_sweep_on_a_cluster_is_the_sweep_at_home(client: Any, tmp_path: Path) -> None:
    before = events_elsewhere(client)
    with joblib.parallel_config(backend="dask"):
        far = jko.sweep(SWEEP, tmp_path / "far")
    assert events_elsewhere(client) > before
    before = events_elsewhere(client)
    near = jko.sweep(SWEEP, tmp_path / "near")
    assert events_elsewhere(client) == before
    assert [row["run"] for row in far.rows] == [row["run"] for row in near.rows]
    assert far.count("success") == len(far.rows) == 4
    for row in far.rows:
        one, other = (jko.load(tmp_path / place / "runs" / row["run"]) for place in ("far", "near"))
        assert torch.equal(one.points, other.points)
        assert torch.equal(one.states.energy, other.states.energy)


def test_jobs_on_a_cluster_are_those_at_home(client: Any, tmp_path: Path) -> None:
    setting = Setting.small(n=6, t1=0.2, heads=(1, 2), paths=2)
    jobs = paper_jobs(setting, [Regime.OU], setting.heads)
    with joblib.parallel_config(backend="dask"):
        execution = execute(jobs, tmp_path / "far")
    assert execution.computed == len(jobs)
    execute(jobs, tmp_path / "near", workers=1)
    for job in jobs:
        assert is_finished(tmp_path / "far", job)
        one, other = load_job(tmp_path / "far", job), load_job(tmp_path / "near", job)
        assert torch.equal(one.clouds, other.clouds)
        assert all(torch.equal(one.states[name], other.states[name]) for name in other.states)
