"""A single run from its configuration: begun, continued, drawn, told."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from jko.cli import problem, screen, tables
from jko.cli.exits import EXIT_DAMAGED, EXIT_NUMERICAL, INTERRUPTED
from jko.cli.threads import threads_for
from jko.config import RunConfig, to_toml
from jko.driver import Checkpoint, Save, resume, solve
from jko.energies import AttentionEnergy
from jko.flows import GradientFlow
from jko.manifolds import AbstractManifold, Euclidean, Sphere
from jko.measure import ParticleMeasure
from jko.progress import AbstractProgress
from jko.runs import compare_config, config_changes, record
from jko.schemes import JKO, AbstractScheme, Anderson, ExplicitEuler
from jko.signals import uninterrupted
from jko.solution import Solution
from jko.status import Status
from jko.storage import read_json, write_bytes, write_json

__all__ = ["PreparedRun", "changes_of_run", "compare_with", "draw", "exit_status", "manifold_of", "report"]

_FREE = ("solve.t1", "solve.max_steps", "solve.checkpoint_every", "solve.checkpoint_seconds")
"""Entries of a configuration that may differ when a run is continued."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class PreparedRun:
    """A configuration that was checked, and what it describes.

    Attributes:
        config: with every default written out and absolute file names.
        flow: what the run follows.
        measure: where it starts.
        scheme: how it follows.
    """

    config: RunConfig
    flow: GradientFlow
    measure: ParticleMeasure
    scheme: AbstractScheme

    @staticmethod
    def of(config: RunConfig) -> PreparedRun:
        """Make flow, measure and scheme.

        Raises:
            InvalidInput: for files that do not fit, or sizes that are out of reach.
        """
        solve_config, tau = config.solve, config.scheme.tau
        config = problem.resolved(config, tau)
        manifold = problem.make_manifold(config.flow.manifold)
        measure = problem.make_measure(config, manifold)
        kept = solve_config.t1 / tau / solve_config.save_every
        if solve_config.save_times is not None or not solve_config.save_clouds:
            kept = len(solve_config.save_times or ())
        problem.check_size(config, tau, measure, kept)
        heads = problem.make_heads(config, measure.d, solve_config.t1)
        flow = GradientFlow(AttentionEnergy(heads, config.flow.sign), problem.make_metric(config.flow.metric), manifold)
        scheme: AbstractScheme = (
            JKO(tau, minimizer=Anderson(config.scheme.rtol)) if config.scheme.name == "jko" else ExplicitEuler(tau)
        )
        return PreparedRun(problem.anchored(config), flow, measure, scheme)

    @property
    def data(self) -> dict[str, Any]:
        """The configuration as plain data."""
        return self.config.model_dump(exclude_none=True)

    def begin(self, folder: Path, progress: AbstractProgress | None) -> Solution:
        """Take the run from its start into a folder, whatever that holds."""
        choice = self.config.solve
        save = Save(choice.save_every, times=choice.save_times, clouds=choice.save_clouds)
        with uninterrupted():
            write_bytes(folder / "config.toml", to_toml(self.config))
        with threads_for(self.measure.n, self._num_heads):
            solution = solve(
                self.flow,
                self.measure,
                self.scheme,
                t1=choice.t1,
                save=save,
                max_steps=choice.max_steps,
                progress=progress,
                checkpoint=self._checkpoint(folder, overwrite=True),
                throw=False,
                config=self.data,
            )
        return self._finished(solution, folder)

    def resume(self, folder: Path, progress: AbstractProgress | None, max_steps: int | None) -> Solution:
        """Continue the run in a folder to the configuration's final time."""
        with threads_for(self.measure.n, self._num_heads):
            solution = resume(
                self._checkpoint(folder),
                self.flow,
                self.scheme,
                t1=self.config.solve.t1,
                max_steps=max_steps,
                progress=progress,
                throw=False,
            )
        with uninterrupted():
            write_bytes(folder / "config.toml", to_toml(self.config))
        return self._finished(solution, folder)

    @property
    def _num_heads(self) -> int:
        return self.flow.energy.attention_parts[0].heads.num_heads

    def _checkpoint(self, folder: Path, *, overwrite: bool = False) -> Checkpoint:
        choice = self.config.solve
        return Checkpoint(folder, choice.checkpoint_every, choice.checkpoint_seconds, overwrite=overwrite)

    def _finished(self, solution: Solution, folder: Path) -> Solution:
        """Write the summary with the averages over time."""
        columns = {name: column for name, column in solution.states.numeric().items() if name != "t"}
        means = {f"{name}_mean": float(column.mean()) for name, column in columns.items()}
        with uninterrupted():
            write_json(folder / "summary.json", {**solution.summary(), **means})
            record(folder, ["config.toml", "summary.json"])
        return solution


def compare_with(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Compare the configuration that a run was begun with to that which wants to continue it.

    Raises:
        ResumeMismatch: naming what differs; the scheme first, since the default of the heads' dt is its tau.
    """
    compare_config({"scheme": old.get("scheme", {})}, {"scheme": new["scheme"]})
    compare_config(old, new, _FREE)


def changes_of_run(old: dict[str, Any], new: dict[str, Any]) -> dict[str, str]:
    """Return what differs, by key, from the configuration that a run was begun with and keeps it from going on."""
    return {key: text for key, text in config_changes(old, new).items() if key not in _FREE}


def draw(solution: Solution, folder: Path, prefix: str = "") -> list[str]:
    """Draw energy and clouds of a run into its folder, or another one, and return the names of the files."""
    from jko.plotting import math_title, run_figure, save_figure, snapshot_figure

    files = []
    if "energy" in solution.states:
        files += save_figure(run_figure(solution), folder / f"{prefix}energy")
    title, fractions = math_title(solution.title), (0.0, 0.25, 1.0) if len(solution.times) > 1 else (1.0,)
    if len(set(solution.trajectory.sizes)) == 1:
        pictures = snapshot_figure(
            {solution.title.partition(",")[0]: solution},
            manifold=manifold_of(solution),
            title=title,
            fractions=fractions,
        )
        files += save_figure(pictures, folder / f"{prefix}snapshots")
    return files


def manifold_of(solution: Solution) -> AbstractManifold:
    """Return the manifold that the configuration names, or the one that the points lie on."""
    flow = solution.config.get("flow")
    name = flow.get("manifold") if isinstance(flow, dict) else None
    if name in ("sphere", "euclidean"):
        return problem.make_manifold(name)
    radius = torch.linalg.vector_norm(solution.measure(-1).points.to(torch.float64), dim=-1)
    return Sphere() if bool(((radius - 1).abs() < 1e-5).all()) else Euclidean()


def report(solution: Solution, folder: Path, files: list[str], as_json: bool, quiet: bool) -> None:
    """Print the results on standard output, and where they are on standard error."""
    if as_json:
        print(json.dumps(read_json(folder / "summary.json"), indent=2, allow_nan=False))
    else:
        console = screen.stdout()
        console.print(tables.solution_table(solution))
        if solution.failure is not None:
            console.print(str(solution.failure), markup=False)
    if solution.status is Status.INTERRUPTED:
        print(
            f"interrupted; what is complete is saved in {folder}; continue with `jko resume {folder}`", file=sys.stderr
        )
        return
    if not solution.status.ok:
        print(f"{solution.status.name}; what is complete is saved in {folder}", file=sys.stderr)
    if not quiet:
        print(f"Run in {folder}; figures: {', '.join(files)}", file=sys.stderr)


def exit_status(solution: Solution) -> int:
    """Return the exit status that a run's status asks for."""
    if solution.status is Status.INTERRUPTED:
        return INTERRUPTED
    if solution.status is Status.DAMAGED:
        return EXIT_DAMAGED
    return 0 if solution.status.ok else EXIT_NUMERICAL
