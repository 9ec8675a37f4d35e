"""Reading a run folder, whether the run has ended or not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from jko.errors import RunFolderError
from jko.flows import AbstractFlow
from jko.measure import ParticleMeasure
from jko.runs.folder import Chunk, RunFolder
from jko.runs.packing import unpack
from jko.schemes import StepState
from jko.storage import read_described
from jko.trajectory import Trajectory

__all__ = ["Restored", "RunData", "read_run", "restore"]

_log = logging.getLogger("jko.runs")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Restored:
    """Where a run continues.

    Attributes:
        step: number of the last complete step.
        t: its time.
        state: what the next step needs.
        guess: where the first step starts, for a run that has not taken it.
    """

    step: int
    t: float
    state: StepState
    guess: ParticleMeasure | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class RunData:
    """What a run folder holds up to its newest whole checkpoint.

    Attributes:
        run: run.json.
        step: the last complete step.
        records: columns of the steps, by name.
        states: columns of the states, by name.
        times: times of the clouds.
        trajectory: the clouds, the last one of the run among them.
        troubles: one line for each file that could not be used.
    """

    run: dict[str, Any]
    step: int
    records: dict[str, Tensor]
    states: dict[str, Tensor]
    times: Tensor
    trajectory: Trajectory
    troubles: tuple[str, ...]


def restore(folder: RunFolder, run: str, flow: AbstractFlow, fits: Callable[[int, float], bool]) -> Restored:
    """Return the newest state that can be continued.

    A file that is truncated, damaged, or of another run is named in the log, and the state before it serves.

    Args:
        folder: the run folder.
        run: name of the run.
        flow: the flow, which the folder does not hold.
        fits: whether a step and its time lie on the grid of the run that continues.

    Raises:
        RunFolderError: naming every file that was tried, when none will do.
    """
    checkpoint, troubles = _newest(folder, run, fits)
    for trouble in troubles:
        _log.warning("%s", trouble)
    tensors, about = checkpoint
    state = unpack(tensors, about["state"], flow)
    guess = unpack(tensors, about["guess"]) if "guess" in about else None
    if not isinstance(state, StepState):
        raise RunFolderError(f"{folder.checkpoint(about['step'])} holds no state of a run")
    return Restored(int(about["step"]), float(about["t"]), state, guess)


def read_run(path: str | Path) -> RunData:
    """Read records and clouds up to the newest checkpoint.

    Raises:
        RunFolderError: naming the files, when nothing can be read.
    """
    folder = RunFolder(Path(path))
    run = folder.read()
    (tensors, about), troubles = _newest(folder, run["run"], lambda step, t: True)
    step = int(about["step"])
    chain = [chunk for chunk in folder.chain(run["run"])[0] if chunk.last <= step]
    files = [read_described(chunk.path) for chunk in chain]
    chunks, columns = [file[0] for file in files], files[-1][1]
    states = _joined(chunks, "states.", columns["states"], chain, step + 1)
    records = _joined(chunks, "records.", columns["records"], chain, step)
    times, parts = [], []
    for chunk, file in zip(chunks, chain, strict=True):
        if "times" in chunk:
            times.append(chunk["times"])
            parts.append(_clouds(chunk, file))
    t = float(about["t"])
    if not times or float(times[-1][-1]) != t:
        cpu = unpack(tensors, _on_cpu(about["state"]["fields"]["flow_state"]["fields"]["measure"]))
        times.append(torch.tensor([t], dtype=torch.float64))
        parts.append(Trajectory.of([cpu]))
    for trouble in troubles:
        _log.warning("%s", trouble)
    return RunData(run, step, records, states, torch.cat(times), _together(parts), troubles)


def _newest(
    folder: RunFolder, run: str, fits: Callable[[int, float], bool]
) -> tuple[tuple[dict[str, Tensor], dict[str, Any]], tuple[str, ...]]:
    chain, troubles = folder.chain(run)
    ends = {chunk.last for chunk in chain}
    for step in reversed(folder.checkpoints()):
        path = folder.checkpoint(step)
        try:
            tensors, about = read_described(path)
            if about.get("run") != run:
                raise RunFolderError(f"{path} belongs to another run")
            if about.get("kind") != "checkpoint" or about.get("step") != step:
                raise RunFolderError(f"{path} holds another step than its name says")
        except RunFolderError as error:
            troubles.append(str(error))
            continue
        if step in ends and fits(step, float(about["t"])):
            return (tensors, about), tuple(troubles)
    reasons = "; ".join(troubles) or "there is none"
    raise RunFolderError(f"{folder.path} has no checkpoint to continue from: {reasons}")


def _joined(
    chunks: list[dict[str, Tensor]], prefix: str, names: list[str], chain: list[Chunk], rows: int
) -> dict[str, Tensor]:
    """The columns of a table from all chunks."""
    tables = [{name: column for name, column in chunk.items() if name.startswith(prefix)} for chunk in chunks]
    tables = [table for table in tables if table]
    if any(set(table) != {prefix + name for name in names} for table in tables):
        raise RunFolderError(f"the chunks in {chain[0].path.parent} do not have the same columns")
    joined = {name: torch.cat([table[prefix + name] for table in tables]) for name in names}
    if any(column.shape != (rows,) for column in joined.values()):
        raise RunFolderError(f"the chunks in {chain[0].path.parent} do not hold one row for each of {rows} steps")
    return joined


def _clouds(chunk: Mapping[str, Tensor], file: Chunk) -> Trajectory:
    try:
        clouds = Trajectory.from_tensors(chunk)
        if chunk["times"].shape != (len(clouds.sizes),):
            raise ValueError(f"{len(clouds.sizes)} clouds at {tuple(chunk['times'].shape)} times")
    except (KeyError, ValueError) as error:
        raise RunFolderError(f"{file.path} does not hold clouds of a run of jko: {error}") from error
    return clouds


def _together(parts: list[Trajectory]) -> Trajectory:
    return Trajectory(
        points=torch.cat([part.points for part in parts]),
        weights=torch.cat([part.weights for part in parts]),
        sizes=tuple(size for part in parts for size in part.sizes),
    )


def _on_cpu(tree: Any) -> Any:
    """The same description of tensors, all of them on the CPU: a run of another device can be looked at everywhere."""
    if isinstance(tree, dict):
        return {key: "cpu" if key == "device" else _on_cpu(value) for key, value in tree.items()}
    return tree
