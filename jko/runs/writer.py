"""Writing a run while it goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from jko.measure import ParticleMeasure
from jko.records import Records
from jko.runs.folder import RunFolder, remove
from jko.runs.inventory import digests
from jko.runs.options import Checkpoint
from jko.runs.packing import pack
from jko.runs.reader import drop_damaged
from jko.schemes import StepState
from jko.signals import postponed
from jko.storage import write_described
from jko.trajectory import Trajectory

__all__ = ["Row", "RunWriter"]

# The last one, and the one to fall back on.
_KEPT = 2


@final
@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One state of a run and the step that led to it.

    Attributes:
        step: its number, 0 for the initial state.
        t: its time.
        state_columns: numbers that describe the state.
        step_columns: numbers of the step; empty for the initial state.
        live: what the next step needs; None in older rows.
        kept: the cloud where the run keeps it.
    """

    step: int
    t: float
    state_columns: Mapping[str, float]
    step_columns: Mapping[str, float]
    live: StepState | None
    kept: ParticleMeasure | None

    @property
    def state(self) -> StepState:
        """What the next step needs."""
        assert self.live is not None, "only the newest row is live"
        return self.live

    @property
    def measure(self) -> ParticleMeasure:
        """The cloud of the newest row."""
        return self.state.flow_state.measure

    @property
    def record(self) -> dict[str, float]:
        """All numbers of the row."""
        return {**self.state_columns, **self.step_columns}


@final
@dataclass(frozen=True, slots=True, eq=False)
class RunWriter:
    """Writes rows in chunks, and a checkpoint after each.

    Attributes:
        folder: where to.
        options: how often.
        run: what run.json says.
        guess: where the first step starts, as long as that step has not been taken.
        last: when, and after which step, the last checkpoint was written.
    """

    folder: RunFolder
    options: Checkpoint
    run: dict[str, Any]
    guess: ParticleMeasure | None
    last: dict[str, float] = field(default_factory=dict)

    def begin(self, first: Row) -> None:
        """Remove what an earlier run left, write the initial state, and then say that there is a run to continue."""
        with postponed():
            self.run["written"] = {}
            self.folder.clear()
            self.write([first])

    def resume(self, step: int, recorded: int) -> None:
        """Declare the run again, and remove what it wrote after the step that it continues from.

        Rows up to the step `recorded` are on the disk. Results such as the summary are those of the shorter run: they
        leave run.json until they are written again.
        """
        with postponed():
            kept = [number for number in drop_damaged(self.folder, self.run["run"]) if number <= step]
            self.run.update(steps=step, checkpoints=kept, written={})
            self.folder.write(self.run)
            self.folder.drop_after(step)
            self.last.update(time=time.monotonic(), step=recorded)

    def due(self, step: int) -> bool:
        """Whether to write after this step."""
        every, seconds = self.options.every, self.options.seconds
        if every is not None and step % every == 0:
            return True
        return seconds is not None and time.monotonic() - self.last.get("time", -float("inf")) >= seconds

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows that no chunk holds yet, then the checkpoint at the last of them, which is live.

        A row of a step that a chunk holds already, the first after resuming, is passed over.
        """
        new = [row for row in rows if row.step > self.last.get("step", -1)]
        last = rows[-1]
        with postponed():
            if new:
                path = self.folder.chunk(new[0].step, last.step)
                # The file itself sorts the names.
                columns = {"states": list(last.state_columns), "records": list(last.record) if last.step else []}
                about = {"kind": "chunk", "run": self.run["run"], "first": new[0].step, "last": last.step, **columns}
                write_described(path, _chunk(new), about)
                self._write_checkpoint(last)
            self.last.update(time=time.monotonic(), step=last.step)

    def _write_checkpoint(self, row: Row) -> None:
        """Write what the step after this row needs, tell run.json, and remove the checkpoints nobody falls back on."""
        tensors, state = pack(row.state)
        about: dict[str, Any] = {
            "kind": "checkpoint",
            "run": self.run["run"],
            "step": row.step,
            "t": row.t,
            "state": state,
        }
        if row.step == 0 and self.guess is not None:
            guess, about["guess"] = pack(self.guess, "guess")
            tensors |= guess
        write_described(self.folder.checkpoint(row.step), tensors, about)
        # That of the initial state stays, so that even a folder with damaged chunks can be begun anew.
        steps = self.folder.checkpoints()
        outdated = [step for step in steps if step > 0][:-_KEPT]
        self.run.update(steps=row.step, checkpoints=[step for step in steps if step not in outdated])
        self.folder.write(self.run)
        for step in outdated:
            remove(self.folder.checkpoint(step))

    def end(self, **changes: Any) -> None:
        """Say in run.json how the run ended."""
        self.run.update(changes)
        self.folder.write(self.run)

    def record(self, *names: str) -> None:
        """Take files that belong to the run as it is now into run.json."""
        self.run["written"] |= digests(self.folder.path, names)
        self.folder.write(self.run)


def _chunk(rows: Sequence[Row]) -> dict[str, Tensor]:
    """The tables of these rows, and the clouds that they keep."""
    states = Records.of([row.state_columns for row in rows]).numeric()
    records = Records.of([row.record for row in rows if row.step > 0]).numeric()
    tensors = {f"states.{name}": column for name, column in states.items()}
    tensors |= {f"records.{name}": column for name, column in records.items()}
    kept = [(row.t, row.kept) for row in rows if row.kept is not None]
    if kept:
        tensors["times"] = torch.tensor([t for t, _ in kept], dtype=torch.float64)
        tensors |= Trajectory.of([measure for _, measure in kept]).tensors()
    return tensors
