"""`jko sweep`: many runs at once, one table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jko.cli import options as o
from jko.cli.exits import EXIT_BAD_INPUT, EXIT_NUMERICAL, INTERRUPTED

if TYPE_CHECKING:
    from rich.table import Table

    from jko.cli.sweeping import SweepTable

__all__ = ["sweep"]

_MOST_ROWS = 60


def sweep(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.toml", help="Configuration of `jko run` with a table of lists.")
    ],
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", metavar="J", help="Runs at a time (one per core unless given).")
    ] = None,
    seed: o.Seed = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    out: o.Out = None,
    overwrite: o.Overwrite = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print results.json instead of the table.", rich_help_panel="Common")
    ] = False,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> int:
    r"""Take a run for every combination of the lists in \[sweep]: H, tau, seed, path, metric, sign, or any other key.

    Leaves runs, results.csv and results.json in a folder: jko-sweep, or --out. The same command again goes on where it
    stopped: runs that have ended are kept, others continue from their checkpoints.
    """
    import joblib

    from jko.checks import check_integer
    from jko.cli import screen, sweeping
    from jko.config import read_toml
    from jko.errors import InvalidInput

    data, given = read_toml(config), o.common_data(seed, device, dtype)
    lists = data.get("sweep", {})
    for name in given:
        if isinstance(lists, dict) and name in lists:
            raise InvalidInput(
                f"--{name} {given[name]} has no effect, since [sweep] gives {name}; leave one of them out"
            )
    data = o.override(data, given)
    # Of the cores that a batch system gives, not of those of the machine.
    workers = int(joblib.cpu_count()) if jobs is None else check_integer(jobs, "jobs", least=1)
    folder = Path("jko-sweep") if out is None else out
    with screen.logging_to_stderr(verbose), _bar(quiet) as on_run:
        table = sweeping.sweep(data, folder, jobs=workers, on_run=on_run, source=str(config), overwrite=overwrite)
    _report(table, as_json, quiet)
    if table.interrupted:
        return INTERRUPTED
    if table.count("refused"):
        return EXIT_BAD_INPUT
    return 0 if table.count("success", "stopped") == len(table.rows) else EXIT_NUMERICAL


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    hidden = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden) as bar:
        task = bar.add_task("runs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _report(table: SweepTable, as_json: bool, quiet: bool) -> None:
    from jko.cli import screen
    from jko.storage import read_json

    if as_json:
        print(json.dumps(read_json(table.folder / "results.json"), indent=2, allow_nan=False))
    else:
        screen.stdout().print(_table(table))
    for row in table.rows:
        if row["failure"]:
            print(f"{row['run']}: {row['failure']}", file=sys.stderr)
    if table.interrupted:
        print(f"interrupted; the same command goes on with what is in {table.folder}", file=sys.stderr)
    elif not table.taken:
        print(f"{table.folder} holds these runs already: nothing was run; --overwrite repeats them", file=sys.stderr)
    elif not quiet:
        print(f"Results in {table.folder}: results.csv, results.json, {len(table.rows)} runs", file=sys.stderr)


def _table(table: SweepTable) -> Table:
    """The first rows, 100 columns wide; all of them are in results.csv."""
    from rich import box
    from rich.table import Table

    names = [name for name in table.rows[0] if name not in ("run", "failure", "title")]
    first = names[: names.index("status") + 1]
    shown = [*first, *(name for name in ("steps", "energy_final", "slope2_final", "slope2_mean") if name in names)]
    more = "" if len(table.rows) <= _MOST_ROWS else f", the first {_MOST_ROWS} of them"
    grid = Table(title=f"{len(table.rows)} runs{more}", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for name in shown:
        grid.add_column(name, justify="left" if name == "status" else "right")
    for row in table.rows[:_MOST_ROWS]:
        grid.add_row(*("" if row[name] is None else _text(row[name]) for name in shown))
    return grid


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
