"""The runs of a sweep: every combination of its lists."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

from jko.checks import check_integer
from jko.cli.options import override
from jko.config import RunConfig, SweepConfig, check_config
from jko.errors import InvalidInput

__all__ = ["SweepRun", "expand"]

_SHORT = {
    "H": "heads.num_heads",
    "process": "heads.process",
    "phases": "heads.phases",
    "sigma2": "heads.sigma2",
    "n": "measure.n",
    "d": "measure.d",
    "metric": "flow.metric",
    "sign": "flow.sign",
    "scheme": "scheme.name",
    "tau": "scheme.tau",
    "seed": "seed",
    "path": "path",
}
_LONG = {key: name for name, key in _SHORT.items()}
_TABLES = {
    "measure": "measure.n",
    "heads": "heads.num_heads",
    "flow": "flow.metric",
    "scheme": "scheme.tau",
    "solve": "solve.t1",
}
_MOST_RUNS = 100_000
_LONGEST = 120


@final
@dataclass(frozen=True, slots=True, eq=False)
class SweepRun:
    """One run of a sweep.

    Attributes:
        name: of its folder below `runs`.
        parameters: what the sweep gives it, by name.
        config: its whole configuration.
    """

    name: str
    parameters: dict[str, Any]
    config: RunConfig


def expand(data: dict[str, Any], source: str = "") -> list[SweepRun]:
    """Return the runs of a sweep: every combination of the lists in its table [sweep].

    A run differs from the others of the table in its parameters alone: where tau varies and [heads] dt is not given,
    the head path of all runs has the smallest tau as its dt, so that all of them follow the same path.

    Args:
        data: as TOML gives it: the tables of `jko run`, and [sweep] with lists by short name (H, tau, seed, path,
            metric, sign, n, d, scheme, process, phases, sigma2) or by the key of `jko run` ("measure.n"); `paths = P`
            stands for path = [0, ..., P - 1].
        source: where it comes from, for messages.

    Raises:
        InvalidInput: for a key or a value that `jko run` would refuse.
    """
    check_config(SweepConfig, data, source)
    base = {key: value for key, value in data.items() if key != "sweep"}
    lists = _lists(data.get("sweep", {}), source)
    count = math.prod(len(values) for values in lists.values())
    if count > _MOST_RUNS:
        raise InvalidInput(f"the sweep has {count} runs, more than {_MOST_RUNS}")
    runs: dict[str, SweepRun] = {}
    seen: set[str] = set()
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        run = dict(base)
        for key, value in chosen.items():
            run = _placed(run, key.split("."), value)
        label = _label({_LONG.get(key, key): value for key, value in chosen.items()})
        config = check_config(RunConfig, run, f"{source}, {label}" if chosen else source)
        parameters = {_LONG.get(key, key): _read(config, key, value) for key, value in chosen.items()}
        name, text = _label(parameters), config.model_dump_json()
        if text in seen:
            raise InvalidInput(f"the sweep has the run {name} twice: every value may be given once")
        if name in runs:
            raise InvalidInput(f"two runs of the sweep would have the folder {name}; rename the files that they read")
        seen.add(text)
        runs[name] = SweepRun(name, parameters, config)
    return [_on_one_path(run, lists) for run in runs.values()]


def _lists(table: dict[str, Any], source: str) -> dict[str, list[Any]]:
    """The values by the key of `jko run`."""
    lists: dict[str, list[Any]] = {}
    where = f"{source}: " if source else ""
    for name, given in _flat(table):
        key, values = _SHORT.get(name, name), given
        if name == "paths":
            key, values = "path", list(range(_count_paths(given, f"{where}[sweep] paths")))
        if "." not in key and key not in RunConfig.model_fields:
            near = difflib.get_close_matches(name, [*_SHORT, "paths"], n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join([*_SHORT, 'paths'])}, and table.key"
            raise InvalidInput(f"{where}unknown key sweep.{name}; {hint}")
        if key in RunConfig.model_fields and key in _TABLES:
            raise InvalidInput(f"{where}sweep.{name} is a table: name one of its keys, such as {_TABLES[key]}")
        if not isinstance(values, list) or not values:
            raise InvalidInput(f"{where}sweep.{name} = {values!r}: must be a list of values")
        if key in lists:
            raise InvalidInput(f"{where}the sweep gives {key} twice")
        lists[key] = values
    return lists


def _count_paths(given: Any, name: str) -> int:
    count = check_integer(given, name, least=1)
    if count > _MOST_RUNS:
        raise InvalidInput(f"{name} = {count} are more than {_MOST_RUNS} runs")
    return count


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _placed(data: dict[str, Any], places: list[str], value: Any) -> dict[str, Any]:
    """The data with a value at a place; a source of tokens or heads replaces the other one, as an option does."""
    over: Any = value
    for place in reversed(places):
        over = {place: over}
    return override(data, over)


def _read(config: RunConfig, key: str, value: Any) -> Any:
    """The value as it was understood: 2 for 2.0 where a whole number is meant."""
    read: Any = config
    for place in key.split("."):
        read = getattr(read, place)
    return read if isinstance(value, float) and isinstance(read, int) else value


def _on_one_path(run: SweepRun, lists: dict[str, list[Any]]) -> SweepRun:
    heads = run.config.heads
    given = heads.dt is not None or heads.file is not None or heads.process == "constant"
    if given or "scheme.tau" not in lists:
        return run
    heads = heads.model_copy(update={"dt": float(min(lists["scheme.tau"]))})
    return replace(run, config=run.config.model_copy(update={"heads": heads}))


def _label(parameters: dict[str, Any]) -> str:
    """Name of a run's folder."""
    parts = [
        f"{name}{value:+d}" if name == "sign" else f"{name}{value}" if _is_number(value) else f"{name}-{value}"
        for name, value in parameters.items()
    ]
    label = re.sub(r"[^\w.+-]+", "-", "_".join(parts)) or "run"
    if len(label) > _LONGEST:
        label = f"{label[:_LONGEST]}-{hashlib.blake2b(repr(parts).encode(), digest_size=4).hexdigest()}"
    return label


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
