"""Kill a run at random moments, resume it, and compare it with the unbroken one: `python kills.py --kills 20`.

The run writes after every step, so that about every second kill falls into a write. Prints one line per run, which is
killed up to twice; exits with 1 at the first difference.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

import jko
from jko.driver import Checkpoint, resume

T1, TAU = 0.12, 0.01
METRICS = (jko.WeightedWasserstein, jko.HeadwiseWasserstein, jko.Wasserstein2)


def problem(k: int) -> tuple[jko.GradientFlow, jko.ParticleMeasure, object]:
    D0 = jko.initial_heads(3, 3, 11)
    heads = jko.OrnsteinUhlenbeckHeads(D0, dt=TAU, t1=T1, seed=11)
    flow = jko.GradientFlow(jko.AttentionEnergy(heads), METRICS[k % 3]())
    scheme = jko.ExplicitEuler(TAU, ledger=True) if k % 4 == 3 else jko.JKO(TAU)
    return flow, jko.ParticleMeasure(jko.initial_tokens(24, 3, 11)), scheme


def work(k: int, folder: Path) -> None:
    flow, measure, scheme = problem(k)
    checkpoint = Checkpoint(folder, every=1)
    if (folder / "run.json").exists():
        resume(checkpoint, flow, scheme)
    else:
        jko.solve(flow, measure, scheme, t1=T1, checkpoint=checkpoint)


def differences(one: jko.Solution, two: jko.Solution) -> list[str]:
    found = [name for name in ("times", "points", "weights") if not torch.equal(getattr(one, name), getattr(two, name))]
    for table in ("records", "states"):
        first, second = getattr(one, table).numeric(), getattr(two, table).numeric()
        found += [f"{table}.{name}" for name in first if not torch.equal(first[name], second[name])]
        found += [f"{table}: other columns"] if list(first) != list(second) else []
    return found


def kill_once(k: int, folder: Path, delay: float, reference: jko.Solution) -> str:
    """Kill one run, up to twice, and let it finish."""
    context = multiprocessing.get_context("fork")
    reached = []
    for _ in range(2):
        process = context.Process(target=work, args=(k, folder))
        process.start()
        process.join(delay)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        reached.append(jko.load(folder).steps if (folder / "run.json").exists() else -1)
    process = context.Process(target=work, args=(k, folder))
    process.start()
    process.join()
    bad = [f"exit status {process.exitcode}"] if process.exitcode else differences(jko.load(folder), reference)
    bad += [str(path) for path in folder.rglob(".*")]
    return f"killed after steps {reached} of {reference.steps}" + (f": DIFFERENT {bad}" if bad else ": identical")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    moments = random.Random(arguments.seed)
    root = Path(tempfile.mkdtemp())
    try:
        start = time.perf_counter()
        work(0, root / "timing")
        length = time.perf_counter() - start
        for k in range(arguments.kills):
            flow, measure, scheme = problem(k)
            reference = jko.solve(flow, measure, scheme, t1=T1)
            line = kill_once(k, root / str(k), moments.uniform(0, 0.9 * length), reference)
            sys.stdout.write(f"{k + 1:>3} {scheme.title}, {flow.title}: {line}\n")
            sys.stdout.flush()
            if "DIFFERENT" in line:
                return 1
    finally:
        shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
