"""The result of a run: what was saved, the records, how it ended; saving and loading."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from jko.errors import MissingDependency, RunDamaged, RunFolderError
from jko.measure import ParticleMeasure
from jko.records import Records
from jko.runs import (
    CHUNKED,
    RunData,
    RunFolder,
    compare_files,
    config_changes,
    digests,
    new_name,
    read_inventory,
    read_run,
    remove,
    versions,
)
from jko.status import Failure, Status
from jko.storage import json_bytes, read_json, read_tensors, write_json, write_sealed, write_tensors
from jko.trajectory import Trajectory

if TYPE_CHECKING:
    from xarray import Dataset

__all__ = ["FORMAT_VERSION", "Solution", "load"]

FORMAT_VERSION = 1
_TABLES = ("records", "states", "trajectory")
_MOST_CHANGES = 4


@final
@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A run of a scheme along a flow.

    Attributes:
        times: the saved times, shape (S,), float64.
        trajectory: the saved clouds at these times.
        records: one row per step k = 1..K; state columns at (u^k, t_k), step columns of the step to it.
        states: the state columns in K + 1 rows, the initial state first.
        status: how the run ended.
        failure: where and why it ended early; None for a run that is ok.
        title: flow and scheme, for figures and tables.
        config: what made the run, as plain data; saved with it.
    """

    times: Tensor
    trajectory: Trajectory
    records: Records
    states: Records
    status: Status
    failure: Failure | None = None
    title: str = ""
    config: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the configuration as plain data, since a read-only view cannot be."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _rebuilt, ({**values, "config": dict(self.config)},)

    def __repr__(self) -> str:
        """Say what ran, how far, and how it ended."""
        t0, t1 = float(self.states.t[0]), float(self.states.t[-1])
        n, d = self.trajectory.sizes[-1], self.trajectory.points.shape[-1]
        return (
            f"Solution({self.title}: n={n}, d={d}, {self.steps} steps from t={t0:g} to t={t1:g}, "
            f"{len(self.times)} clouds kept, status={self.status.name})"
        )

    @property
    def steps(self) -> int:
        """Number of completed steps."""
        return len(self.states.t) - 1

    @property
    def points(self) -> Tensor:
        """The saved particles, shape (S, n, d).

        Raises:
            InvalidInput: when the run changed the number of particles; `measure(k)` gives each cloud.
        """
        return self.trajectory.stacked_points

    @property
    def weights(self) -> Tensor:
        """The particle weights, shape (n,).

        Raises:
            InvalidInput: when the run changed the number of particles or their weights.
        """
        return self.trajectory.common_weights

    def measure(self, k: int) -> ParticleMeasure:
        """Return the k-th saved measure; negative k count from the end."""
        return self.trajectory.measure(k)

    def summary(self) -> dict[str, Any]:
        """Return the run in a few numbers, as plain data."""
        numbers: dict[str, Any] = {
            "title": self.title,
            "status": self.status.value,
            "advice": self.status.advice,
            "failure": None if self.failure is None else str(self.failure),
            "steps": self.steps,
            "t0": float(self.states.t[0]),
            "t1": float(self.states.t[-1]),
        }
        for name, column in self.states.numeric().items():
            numbers[f"{name}_final"] = float(column[-1])
        if self.steps:
            numbers["evaluations"] = float(self.records.evaluations.sum())
            for name, reduce in (("residual", torch.amax), ("certified", torch.mean)):
                if name in self.records:
                    numbers[name] = float(reduce(self.records[name]))
        return numbers

    def to_xarray(self) -> Dataset:
        """Return the run as an xarray Dataset, to be written to NetCDF or Zarr for instance.

        State columns on `t` (K + 1 times), columns of the steps on `step_t` (K times, the end of each step), clouds as
        `points` (`saved_t`, `particle`, `coordinate`) with `weights` (`particle`); where the support changed, `points`
        and `weights` are one cloud after the other along `particle`, and `size` (`saved_t`) says how many each has.

        Raises:
            MissingDependency: when xarray is not installed.
        """
        try:
            from xarray import Dataset
        except ImportError:
            raise MissingDependency(
                "to_xarray needs xarray, which is not installed: pip install 'jko[xarray]'"
            ) from None
        states = {name: ("t", column.numpy()) for name, column in self.states.numeric().items() if name != "t"}
        records = {
            f"step_{name}": ("step_t", column.numpy())
            for name, column in self.records.numeric().items()
            if name not in self.states
        }
        clouds = {name: tensor.cpu().numpy() for name, tensor in self.trajectory.tensors().items()}
        axes = ("saved_t", "particle", "coordinate") if "sizes" not in clouds else ("particle", "coordinate")
        data: dict[str, Any] = {
            **states,
            **records,
            "points": (axes, clouds["points"]),
            "weights": ("particle", clouds["weights"]),
        }
        if "sizes" in clouds:
            data["size"] = ("saved_t", clouds["sizes"])
        times = self.states.t.numpy()
        coordinates = {"t": times, "step_t": times[1:], "saved_t": self.times.numpy()}
        attributes = {
            "title": self.title,
            "status": self.status.value,
            "config": json_bytes(dict(self.config), "config").decode(),
        }
        return Dataset(data, coords=coordinates, attrs=attributes)

    def save(self, folder: str | Path, *, summary: dict[str, Any] | None = None, overwrite: bool = False) -> Path:
        """Write the run into a folder: `run.json`, `summary.json` and safetensors files, each atomically.

        `run.json` keeps the digest of every other file, so that `load` notices one that is damaged or of another run.
        It comes last, and goes first where another run is replaced: what is cut short never passes for whole.

        Args:
            folder: made where it does not exist.
            summary: further plain data for `summary.json`.
            overwrite: whether to replace another run that the folder holds.

        Raises:
            RunFolderError: when the folder holds another run, or cannot be written.
        """
        path, numbers, failure = Path(folder), {**self.summary(), **(summary or {})}, self.failure
        run = {
            "format": FORMAT_VERSION,
            "kind": "solution",
            "title": self.title,
            "status": self.status.value,
            "step_status": [status.value for status in self.records["status"]],
            "failure": None if failure is None else asdict(failure) | {"status": failure.status.value},
            "config": dict(self.config),
            "versions": versions(),
        }
        _make_room(path, {**run, "summary": self.summary()}, overwrite)
        write_tensors(path / "records.safetensors", self.records.numeric())
        write_tensors(path / "states.safetensors", self.states.numeric())
        write_tensors(
            path / "trajectory.safetensors",
            {"times": self.times, **self.trajectory.tensors()},
        )
        last = self.measure(-1)
        write_tensors(path / "measure.safetensors", {"points": last.points, "weights": last.weights})
        write_json(path / "summary.json", numbers)
        names = ("summary.json", *(f"{name}.safetensors" for name in (*_TABLES, "measure")))
        inventory = {"run": new_name(), "steps": self.steps, "written": digests(path, names)}
        write_sealed(path / "run.json", {**run, **inventory})
        return path


def _make_room(path: Path, run: dict[str, Any], overwrite: bool) -> None:
    """Refuse a folder with another run, or remove that; the same one may be written again."""
    if not (path / "run.json").exists():
        return
    if not overwrite:
        old = read_inventory(path)
        summary = read_json(path / "summary.json") if (path / "summary.json").exists() else {}
        new = json.loads(json_bytes(run, "config"))
        # Further data of the summary say nothing of the run.
        known = {"summary": {name: summary.get(name) for name in new["summary"]}, "versions": new["versions"]}
        told = {name: old.get(name) for name in new if name in old}
        changes = list(config_changes({**told, **known}, new).values())
        if not changes:
            return
        raise RunFolderError(
            f"{path} holds another run: {'; '.join(changes[:_MOST_CHANGES])}; choose another folder, or replace it "
            "with save(..., overwrite=True)"
        )
    remove(path / "run.json")
    RunFolder(path).clear()


def load(folder: str | Path) -> Solution:
    """Read a run that `Solution.save`, a checkpoint or the command line wrote.

    A run that was killed, or still goes on, is read up to its newest checkpoint and has the status INTERRUPTED. One
    whose files were lost or damaged afterwards is read up to the step before, and has the status DAMAGED: the failure
    names the steps and the files, and `resume` computes them again.

    Raises:
        RunFolderError: for a folder that holds no run, or one of a newer format.
        RunDamaged: naming the files that are missing, damaged or of another run, where nothing can be shown without.
    """
    path = Path(folder)
    run = read_inventory(path)
    if isinstance(run, dict) and run.get("kind") in ("comparison", "sweep"):
        names = ", ".join(run.get("solutions") or ["none yet"])
        raise RunFolderError(f"{path} holds a {run['kind']} of several runs; load one of its solutions: {names}")
    if not isinstance(run, dict) or run.get("kind") != "solution":
        raise RunFolderError(f"{path / 'run.json'} does not describe a single run of jko")
    if run.get("format") == CHUNKED:
        return _of_run(path, read_run(path))
    if run.get("format") != FORMAT_VERSION:
        raise RunFolderError(
            f"{path} has format {run.get('format')!r}; this version of jko reads formats {FORMAT_VERSION} and {CHUNKED}"
        )
    needed = {f"{name}.safetensors" for name in _TABLES}
    written = {name: digest for name, digest in run.get("written", {}).items() if name in needed}
    if troubles := compare_files(path, written):
        raise RunDamaged("; ".join(troubles))
    records, states, tensors = (read_tensors(path / f"{name}.safetensors") for name in _TABLES)
    trajectory = _trajectory(path, tensors)
    _check_files(path, run, records, states)
    try:
        failure = run["failure"]
        return Solution(
            times=tensors["times"],
            trajectory=trajectory,
            records=_table(records, [Status(name) for name in run["step_status"]]),
            states=_table(states, None),
            status=Status(run["status"]),
            failure=None if failure is None else _failure(failure),
            title=run["title"],
            config=MappingProxyType(run["config"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{path / 'run.json'} is incomplete: {error}") from error


def _of_run(path: Path, data: RunData) -> Solution:
    run, t = data.run, float(data.states["t"][-1])
    try:
        failure = run.get("failure")
        known = run["status"] in {status.value for status in Status}
        whole = known and run.get("steps") == data.step
        if whole:
            status, told = Status(run["status"]), None if failure is None else _failure(failure)
        else:
            status = Status.DAMAGED if data.lost else Status.INTERRUPTED
            lines = "; ".join((*filter(None, [data.lost]), *data.troubles))
            told = Failure(status, data.step + 1, t, lines or ("" if known else f"run.json says {run['status']!r}"))
        return Solution(
            times=data.times,
            trajectory=data.trajectory,
            records=_table(data.records, [Status.SUCCESS] * data.step),
            states=_table(data.states, None),
            status=status,
            failure=told,
            title=run["title"],
            config=MappingProxyType(run["config"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{path / 'run.json'} is incomplete: {error}") from error


def _failure(data: dict[str, Any]) -> Failure:
    return Failure(Status(data["status"]), data["step"], data["t"], data["detail"])


def _trajectory(path: Path, tensors: dict[str, Tensor]) -> Trajectory:
    try:
        trajectory = Trajectory.from_tensors(tensors)
        if tensors["times"].shape != (len(trajectory.sizes),) or not trajectory.sizes:
            raise ValueError(f"times {tuple(tensors['times'].shape)}")
    except (KeyError, ValueError) as error:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        raise RunFolderError(f"{path / 'trajectory.safetensors'} does not hold a run of jko: {shapes}") from error
    return trajectory


def _check_files(path: Path, run: dict[str, Any], records: dict[str, Tensor], states: dict[str, Tensor]) -> None:
    """Refuse files that are not of one run: a save into the folder of another run may have been interrupted."""
    steps = run.get("step_status")
    if not isinstance(steps, list):
        raise RunFolderError(f"{path / 'run.json'} is incomplete: no list 'step_status'")
    for name, table, rows in (("records", records, len(steps)), ("states", states, len(steps) + 1)):
        lengths = {column: tuple(tensor.shape) for column, tensor in table.items()}
        if any(shape != (rows,) for shape in lengths.values()) or ("t" not in table and rows > 0):
            raise RunFolderError(
                f"{path / name}.safetensors does not belong to run.json, which tells of {len(steps)} steps: {lengths}"
            )


def _table(columns: dict[str, Any], status: list[Status] | None) -> Records:
    if status is not None:
        columns["status"] = status
    return Records(MappingProxyType(columns))


def _rebuilt(values: dict[str, Any]) -> Solution:
    return Solution(**{**values, "config": MappingProxyType(values["config"])})
