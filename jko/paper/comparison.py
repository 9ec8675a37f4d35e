"""JKO against the explicit scheme on the settings of the paper, in each metric, with both phase variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from jko.diagnostics import Check
from jko.errors import RunFolderError
from jko.manifolds import Sphere
from jko.measure import ParticleMeasure
from jko.paper.job import Geometry, Job, JobResult
from jko.paper.setting import Regime, Setting
from jko.paper.statistics import window_mean
from jko.paper.store import load_job
from jko.transport import squared_wasserstein

__all__ = ["Distance", "FlowsEntry", "FlowsResult", "Movement", "collect_flows", "flow_jobs"]

_DISTANCES = 20


def flow_jobs(setting: Setting, regimes: Sequence[Regime]) -> list[Job]:
    """Return the runs of the comparison: every regime, H, metric, and both schemes, on the first path."""
    return [
        Job(setting, regime, count, 0, geometry, minimizing)
        for regime in regimes
        for count in setting.heads
        for geometry in Geometry
        for minimizing in (True, False)
    ]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """One run of one scheme in one metric.

    Attributes:
        geometry: the metric.
        minimizing: JKO instead of the explicit scheme.
        states: state columns, see `JobResult`.
        mean_slope2: mean of the paper's G^2 over the window of the setting.
        passes: passes over the pairs per step.
        residual: the largest relative residual of a step; None for the explicit scheme.
        certified: the fraction of certified steps; None for the explicit scheme.
        seconds: wall-clock time.
    """

    geometry: Geometry
    minimizing: bool
    states: dict[str, Tensor]
    mean_slope2: float
    passes: float
    residual: float | None
    certified: float | None
    seconds: float

    @property
    def title(self) -> str:
        """Scheme and metric."""
        return f"{'JKO' if self.minimizing else 'explicit'}, {self.geometry.metric.title}"

    def as_data(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return {
            "title": self.title,
            "mean_slope2": self.mean_slope2,
            "energy_initial": float(self.states["energy"][0]),
            "energy_final": float(self.states["energy"][-1]),
            "passes_per_step": self.passes,
            "worst_residual": self.residual,
            "certified": self.certified,
            "seconds": self.seconds,
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class Distance:
    """Exact W_2 between two runs over time.

    Attributes:
        first: title of one run.
        second: title of the other.
        times: shape (S,).
        values: shape (S,).
    """

    first: str
    second: str
    times: Tensor
    values: Tensor

    @property
    def supremum(self) -> float:
        """The largest distance."""
        return float(self.values.max())

    def as_data(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return {
            "first": self.first,
            "second": self.second,
            "sup_distance": self.supremum,
            "mean_distance": float(self.values.mean()),
            "times": self.times.tolist(),
            "distances": self.values.tolist(),
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class FlowsEntry:
    """All schemes and metrics on one head path.

    Attributes:
        regime: how the heads move.
        num_heads: H.
        movements: the runs that ended well.
        same_metric: JKO to explicit, one entry per metric.
        crossing: JKO in W_{m,2} to the explicit head-wise flow, the transformer; None where one of them failed.
    """

    regime: Regime
    num_heads: int
    movements: tuple[Movement, ...]
    same_metric: tuple[Distance, ...]
    crossing: Distance | None

    def movement(self, geometry: Geometry, minimizing: bool) -> Movement | None:
        """Return one of the runs; None where it failed."""
        found = [m for m in self.movements if m.geometry is geometry and m.minimizing is minimizing]
        return found[0] if found else None

    def as_data(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return {
            "regime": self.regime.value,
            "num_heads": self.num_heads,
            "movements": [movement.as_data() for movement in self.movements],
            "same_metric": [distance.as_data() for distance in self.same_metric],
            "crossing": None if self.crossing is None else self.crossing.as_data(),
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class FlowsResult:
    """The comparison on every regime and number of heads.

    Attributes:
        setting: the parameters; one path each.
        entries: one entry per regime and H.
    """

    setting: Setting
    entries: tuple[FlowsEntry, ...]

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """The regimes, in their order."""
        return tuple(dict.fromkeys(entry.regime for entry in self.entries))

    @property
    def checks(self) -> tuple[Check, ...]:
        """Every step of every JKO run is solved to its tolerance."""
        found = []
        solved = 1e-8 if self.setting.dtype == "float64" else 1e-5
        for entry in self.entries:
            residuals = [m.residual for m in entry.movements if m.residual is not None]
            if residuals:
                name = f"{entry.regime.title}, H = {entry.num_heads}: every JKO step is solved"
                found.append(Check(name, max(residuals) <= solved, f"largest relative residual {max(residuals):.1e}"))
        return tuple(found)

    def as_data(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return {"entries": [entry.as_data() for entry in self.entries]}


def collect_flows(folder: Path, setting: Setting, regimes: Sequence[Regime]) -> FlowsResult:
    """Read the finished jobs of the comparison; runs that failed are left out."""
    return FlowsResult(
        setting, tuple(_entry(folder, setting, regime, count) for regime in regimes for count in setting.heads)
    )


def _entry(folder: Path, setting: Setting, regime: Regime, count: int) -> FlowsEntry:
    found: dict[tuple[Geometry, bool], JobResult] = {}
    for job in flow_jobs(setting, [regime]):
        if job.num_heads == count and (result := _finished(folder, job)) is not None:
            found[job.geometry, job.minimizing] = result
    movements = {key: _movement(setting, *key, result) for key, result in found.items()}

    def distances(pairs: list[tuple[tuple[Geometry, bool], tuple[Geometry, bool]]]) -> Iterator[Distance]:
        for first, second in pairs:
            if first in found and second in found:
                times, values = _distances(found[first], found[second])
                yield Distance(movements[first].title, movements[second].title, times, values)

    same = tuple(distances([((geometry, True), (geometry, False)) for geometry in Geometry]))
    crossing = tuple(distances([((Geometry.WEIGHTED, True), (Geometry.HEADWISE, False))]))
    return FlowsEntry(regime, count, tuple(movements.values()), same, crossing[0] if crossing else None)


def _finished(folder: Path, job: Job) -> JobResult | None:
    try:
        return load_job(folder, job)
    except RunFolderError:
        return None


def _movement(setting: Setting, geometry: Geometry, minimizing: bool, result: JobResult) -> Movement:
    steps, states = result.steps, result.states
    return Movement(
        geometry=geometry,
        minimizing=minimizing,
        states=states,
        mean_slope2=float(window_mean(states["t"], states["paper_slope2"], setting.window)),
        passes=float(steps["evaluations"].mean()),
        residual=float(steps["residual"].max()) if "residual" in steps else None,
        certified=float(steps["certified"].mean()) if "certified" in steps else None,
        seconds=result.seconds,
    )


def _distances(first: JobResult, second: JobResult) -> tuple[Tensor, Tensor]:
    """Exact distances at a few of the times that both kept."""
    count = len(first.times)
    picked = torch.linspace(0, count - 1, min(_DISTANCES + 1, count)).round().long()
    squares = [
        squared_wasserstein(ParticleMeasure(x), ParticleMeasure(y), Sphere())
        for x, y in zip(first.clouds[picked], second.clouds[picked], strict=True)
    ]
    return first.times[picked], torch.tensor(squares, dtype=torch.float64).sqrt()
