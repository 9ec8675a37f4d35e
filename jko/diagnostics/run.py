"""One finished run with its time, and the numbers that a comparison reads from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch

from jko.solution import Solution

__all__ = ["Run"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A solution and the wall-clock time that it took.

    Attributes:
        solution: the run, whole or up to where it ended.
        seconds: wall-clock time of the call of `solve`.
    """

    solution: Solution
    seconds: float

    @property
    def seconds_per_step(self) -> float | None:
        """Wall-clock time per completed step."""
        return self.seconds / self.solution.steps if self.solution.steps else None

    @property
    def passes_per_step(self) -> float | None:
        """Passes over the pairs per completed step, all counted but the first one at the initial measure."""
        return self._mean("evaluations")

    @property
    def largest_displacement(self) -> float | None:
        """The largest |xi| of a particle (of any head) in any step, in units of length."""
        return self._largest("largest_displacement")

    @property
    def worst_residual(self) -> float | None:
        """The largest relative first-order residual of a step; None for an explicit scheme."""
        return self._largest("residual")

    @property
    def certified(self) -> float | None:
        """The fraction of certified steps; None for an explicit scheme."""
        return self._mean("certified")

    @property
    def energy_change(self) -> float:
        """sE(u^K, t_K) - sE(u^0, t_0)."""
        energy = self.solution.states.energy
        return float(energy[-1] - energy[0])

    @property
    def motion_part(self) -> float:
        """The part of the energy change that comes from the particles: the sum of sE(u^k, t_k) - sE(u^{k-1}, t_k)."""
        if not self.solution.steps:
            return 0.0
        records = self.solution.records
        return float((records.energy - records.energy_previous).sum())

    @property
    def time_part(self) -> float:
        """The part that comes from the heads: the sum of sE(u^{k-1}, t_k) - sE(u^{k-1}, t_{k-1})."""
        return float(self.solution.records.time_part.sum()) if self.solution.steps else 0.0

    @property
    def ledger_gap(self) -> float:
        """What motion and time part miss of the energy change, relative to the largest energy: rounding."""
        scale = float(self.solution.states.energy.abs().max())
        missed = abs(self.energy_change - self.motion_part - self.time_part)
        return missed / scale if scale > 0 else missed

    @property
    def objective_rise(self) -> float | None:
        """The largest sE(u^k, t_k) + W^2 / (2 tau) - sE(u^{k-1}, t_k) over the steps, relative to the largest energy.

        At most rounding for minimizing movements (per head and averaged, for the head-wise step); None for an explicit
        scheme, which minimizes nothing.
        """
        records = self.solution.records
        if "residual" not in records:
            return None
        energy = records.get("head_energy", records.energy)
        tau = self.solution.states.t.diff()
        rise = energy + records.squared_distance / (2 * tau) - records.energy_previous
        return float((rise / self.solution.states.energy.abs().max()).max())

    def numbers(self) -> dict[str, Any]:
        """Return everything about this run as plain data."""
        solution = self.solution
        return {
            "title": solution.title,
            "status": solution.status.value,
            "failure": None if solution.failure is None else str(solution.failure),
            "steps": solution.steps,
            "t1": float(solution.states.t[-1]),
            "seconds": self.seconds,
            "seconds_per_step": self.seconds_per_step,
            "passes_per_step": self.passes_per_step,
            "largest_displacement": self.largest_displacement,
            "worst_residual": self.worst_residual,
            "certified": self.certified,
            "energy_initial": float(solution.states.energy[0]),
            "energy_final": float(solution.states.energy[-1]),
            "motion_part": self.motion_part,
            "time_part": self.time_part,
            "ledger_gap": self.ledger_gap,
            "objective_rise": self.objective_rise,
        }

    def _largest(self, name: str) -> float | None:
        records = self.solution.records
        return float(torch.amax(records[name])) if name in records else None

    def _mean(self, name: str) -> float | None:
        records = self.solution.records
        return float(torch.mean(records[name])) if name in records else None
