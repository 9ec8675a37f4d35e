"""`jko info`: what is in a folder, how it ended, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["info"]


def info(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, a comparison, a sweep, ...")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.", rich_help_panel="Common")] = False,
) -> int:
    """Tell what a folder holds, how it ended, and how to continue it."""
    from jko.cli.exits import EXIT_DAMAGED
    from jko.errors import RunFolderError
    from jko.runs import CHUNKED, RunFolder, inspect, read_inventory
    from jko.storage import json_bytes

    run: Any = read_inventory(folder)
    if not isinstance(run, dict) or not isinstance(run.get("kind"), str):
        raise RunFolderError(f"{folder / 'run.json'} was not written by jko")
    chunked = run["kind"] == "solution" and run.get("format") == CHUNKED
    told = _run(folder, RunFolder(folder).read()) if chunked else _other(folder, run)
    if troubles := inspect(folder) + [told[key] for key in told if key == "trouble"]:
        told["damaged"] = list(dict.fromkeys(troubles))
        told["mend"] = _mending(folder, run)
    told["size"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if as_json:
        print(json_bytes(told, "info").decode(), end="")
        return EXIT_DAMAGED if troubles else 0
    width = max(len(key) for key in told)
    for key, value in told.items():
        text = _size(value) if key == "size" else value if isinstance(value, str) else json.dumps(value)
        for line in value if key == "damaged" else [text]:
            print(f"{key:<{width}}  {line}")
    return EXIT_DAMAGED if troubles else 0


def _run(folder: Path, run: dict[str, Any]) -> dict[str, Any]:
    """What is known of a run that is written while it goes on."""
    from jko.errors import RunFolderError
    from jko.runs import UNFINISHED, RunFolder
    from jko.solution import load
    from jko.status import Status

    told: dict[str, Any] = {"kind": "run", "title": run["title"]}
    try:
        solution = load(folder)
    except RunFolderError as error:
        return {**told, "status": "damaged", "trouble": str(error), "continue": "start the run again"}
    ended = run["status"] not in UNFINISHED
    told["status"] = run["status"] if ended else f"{run['status']}: not at its end"
    if solution.status is Status.DAMAGED:
        told["status"] = f"damaged: run.json says {run['status']}, and steps of the run are lost"
    if solution.failure is not None:
        told["failure"] = str(solution.failure)
    t = float(solution.states.t[-1])
    told |= {
        "reached": f"t = {t:g} of {run['t1']:g} after {solution.steps} steps of {run['tau']:g}",
        "measure": f"n = {run.get('n')}, d = {run.get('d')}, {run.get('dtype')} on {run.get('device')}",
        "clouds": f"{len(solution.times)} kept",
        "checkpoints": RunFolder(folder).checkpoints(),
        "threads": run.get("threads"),
        "versions": run.get("versions"),
    }
    if run.get("resumed"):
        told["resumed"] = f"after steps {', '.join(map(str, run['resumed']))}"
    for key in ("seed", "path", "heads", "flow", "scheme"):
        if key in run["config"]:
            told[key] = run["config"][key]
    told["continue"] = _advice(folder, run, solution.status.ok)
    return told


def _mending(folder: Path, run: dict[str, Any]) -> str:
    """What writes again what is missing."""
    if run["kind"] == "solution" and "run" in run and "t1" in run:
        if "scheme" not in run["config"]:
            return f"{_advice(folder, run, False)} computes lost steps again; `jko plot {folder}` draws again"
        return f"`jko resume {folder}` computes lost steps again, and writes summary and figures"
    if run["kind"] == "solution":
        return "it was saved as a whole: save it again, or take the run again"
    return "the command that made the folder, once more, computes what is missing"


def _advice(folder: Path, run: dict[str, Any], done: bool) -> str:
    if "scheme" not in run["config"]:
        return f"in Python: jko.resume({str(folder)!r}, flow, scheme)"
    return f"jko resume {folder}" + (f" --t1 T, with T above {run['t1']:g}" if done else "")


def _other(folder: Path, run: dict[str, Any]) -> dict[str, Any]:
    """What is known of results that were saved as a whole."""
    from jko.errors import RunFolderError
    from jko.runs import UNFINISHED
    from jko.solution import load

    told = {"kind": run["kind"], "title": run.get("title", ""), "status": run.get("status", "unknown")}
    if isinstance(failure := run.get("failure"), dict):
        told["failure"] = f"{failure.get('status')} in step {failure.get('step')}"
    if isinstance(solutions := run.get("solutions"), list) and solutions:
        told["runs"] = len(solutions)
    told["versions"] = run.get("versions")
    if run["kind"] == "solution" and told["status"] in UNFINISHED:
        told["continue"] = "it ended before its first step: start the run again"
    elif run["kind"] == "solution":
        try:
            told["reached"] = f"t = {float((solution := load(folder)).states.t[-1]):g} after {solution.steps} steps"
        except RunFolderError as error:
            told |= {"status": "damaged", "trouble": str(error)}
    if run["kind"] == "sweep":
        told["continue"] = f"jko sweep {folder / 'config.toml'} --out {folder}"
    return told


def _size(size: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000  # type: ignore[assignment]
    return f"{size:.3g} TB"
