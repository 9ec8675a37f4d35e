"""What run.json says of a run, and whether a flow and a scheme continue it."""

from __future__ import annotations

import json
import logging
from typing import Any

import torch

from jko.errors import InvalidInput, ResumeMismatch
from jko.flows import AbstractFlow
from jko.grid import time_grid
from jko.measure import ParticleMeasure
from jko.runs.description import compare_config, compare_setups, describe, versions
from jko.runs.folder import CHUNKED
from jko.runs.inventory import new_name
from jko.runs.options import Checkpoint, Save
from jko.runs.reader import Restored
from jko.schemes import AbstractScheme
from jko.storage import json_bytes

__all__ = ["check_continues", "check_same_flow", "continued", "run_file"]

_log = logging.getLogger("jko.runs")


def run_file(
    flow: AbstractFlow,
    measure: ParticleMeasure,
    scheme: AbstractScheme,
    times: list[float],
    save: Save,
    checkpoint: Checkpoint,
    config: dict[str, Any],
) -> dict[str, Any]:
    """What run.json says of a run."""
    return {
        "format": CHUNKED,
        "kind": "solution",
        "run": new_name(),
        "title": f"{scheme.title}, {flow.title}",
        "status": "running",
        "failure": None,
        "t0": times[0],
        "t1": times[-1],
        "tau": scheme.tau,
        "n": measure.n,
        "d": measure.d,
        "dtype": str(measure.dtype).removeprefix("torch."),
        "device": str(measure.device),
        "threads": torch.get_num_threads(),
        "save": save.as_data(),
        "checkpoint": {"every": checkpoint.every, "seconds": checkpoint.seconds},
        "setup": {"flow": describe(flow), "scheme": describe(scheme)},
        "config": config,
        "versions": versions(),
    }


def continued(run: dict[str, Any], step: int, t1: float, config: dict[str, Any] | None) -> dict[str, Any]:
    """Return what run.json says of a run that goes on from a step to t1; log what may change the last bit of a sum."""
    _warn_of_changes(run)
    return {
        **run,
        "status": "running",
        "failure": None,
        "t1": t1,
        "threads": torch.get_num_threads(),
        "config": run["config"] if config is None else config,
        "resumed": [*run.get("resumed", []), step],
    }


def check_continues(
    run: dict[str, Any], flow: AbstractFlow, scheme: AbstractScheme, t1: float | None, config: dict[str, Any] | None
) -> float:
    """Refuse what does not continue the run in the folder; return the final time."""
    if scheme.tau != run["tau"]:
        raise ResumeMismatch(
            f"tau was {run['tau']!r} in the run that is to be continued, and is {scheme.tau!r} now; a run continues "
            "with the step size that it was begun with"
        )
    if config is not None:
        compare_config(run["config"], _through_json(config))
    new = _through_json({"flow": describe(flow), "scheme": describe(scheme)})
    for part in ("scheme", "flow"):
        compare_setups(run.get("setup", {}).get(part, {}), new[part], part)
    end = run["t1"] if t1 is None else time_grid(run["t0"], t1, scheme.tau, flow.jumps)[-1]
    if end < run["t1"]:
        raise ResumeMismatch(
            f"t1 was {run['t1']!r} in the run that is to be continued, and is {end!r} now; a run can be made longer, "
            "not shorter"
        )
    scheme.check(flow)
    return float(end)


def _through_json(data: dict[str, Any]) -> Any:
    """What the file gives back: lists for tuples, null for numbers that are not finite."""
    return json.loads(json_bytes(data, "config"))


def check_same_flow(flow: AbstractFlow, restored: Restored) -> None:
    """Refuse a flow whose velocity at the saved state is not the saved one; what the next step uses stays as it was."""
    old = restored.state.flow_state
    try:
        velocity = flow.velocity(old.measure, old.t)
    except InvalidInput as error:
        measure = f"n = {old.measure.n}, d = {old.measure.d}"
        raise ResumeMismatch(f"the flow does not fit the particles of the run ({measure}): {error}") from None
    gap = float((velocity - old.velocity).abs().max())
    size = float(old.velocity.abs().max())
    tolerance = 1e-3 if old.velocity.dtype == torch.float32 else 1e-6
    if not gap <= tolerance * size:
        raise ResumeMismatch(
            f"the flow was another one in the run that is to be continued: at t = {old.t:g} its velocity differs by "
            f"{gap:.3g} from the saved one, which is {size:.3g} large; check seed, heads, sign and metric"
        )


def _warn_of_changes(run: dict[str, Any]) -> None:
    """Log what may change the last bit of a sum: another number of threads, other versions."""
    threads = torch.get_num_threads()
    if threads != run.get("threads"):
        _log.warning(
            "the run was computed with %s threads and goes on with %s: sums may differ in their last bit from those of "
            "an unbroken run",
            run.get("threads"),
            threads,
        )
    before = run.get("versions", {})
    for name, now in versions().items():
        if before.get(name, now) != now:
            _log.warning("the run was begun with %s %s and goes on with %s", name, before[name], now)
