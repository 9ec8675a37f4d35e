"""`jko compare`: JKO and the explicit scheme from the same measure on the same head path."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jko.cli import options as o
from jko.cli.exits import EXIT_NUMERICAL, EXIT_STATEMENT, INTERRUPTED, uninterrupted

if TYPE_CHECKING:
    from jko.cli.folder import Folder
    from jko.config import CompareConfig
    from jko.diagnostics import Comparison

__all__ = ["compare"]

_SMALL = {"t1": 0.2, "taus": [0.01, 0.005]}


def compare(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Configuration; options override it.")
    ] = None,
    n: o.Number = None,
    d: o.Dimension = None,
    points: o.Points = None,
    process: o.Process = None,
    num_heads: o.NumHeads = None,
    sigma2: o.Sigma2 = None,
    phases: o.Phases = None,
    dt: o.Dt = None,
    heads: o.HeadsFile = None,
    times: o.TimesFile = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="wasserstein2|weighted|headwise", help="Metric; may be repeated (all three unless given)."
        ),
    ] = None,
    sign: o.Sign = None,
    manifold: o.Manifold = None,
    tau: Annotated[
        list[float] | None,
        typer.Option(metavar="TAU", help="Step size; may be repeated (0.01 0.005 0.0025 unless given)."),
    ] = None,
    t1: Annotated[float | None, typer.Option(metavar="T", help="Final time (1 unless given).")] = None,
    samples: Annotated[
        int | None, typer.Option(metavar="K", help="Largest number of common times for distances (100 unless given).")
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="40 tokens up to t = 0.2, two step sizes: seconds.")] = False,
    seed: o.Seed = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    out: o.Out = None,
    overwrite: o.Overwrite = False,
    as_json: o.JsonOutput = False,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> int:
    """Compare JKO with the explicit flow: same measure, same head path, in each of three metrics.

    Prints a table, and leaves solutions, numbers and figures in a folder: jko-compare, or --out.
    """
    from jko.config import CompareConfig, check_config, read_toml

    given = o.common_data(seed, device, dtype)
    given["measure"] = o.measure_data(n, d, points)
    given["heads"] = o.heads_data(process, num_heads, sigma2, phases, dt, heads, times)
    given["flow"] = o.given(metrics=metric, sign=sign, manifold=manifold)
    given["solve"] = o.given(taus=tau, t1=t1, samples=samples)
    data = {} if config is None else read_toml(config)
    if small:
        tokens = {} if "points" in given["measure"] else {"n": 40}
        data = o.override(data, {"measure": tokens, "solve": _SMALL})
    checked = check_config(CompareConfig, o.override(data, given), "" if config is None else str(config))
    return _compare(checked, Path("jko-compare") if out is None else out, overwrite, as_json, verbose, quiet)


def _compare(config: CompareConfig, out: Path, overwrite: bool, as_json: bool, verbose: bool, quiet: bool) -> int:
    from jko import diagnostics
    from jko.cli import problem, screen
    from jko.cli.folder import Folder
    from jko.cli.threads import threads_for
    from jko.cli.worker import distance_worker

    solve, flow = config.solve, config.flow
    intervals = diagnostics.common_intervals(solve.t1, solve.taus, solve.samples)
    config = problem.resolved(config, min(solve.taus))
    manifold = problem.make_manifold(flow.manifold)
    measure = problem.make_measure(config, manifold)
    problem.check_size(config, min(solve.taus), measure, intervals)
    heads = problem.make_heads(config, measure.d, solve.t1)
    config = problem.anchored(config)
    folder = Folder.claim(out, "comparison", config, overwrite=overwrite)
    if folder.finished:
        return folder.tell(as_json)
    with (
        folder.watched(),
        screen.logging_to_stderr(verbose),
        threads_for(measure.n, heads.num_heads),
        distance_worker(measure.n) as executor,
    ):
        comparison = diagnostics.compare(
            measure,
            heads,
            t1=solve.t1,
            taus=solve.taus,
            metrics=[problem.make_metric(name) for name in flow.metrics],
            sign=flow.sign,
            manifold=manifold,
            samples=solve.samples,
            progress=screen.make_progress(quiet),
            executor=executor,
        )
        with uninterrupted():
            summary, files = _save(folder, comparison, config)
    _report(comparison, summary, files, folder, as_json, quiet)
    return _exit_status(comparison)


def _exit_status(comparison: Comparison) -> int:
    from jko.status import Status

    if comparison.status is Status.INTERRUPTED:
        return INTERRUPTED
    if not comparison.status.ok:
        return EXIT_NUMERICAL
    return 0 if all(check.held for check in comparison.checks) else EXIT_STATEMENT


def _save(folder: Folder, comparison: Comparison, config: CompareConfig) -> tuple[dict[str, Any], list[str]]:
    """Write solutions, summary and figures; the summary comes before the figures, which may not fail it."""
    from jko import plotting
    from jko.cli.problem import METRIC_NAMES, make_manifold
    from jko.storage import read_json, write_json

    solutions: list[str] = []
    for entry in comparison.metrics:
        name = METRIC_NAMES[type(entry.metric)]
        for scheme, run in (("jko", entry.finest.jko), ("explicit", entry.finest.explicit)):
            solutions.append(f"{name}-{scheme}")
            run.solution.save(folder.path / solutions[-1], summary={"seconds": run.seconds}, overwrite=True)
    if comparison.unfinished is not None:
        solutions.append("unfinished")
        comparison.unfinished.save(folder.path / "unfinished", overwrite=True)
    write_json(folder.path / "summary.json", comparison.numbers())
    files: list[str] = []
    if comparison.metrics:
        figures = {"distance": plotting.distance_figure(comparison), "energy": plotting.energy_figure(comparison)}
        if comparison.gaps:
            figures["gap"] = plotting.gap_figure(comparison)
        manifold = make_manifold(config.flow.manifold)
        for entry in comparison.metrics:
            name = METRIC_NAMES[type(entry.metric)]
            figures[f"snapshots-{name}"] = plotting.snapshot_figure(
                {"JKO": entry.finest.jko.solution, "explicit Euler": entry.finest.explicit.solution},
                manifold=manifold,
                title=plotting.comparison_title(comparison, entry),
                color=plotting.color_of(entry.title),
                last_note=(
                    f"$W_2$(JKO, explicit) = {float(entry.finest.distances[-1]):.2e}" if entry.finest.complete else ""
                ),
            )
        for name, figure in figures.items():
            files += plotting.save_figure(figure, folder.path / name)
    folder.write_run(
        {
            "title": f"comparison, sign = {comparison.sign:+d}",
            "status": comparison.status.value,
            "exit_status": _exit_status(comparison),
            "solutions": solutions,
            "files": files,
        },
        ["summary.json", *files],
    )
    folder.clean(files, solutions)
    return read_json(folder.path / "summary.json"), files


def _report(
    comparison: Comparison, summary: dict[str, Any], files: list[str], folder: Folder, as_json: bool, quiet: bool
) -> None:
    from jko.cli import screen, tables
    from jko.status import Status

    if as_json:
        print(json.dumps(summary, indent=2, allow_nan=False))
    else:
        console = screen.stdout()
        if comparison.metrics:
            console.print(tables.comparison_table(comparison))
        console.print()
        for note in tables.comparison_notes(comparison):
            console.print(f"- {note}", markup=False)
    if comparison.status is Status.INTERRUPTED:
        print(f"interrupted; what is complete is saved in {folder.path}", file=sys.stderr)
        return
    if not comparison.status.ok:
        print(f"{comparison.status.name}; what is complete is saved in {folder.path}", file=sys.stderr)
    if not quiet:
        print(
            f"Results in {folder.path}: config.toml, run.json, summary.json, solutions at the finest tau",
            file=sys.stderr,
        )
        if files:
            print(f"Figures: {', '.join(name for name in files if name.endswith('.png'))} (and PDF)", file=sys.stderr)
