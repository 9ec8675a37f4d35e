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

    target = folder if out is None else out
    files = []
    with screen.logging_to_stderr(verbose):
        for name in _runs(folder):
            run = solution.load(folder / name)
            with uninterrupted():
                files += draw(run, target, f"{Path(name).name}-" if name else "")
    for file in files:
        print(target / file)
    if not quiet:
        print(f"{len(files)} files of figures in {target}", file=sys.stderr)
    return 0


def _runs(folder: Path) -> list[str]:
    """The runs below a folder; an empty name is the folder itself."""
    from jko.errors import RunFolderError
    from jko.storage import read_json

    run: Any = read_json(folder / "run.json")
    if not isinstance(run, dict) or run.get("kind") not in ("comparison", "sweep"):
        return [""]
    listed = run.get("solutions")
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    complete = [name for name in names if (folder / name / "run.json").exists()]
    if not complete:
        raise RunFolderError(f"{folder} holds a {run['kind']} without a single run yet")
    return complete
