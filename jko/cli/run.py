"""`jko run`: one flow, one scheme."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jko.cli import options as o
from jko.cli.exits import uninterrupted

if TYPE_CHECKING:
    from jko.config import RunConfig

__all__ = ["run"]


def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Configuration; options override it.")],
    seed: o.Seed = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    out: o.Out = None,
    overwrite: o.Overwrite = False,
    as_json: o.JsonOutput = False,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> int:
    r"""Follow one flow with one scheme; tables \[measure], \[heads], \[flow], \[scheme], \[solve].

    Leaves a run folder with figures, which jko.load reads and jko resume continues: jko-run, or --out.
    """
    from jko.config import RunConfig, check_config, read_toml

    data = o.override(read_toml(config), o.common_data(seed, device, dtype))
    checked = check_config(RunConfig, data, str(config))
    return _run(checked, Path("jko-run") if out is None else out, overwrite, as_json, verbose, quiet)


def _run(config: RunConfig, out: Path, overwrite: bool, as_json: bool, verbose: bool, quiet: bool) -> int:
    from jko.cli import screen
    from jko.cli.execution import PreparedRun, draw, exit_status, report
    from jko.cli.folder import Folder
    from jko.runs import record
    from jko.solution import load

    prepared = PreparedRun.of(config)
    folder = Folder.claim(out, "solution", prepared.config, overwrite=overwrite)
    if folder.finished:
        solution = load(out)
        report(solution, out, [], as_json, quiet=True)
        folder.tell(as_json=False)
        return exit_status(solution)
    with folder.watched(), screen.logging_to_stderr(verbose):
        solution = prepared.begin(folder.path, screen.make_progress(quiet))
        with uninterrupted():
            files = draw(solution, folder.path)
            record(folder.path, files)
    report(solution, folder.path, files, as_json, quiet)
    return exit_status(solution)
