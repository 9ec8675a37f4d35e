"""`jko plot`: the figures of what a folder holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from jko.cli import options as o
from jko.cli.exits import uninterrupted

__all__ = ["plot"]


def plot(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, finished or not, or of several.")],
    out: o.Out = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> int:
    """Draw the energy and the clouds of a run as far as it has come, or of every run in a comparison or a sweep.

    The figures (PNG and PDF) go into the folder itself, or into --out. No display is needed.
    """
    from jko import solution
    from jko.cli import screen
    from jko.cli.execution import draw
    from jko.cli.exits import EXIT_DAMAGED
    from jko.errors import RunDamaged
    from jko.runs import inspect, record
    from jko.status import Status

    target = folder if out is None else out
    files = []
    with screen.logging_to_stderr(verbose):
        for name in _runs(folder):
            run = solution.load(folder / name)
            if run.status is Status.DAMAGED:
                raise RunDamaged(f"{folder / name}: {run.failure}")
            with uninterrupted():
                files += draw(run, target, f"{Path(name).name}-" if name else "")
        if out is None:
            record(folder, files)
    for file in files:
        print(target / file)
    if not quiet:
        print(f"{len(files)} files of figures in {target}", file=sys.stderr)
    troubles = inspect(folder)
    for trouble in troubles:
        print(f"error: {trouble}", file=sys.stderr)
    return EXIT_DAMAGED if troubles else 0


def _runs(folder: Path) -> list[str]:
    """The runs below a folder; an empty name is the folder itself."""
    from jko.errors import RunDamaged, RunFolderError
    from jko.runs import read_inventory

    run: Any = read_inventory(folder)
    if not isinstance(run, dict) or run.get("kind") not in ("comparison", "sweep"):
        return [""]
    listed = run.get("solutions")
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    complete = [name for name in names if (folder / name / "run.json").exists()]
    absent = [name for name in names if name not in complete]
    if lost := [f"{name}/run.json" for name in absent if name in run.get("members", {})]:
        raise RunDamaged(f"{folder} has lost {', '.join(lost)}: the same command computes what is missing")
    if absent and complete:
        print(f"{len(complete)} of {len(names)} runs are drawn; not begun: {', '.join(absent)}", file=sys.stderr)
    if not complete:
        raise RunFolderError(f"{folder} holds a {run['kind']} without a single run yet")
    return complete
