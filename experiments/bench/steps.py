"""Speed of the steps as ratios measured in one run: explicit step, pair sums, passes of a JKO step, memory.

Every ratio compares two things that ran in turn in this process, medians of several rounds. Absolute times belong to
one machine; the ratios are what to quote.

    python experiments/bench/steps.py [--out bench.json]

JKO_SMALL=1 runs a small version that only shows that the script works.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from memory import peak_mib, resident_mib

import jko

SMALL = bool(os.environ.get("JKO_SMALL"))
N, HEADS, ROUNDS, T1 = (40, 6, 2, 0.03) if SMALL else (300, 100, 25, 0.5)
LARGE_N = 2_000 if SMALL else 100_000
METRICS = (jko.WeightedWasserstein(), jko.HeadwiseWasserstein(), jko.Wasserstein2())


def in_turn(**functions: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each function; the functions take turns, so that a slow moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(ROUNDS + 2):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if round_ >= 2:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def exponentials(dtype: torch.dtype) -> Callable[[], None]:
    """The floor: n^2 H exponentials and nothing else, on a block that stays in the cache."""
    block = torch.rand(180_000, dtype=dtype)
    buffer = torch.empty_like(block)
    count = N * N * HEADS

    def run() -> None:
        for start in range(0, count, block.numel()):
            size = min(block.numel(), count - start)
            torch.exp(block[:size], out=buffer[:size])

    return run


def materializing(points: torch.Tensor, D: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The straightforward formula: softmax over an (H, n, n) array and two einsum."""

    def run() -> torch.Tensor:
        logits = torch.einsum("ia,hab,jb->hij", points, D, points)
        mean = torch.einsum("hij,jd->hid", torch.softmax(logits, -1), points)
        return torch.einsum("hde,hie->hid", D, mean).mean(0)

    return run


def explicit_rows() -> list[dict[str, object]]:
    """One explicit step with all columns of the records, constant heads, against the floor and the plain formula."""
    rows = []
    for dtype in (torch.float64, torch.float32):
        measure = jko.ParticleMeasure(jko.initial_tokens(N, 3, seed=0).to(dtype))
        D = jko.initial_heads(HEADS, 3, seed=0)
        for metric in METRICS:
            flow = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(D)), metric)
            scheme = jko.ExplicitEuler(0.01)
            state = scheme.start(flow, measure, 0.0)
            seconds = in_turn(
                floor=exponentials(dtype),
                step=partial(scheme.step, flow, measure, state=state),
                plain=materializing(measure.points, D.to(dtype)),
            )
            rows.append(
                {
                    "what": "explicit step",
                    "metric": metric.title,
                    "dtype": str(dtype).removeprefix("torch."),
                    "floor_ms": 1e3 * seconds["floor"],
                    "step_ms": 1e3 * seconds["step"],
                    "step_over_floor": seconds["step"] / seconds["floor"],
                    "plain_over_step": seconds["plain"] / seconds["step"],
                }
            )
    return rows


def jko_rows() -> list[dict[str, object]]:
    """Passes per JKO step on the paper's start, all counted, and the time against the explicit flow."""
    rows = []
    measure = jko.ParticleMeasure(jko.initial_tokens(N, 3, seed=0))
    for heads_count in (1, 4, HEADS):
        D0 = jko.initial_heads(heads_count, 3, seed=0)
        heads = jko.OrnsteinUhlenbeckHeads(D0, dt=0.01, t1=T1, seed=0)
        for metric in METRICS:
            flow = jko.GradientFlow(jko.AttentionEnergy(heads, sign=+1), metric)
            seconds = {}
            for scheme in (jko.ExplicitEuler(0.01), jko.JKO(0.01)):
                start = time.perf_counter()
                solution = jko.solve(flow, measure, scheme, t1=T1)
                seconds[scheme.title] = time.perf_counter() - start
            rows.append(
                {
                    "what": "JKO flow",
                    "metric": metric.title,
                    "heads": heads_count,
                    "passes_per_step": float(solution.records.evaluations.mean()),
                    "most_passes": float(solution.records.evaluations.max()),
                    "worst_residual": float(solution.records.residual.max()),
                    "jko_ms_per_step": 1e3 * seconds["JKO"] / solution.steps,
                    "jko_over_explicit": seconds["JKO"] / seconds["explicit Euler"],
                }
            )
    return rows


def memory_child() -> None:
    """Print by how many MiB the peak of an explicit step of a large cloud exceeds the memory before."""
    measure = jko.ParticleMeasure(jko.initial_tokens(LARGE_N, 3, seed=0))
    flow = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(torch.eye(3)[None])))
    small = jko.ParticleMeasure(measure.points[:100])
    jko.ExplicitEuler(0.01).step(flow, small)
    before = resident_mib()
    start = time.perf_counter()
    jko.ExplicitEuler(0.01).step(flow, measure)
    seconds = time.perf_counter() - start
    print(json.dumps({"MiB": peak_mib() - before, "seconds": seconds}))


def memory_row() -> dict[str, object]:
    """Measured in a process of its own, since a peak never falls."""
    command = [sys.executable, __file__, "--memory-child"]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(child.stdout)
    return {"what": "memory of an explicit step", "n": LARGE_N, "heads": 1, **result}


def show(rows: list[dict[str, object]]) -> None:
    """Print rows as aligned columns, a headline wherever the columns change."""
    names: list[str] = []
    for row in rows:
        if list(row) != names:
            names = list(row)
            print("\n" + "  ".join(f"{name:>17}" for name in names))
        cells = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()]
        print("  ".join(f"{cell:>17.26}" for cell in cells))


def main() -> None:
    """Measure, print, and write the JSON file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    parser.add_argument("--memory-child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_child:
        memory_child()
        return
    setting = {
        "n": N,
        "heads": HEADS,
        "d": 3,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
    }
    print(", ".join(f"{name} = {value}" for name, value in setting.items()))
    rows = [*explicit_rows(), *jko_rows(), memory_row()]
    show(rows)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"setting": setting, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
