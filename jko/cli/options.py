"""Options that several commands share, and the way from options to configuration data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "Device",
    "Dimension",
    "Dt",
    "Dtype",
    "HeadsFile",
    "JsonOutput",
    "Manifold",
    "NumHeads",
    "Number",
    "Out",
    "Overwrite",
    "Phases",
    "Points",
    "Process",
    "Quiet",
    "Seed",
    "Sigma2",
    "Sign",
    "TimesFile",
    "Verbose",
    "common_data",
    "given",
    "heads_data",
    "measure_data",
    "override",
]

_MEASURE = "Initial measure"
_HEADS = "Heads"
_COMMON = "Common"

Number = Annotated[
    int | None,
    typer.Option("--n", "-n", metavar="N", help="Number of tokens (300 unless given).", rich_help_panel=_MEASURE),
]
Dimension = Annotated[
    int | None,
    typer.Option(
        "--d",
        "-d",
        metavar="D",
        help="Dimension of the space around the sphere (3 unless given).",
        rich_help_panel=_MEASURE,
    ),
]
Points = Annotated[
    Path | None,
    typer.Option(metavar="FILE.npy", help="Tokens (n, d) instead of the paper's law.", rich_help_panel=_MEASURE),
]
Process = Annotated[
    str | None,
    typer.Option(
        metavar="ou|oscillating|constant", help="How the heads move from D_0 (ou unless given).", rich_help_panel=_HEADS
    ),
]
NumHeads = Annotated[
    int | None,
    typer.Option("--num-heads", "-H", metavar="H", help="Number of heads (4 unless given).", rich_help_panel=_HEADS),
]
Sigma2 = Annotated[
    float | None,
    typer.Option(metavar="X", help="Stationary variance of OU heads (1 unless given).", rich_help_panel=_HEADS),
]
Phases = Annotated[
    str | None,
    typer.Option(
        metavar="spread|shared", help="Phases of oscillating heads (spread unless given).", rich_help_panel=_HEADS
    ),
]
Dt = Annotated[
    float | None,
    typer.Option(
        metavar="DT",
        help="Spacing of the nodes of the head path (the smallest tau unless given); another one is another path.",
        rich_help_panel=_HEADS,
    ),
]
HeadsFile = Annotated[
    Path | None,
    typer.Option("--heads", metavar="FILE.npy", help="Matrices (H, d, d), constant in time.", rich_help_panel=_HEADS),
]
TimesFile = Annotated[
    Path | None,
    typer.Option(
        "--times", metavar="FILE.npy", help="Times (K,) of tabulated heads (K, H, d, d).", rich_help_panel=_HEADS
    ),
]
Sign = Annotated[int | None, typer.Option(metavar="+1|-1", help="+1 minimizes E, -1 minimizes -E (+1 unless given).")]
Manifold = Annotated[
    str | None, typer.Option(metavar="sphere|euclidean", help="Where the tokens live (sphere unless given).")
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="S",
        help="Seed of tokens, D_0 and noise, each on its own stream (0 unless given).",
        rich_help_panel=_COMMON,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="cpu|cuda", help="Device of the tokens (cpu unless given).", rich_help_panel=_COMMON),
]
Dtype = Annotated[
    str | None,
    typer.Option(metavar="float64|float32", help="Precision (float64 unless given).", rich_help_panel=_COMMON),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the results.", rich_help_panel=_COMMON)]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Begin anew and replace the results in the folder.", rich_help_panel=_COMMON),
]
JsonOutput = Annotated[
    bool, typer.Option("--json", help="Print summary.json instead of the table.", rich_help_panel=_COMMON)
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.", rich_help_panel=_COMMON)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Results and errors only: no progress.", rich_help_panel=_COMMON)
]


def common_data(seed: int | None, device: str | None, dtype: str | None) -> dict[str, Any]:
    """Return the entries at the top of a configuration."""
    return given(seed=seed, device=device, dtype=dtype)


def measure_data(n: int | None, d: int | None, points: Path | None) -> dict[str, Any]:
    """Return the table of the measure."""
    return given(n=n, d=d, points=None if points is None else str(points))


def heads_data(
    process: str | None,
    num_heads: int | None,
    sigma2: float | None,
    phases: str | None,
    dt: float | None,
    file: Path | None,
    times: Path | None,
) -> dict[str, Any]:
    """Return the table of the heads."""
    return given(
        process=process,
        num_heads=num_heads,
        sigma2=sigma2,
        phases=phases,
        dt=dt,
        file=None if file is None else str(file),
        times=None if times is None else str(times),
    )


def given(**values: Any) -> dict[str, Any]:
    """Return the values that were given on the command line."""
    return {name: value for name, value in values.items() if value is not None}


def override(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the given options on top.

    An option that names another source of tokens or heads drops what the file says about the old source.
    """
    from jko.config import merge

    tables = dict(base)
    for name, file, parameters in (
        ("measure", ("points",), ("n", "d")),
        ("heads", ("file", "times"), ("process", "num_heads", "sigma2", "phases", "dt")),
    ):
        table, options = tables.get(name), over.get(name, {})
        if isinstance(table, dict):
            dropped = set(parameters if any(key in options for key in file[:1]) else ())
            dropped |= set(file if any(key in options for key in parameters) else ())
            if options.get("process") is not None and options["process"] != table.get("process"):
                dropped |= {"sigma2", "phases"}
            tables[name] = {key: value for key, value in table.items() if key not in dropped}
    return merge(tables, over)
