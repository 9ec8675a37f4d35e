"""One run of an experiment: the smallest piece of work that is saved, skipped and repeated."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, final

import torch
from torch import Tensor

from jko.driver import Save, solve
from jko.energies import AttentionEnergy
from jko.flows import GradientFlow
from jko.metrics import AbstractMetric, HeadwiseWasserstein, Wasserstein2, WeightedWasserstein
from jko.paper.setting import Regime, Setting
from jko.progress import AbstractProgress
from jko.schemes import JKO, AbstractScheme, ExplicitEuler
from jko.status import Status
from jko.storage import json_bytes

__all__ = ["Geometry", "Job", "JobResult"]

_FORMAT = 1
# What a step costs beside its exponentials, in exponentials: calls of PyTorch and columns.
_OVERHEAD = 400_000
# Columns that the figures and tables read; a run has further ones.
_STATE_COLUMNS = ("t", "energy", "slope2", "dissipation", "paper_slope2", "covariance_defect")
_STEP_COLUMNS = (
    "energy_previous",
    "time_part",
    "squared_distance",
    "residual",
    "certified",
    "evaluations",
    "ledger_drift",
    "ledger_ito",
    "ledger_dissipation",
    "ledger_martingale",
)


class Geometry(Enum):
    """The metric of a run; the value names it in files."""

    WASSERSTEIN2 = "wasserstein2"
    WEIGHTED = "weighted"
    HEADWISE = "headwise"

    @property
    def metric(self) -> AbstractMetric:
        """The metric itself."""
        if self is Geometry.WASSERSTEIN2:
            return Wasserstein2()
        return WeightedWasserstein() if self is Geometry.WEIGHTED else HeadwiseWasserstein()


@final
@dataclass(frozen=True, slots=True, eq=False)
class JobResult:
    """What is kept of a run: functionals at every step, a few clouds.

    Attributes:
        states: state columns, shape (K + 1,) each, the initial state first.
        steps: step columns, shape (K,) each.
        times: times of the kept clouds, shape (S,).
        clouds: the kept clouds, shape (S, n, d).
        status: how the run ended.
        detail: why it ended early; empty for a run that is ok.
        seconds: wall-clock time.
    """

    states: dict[str, Tensor]
    steps: dict[str, Tensor]
    times: Tensor
    clouds: Tensor
    status: Status
    detail: str
    seconds: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One path of one regime with one number of heads, by one scheme in one metric.

    The experiments of the paper are explicit and head-wise; these have the columns of the balance (147) too.

    Attributes:
        setting: the parameters.
        regime: how the heads move.
        num_heads: H.
        path: number of the Monte Carlo path.
        geometry: the metric.
        minimizing: a minimizing movement (JKO) instead of the explicit scheme.
    """

    setting: Setting
    regime: Regime
    num_heads: int
    path: int = 0
    geometry: Geometry = Geometry.HEADWISE
    minimizing: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the numbers of the run depend on, as plain data: the number of paths is none of it."""
        shared = self.setting.as_data()
        for name in ("heads", "paths", "window", "frames"):
            del shared[name]
        return {
            "format": _FORMAT,
            **shared,
            "keep_every": self.setting.keep_every,
            "regime": self.regime.value,
            "num_heads": self.num_heads,
            "path": self.path,
            "metric": self.geometry.value,
            "scheme": "jko" if self.minimizing else "explicit",
        }

    @property
    def name(self) -> str:
        """Name of its files: readable, and another one for every other identity."""
        digest = hashlib.sha256(json_bytes(self.identity, "identity")).hexdigest()[:10]
        scheme = "jko" if self.minimizing else "explicit"
        return f"{self.regime.value}-H{self.num_heads}-{self.geometry.value}-{scheme}-path{self.path:03d}-{digest}"

    @property
    def work(self) -> float:
        """The expected work in exponentials, for the order of the jobs and the remaining time."""
        passes = {Geometry.WASSERSTEIN2: 8.0, Geometry.WEIGHTED: 7.0, Geometry.HEADWISE: 8.5}[self.geometry]
        pairs = self.setting.n**2 * self.num_heads
        return self.setting.steps * (passes if self.minimizing else 2.0) * (pairs + _OVERHEAD)

    def run(self, progress: AbstractProgress | None = None) -> JobResult:
        """Run it on one thread: the jobs share the cores, not the pair sums.

        Raises:
            KeyboardInterrupt: when it is interrupted; there is no result then.
        """
        start = time.perf_counter()
        setting = self.setting
        energy = AttentionEnergy(setting.make_heads(self.regime, self.num_heads, self.path), setting.sign)
        with _one_thread():
            solution = solve(
                GradientFlow(energy, self.geometry.metric),
                setting.measure(),
                self._scheme(),
                t1=setting.t1,
                save=Save(every=setting.keep_every),
                progress=progress,
                throw=False,
            )
        if solution.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        states, steps = solution.states.numeric(), solution.records.numeric()
        return JobResult(
            states={name: states[name] for name in _STATE_COLUMNS if name in states},
            steps={name: steps[name] for name in _STEP_COLUMNS if name in steps},
            times=solution.times,
            clouds=solution.points.cpu(),
            status=solution.status,
            detail="" if solution.failure is None else str(solution.failure),
            seconds=time.perf_counter() - start,
        )

    def _scheme(self) -> AbstractScheme:
        tau = self.setting.dt
        return JKO(tau) if self.minimizing else ExplicitEuler(tau, ledger=self.geometry is Geometry.HEADWISE)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
