"""`jko resume`: a run of `jko run` goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jko.cli import options as o
from jko.cli.exits import uninterrupted

if TYPE_CHECKING:
    from jko.config import RunConfig

__all__ = ["resume"]


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run that `jko run` began.")],
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml]", help="Configuration to compare with that of the run, for its t1."),
    ] = None,
    t1: Annotated[
        float | None, typer.Option("--t1", metavar="T", help="Final time, at least that of the run (the same).")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(metavar="K", help="Largest number of further steps (no limit unless given).")
    ] = None,
    as_json: o.JsonOutput = False,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> int:
    """Continue a run that was interrupted or killed, or one that has ended, to a later time.

    The result is that of an unbroken run, bit for bit, with the same number of threads. Anything but a later t1 is
    refused.
    """
    from jko.checks import check_integer
    from jko.cli import screen
    from jko.cli.execution import PreparedRun, draw, exit_status, report
    from jko.runs import record

    if max_steps is not None:
        check_integer(max_steps, "max_steps", least=0)
    prepared = PreparedRun.of(_config(folder, config, t1))
    with screen.logging_to_stderr(verbose):
        solution = prepared.resume(folder, screen.make_progress(quiet), max_steps)
        with uninterrupted():
            files = draw(solution, folder)
            record(folder, files)
    report(solution, folder, files, as_json, quiet)
    return exit_status(solution)


def _config(folder: Path, given: Path | None, t1: float | None) -> RunConfig:
    """The configuration that the run was begun with, with another t1; refuse what differs in config.toml."""
    from jko.cli import problem
    from jko.cli.execution import compare_with
    from jko.config import RunConfig, check_config, merge, read_toml
    from jko.errors import ResumeMismatch, RunFolderError
    from jko.runs import RunFolder

    run = RunFolder(folder).read()
    stored: dict[str, Any] = run["config"]
    if "scheme" not in stored:
        raise RunFolderError(f"{folder} was not begun by `jko run`: continue it with jko.resume in Python")
    path = folder / "config.toml" if given is None else given
    # The run may have gone on to a later time than it was begun with.
    data = merge(stored, {"solve": {"t1": run["t1"]}})
    if given is not None or path.exists():
        new = check_config(RunConfig, read_toml(path), str(path))
        data = problem.anchored(problem.resolved(new, new.scheme.tau)).model_dump(exclude_none=True)
        try:
            compare_with(stored, data)
        except ResumeMismatch as error:
            raise ResumeMismatch(f"{path} and {folder / 'run.json'} differ: {error}") from None
        if t1 is None and new.solve.t1 < run["t1"] * (1 - 1e-9):
            raise ResumeMismatch(
                f"t1 was {run['t1']!r} in the run that is to be continued, and is {new.solve.t1!r} now in {path}; a "
                "run can be made longer, not shorter"
            )
    if t1 is not None:
        data = merge(data, {"solve": {"t1": t1}})
    return check_config(RunConfig, data, str(folder))
