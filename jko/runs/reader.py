"""Reading a run folder, whether the run has ended or not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from jko.errors import RunDamaged, RunFolderError
from jko.flows import AbstractFlow
from jko.measure import ParticleMeasure
from jko.runs.folder import UNFINISHED, Chunk, RunFolder, remove
from jko.runs.packing import unpack
from jko.schemes import StepState
from jko.storage import read_described
from jko.trajectory import Trajectory

__all__ = ["Restored", "RunData", "drop_damaged", "read_checkpoint", "read_run", "restore"]

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
        recorded: number of the last step whose row is on the disk: -1 where that of the initial state was lost.
    """

    step: int
    t: float
    state: StepState
    guess: ParticleMeasure | None
    recorded: int


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
        lost: what run.json says was written and cannot be read; empty where that is nothing.
    """

    run: dict[str, Any]
    step: int
    records: dict[str, Tensor]
    states: dict[str, Tensor]
    times: Tensor
    trajectory: Trajectory
    troubles: tuple[str, ...]
    lost: str


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
    chain, troubles = folder.chain(run)
    checkpoint = _newest(folder, run, fits, {0, *(chunk.last for chunk in chain)}, troubles)
    for trouble in troubles:
        _log.warning("%s", trouble)
    tensors, about = checkpoint
    state = unpack(tensors, about["state"], flow)
    guess = unpack(tensors, about["guess"]) if "guess" in about else None
    if not isinstance(state, StepState):
        raise RunFolderError(f"{folder.checkpoint(about['step'])} holds no state of a run")
    step = int(about["step"])
    return Restored(step, float(about["t"]), state, guess, step if chain else -1)


def read_run(path: str | Path) -> RunData:
    """Read records and clouds up to the newest checkpoint.

    Raises:
        RunFolderError: naming the files, when nothing can be read.
    """
    folder = RunFolder(Path(path))
    run = folder.read()
    chain, troubles = folder.chain(run["run"])
    ends, reached = {chunk.last for chunk in chain}, chain[-1].last if chain else -1
    try:
        tensors, about = _newest(folder, run["run"], lambda step, t: True, ends, troubles)
    except RunFolderError as error:
        raise RunDamaged("; ".join(filter(None, [str(error), _lost(folder, run, -1, reached)]))) from None
    step = int(about["step"])
    chain = [chunk for chunk in chain if chunk.last <= step]
    chunks, columns = [chunk.tensors for chunk in chain], chain[-1].about
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
    lost = _lost(folder, run, step, reached)
    if lost:
        _log.warning("%s", lost)
    return RunData(run, step, records, states, torch.cat(times), _together(parts), tuple(troubles), lost)


def read_checkpoint(folder: RunFolder, run: str, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint of a run.

    Raises:
        RunFolderError: naming it when it is missing, damaged, or of another run.
    """
    path = folder.checkpoint(step)
    if not path.exists():
        raise RunDamaged(f"{path} is missing")
    tensors, about = read_described(path)
    if about.get("run") != run:
        raise RunDamaged(f"{path} belongs to another run than run.json")
    if about.get("kind") != "checkpoint" or about.get("step") != step:
        raise RunDamaged(f"{path} holds another step than its name says")
    return tensors, about


def drop_damaged(folder: RunFolder, run: str) -> list[int]:
    """Remove the checkpoints that cannot be read, each named in the log, and return the steps of the others."""
    whole = []
    for step in folder.checkpoints():
        try:
            read_checkpoint(folder, run, step)
            whole.append(step)
        except RunFolderError as error:
            _log.warning("%s; removed, since others serve", error)
            remove(folder.checkpoint(step))
    return whole


def _lost(folder: RunFolder, run: dict[str, Any], step: int, reached: int) -> str:
    """Which steps run.json tells of beyond the last one that can be read, and the file that would hold them.

    `reached` is the last step of the chunks, whether or not there is a checkpoint to show it with.
    """
    steps = run.get("steps")
    if steps is None or (steps < step and run["status"] in UNFINISHED):
        return ""
    if steps < step:
        return f"{folder.path / 'run.json'} is older than the steps: it tells of {steps}, and {step} are there"
    if reached < steps:
        later = [chunk.first for chunk in folder.chunks() if chunk.first > reached + 1]
        last = min(later, default=steps + 1) - 1
        damaged = any(chunk.first == reached + 1 for chunk in folder.chunks())
        file = f"{folder.path / 'chunks'} has no {'whole ' * damaged}file of {_span(reached + 1, last)}"
    else:
        file = f"{folder.checkpoint(steps)} is missing or damaged"
    return "" if step == steps else f"{_span(step + 1, steps)} of {steps} lost: {file}"


def _span(first: int, last: int) -> str:
    return f"step {last}" if first == last else f"steps {first} to {last}"


def _newest(
    folder: RunFolder, run: str, fits: Callable[[int, float], bool], ends: set[int], troubles: list[str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The newest whole checkpoint at one of the ends of chunks; what is wrong with others joins the troubles."""
    for step in reversed(folder.checkpoints()):
        try:
            tensors, about = read_checkpoint(folder, run, step)
        except RunFolderError as error:
            troubles.append(str(error))
            continue
        if step in ends and fits(step, float(about["t"])):
            return tensors, about
    reasons = "; ".join(troubles) or "there is none"
    raise RunDamaged(f"{folder.path} has no checkpoint to continue from: {reasons}")


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
