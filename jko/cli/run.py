"""`jko run`: one flow, one scheme."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jko.cli import options as o
from jko.cli.exits import EXIT_NUMERICAL, INTERRUPTED, uninterrupted

if TYPE_CHECKING:
    from jko.config import RunConfig

__all__ = ["run"]


def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Configuration; options override it.")],
    seed: o.Seed = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    out: o.Out = None,
    as_json: o.JsonOutput = False,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> int:
    r"""Follow one flow with one scheme; tables \[measure], \[heads], \[flow], \[scheme], \[solve].

    Leaves a run folder with figures, which jko.load reads: jko-run, or --out.
    """
    from jko.config import RunConfig, check_config, read_toml

    data = o.override(read_toml(config), o.common_data(seed, device, dtype))
    checked = check_config(RunConfig, data, str(config))
    return _run(checked, Path("jko-run") if out is None else out, as_json, verbose, quiet)


def _run(config: RunConfig, out: Path, as_json: bool, verbose: bool, quiet: bool) -> int:
    from jko.cli import problem, screen, tables
    from jko.cli.folder import Folder
    from jko.cli.threads import threads_for
    from jko.driver import Save, solve
    from jko.energies import AttentionEnergy
    from jko.flows import GradientFlow
    from jko.plotting import math_title, run_figure, save_figure, snapshot_figure
    from jko.schemes import JKO, AbstractScheme, Anderson, ExplicitEuler
    from jko.status import Status
    from jko.storage import read_json

    config = problem.resolved(config, config.scheme.tau)
    manifold = problem.make_manifold(config.flow.manifold)
    measure = problem.make_measure(config, manifold)
    problem.check_size(
        config, config.scheme.tau, measure, config.solve.t1 / config.scheme.tau / config.solve.save_every
    )
    heads = problem.make_heads(config, measure.d, config.solve.t1)
    flow = GradientFlow(AttentionEnergy(heads, config.flow.sign), problem.make_metric(config.flow.metric), manifold)
    tau = config.scheme.tau
    scheme: AbstractScheme = (
        JKO(tau, minimizer=Anderson(config.scheme.rtol)) if config.scheme.name == "jko" else ExplicitEuler(tau)
    )
    folder = Folder.claim(out, "solution", config)
    with folder.watched(), screen.logging_to_stderr(verbose), threads_for(measure.n, heads.num_heads):
        solution = solve(
            flow,
            measure,
            scheme,
            t1=config.solve.t1,
            save=Save(config.solve.save_every),
            max_steps=config.solve.max_steps,
            progress=screen.make_progress(quiet),
            throw=False,
            config=config.model_dump(exclude_none=True),
        )
        with uninterrupted():
            solution.save(folder.path)
            files = save_figure(run_figure(solution), folder.path / "energy")
            pictures = snapshot_figure({scheme.title: solution}, manifold=manifold, title=math_title(solution.title))
            files += save_figure(pictures, folder.path / "snapshots")
    if as_json:
        print(json.dumps(read_json(folder.path / "summary.json"), indent=2, allow_nan=False))
    else:
        console = screen.stdout()
        console.print(tables.solution_table(solution))
        if solution.failure is not None:
            console.print(str(solution.failure), markup=False)
    if solution.status is Status.INTERRUPTED:
        print(f"interrupted; what is complete is saved in {folder.path}", file=sys.stderr)
        return INTERRUPTED
    if not solution.status.ok:
        print(f"{solution.status.name}; what is complete is saved in {folder.path}", file=sys.stderr)
    if not quiet:
        print(f"Run in {folder.path}; figures: {', '.join(files)}", file=sys.stderr)
    return 0 if solution.status.ok else EXIT_NUMERICAL
