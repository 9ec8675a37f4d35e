"""Speed of the transport solvers as ratios measured in one run: Sinkhorn against POT and GeomLoss, memory when lazy.

Every ratio compares two things that ran in turn in this process, medians of several rounds. Absolute times belong to
one machine; the ratios are what to quote. Errors are marginal errors in L^1, of both marginals together, of the plan
that each solver reports; eps is in units of |x - y|^2, without a factor 1/2.

    python experiments/bench/transport.py [--out transport.json]

JKO_SMALL=1 runs a small version that only shows that the script works. GeomLoss is measured where it is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ot
import torch
from memory import peak_mib, resident_mib

import jko
from jko.transport import TransportProblem
from jko.transport.cost import GroundCost
from jko.transport.entropic.base import AbstractGibbsKernel
from jko.transport.entropic.blocked import BlockedKernel
from jko.transport.entropic.dense import DenseKernel
from jko.transport.entropic.keops import KeOpsKernel

SMALL = bool(os.environ.get("JKO_SMALL"))
N, ROUNDS = (60, 2) if SMALL else (2000, 5)
EXACT_SIZES = (30, 60) if SMALL else (300, 1000)
LAZY_N = 400 if SMALL else 5000
LARGE_N = 1000 if SMALL else 50_000
EPS = 1e-2
ERROR = 1e-6
PAUSE = 0.0 if SMALL else 0.3
CLOUDS = ("cube", "shifted", "normal", "near")


def in_turn(rounds: int, **functions: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each function; the functions take turns, so that a slow moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(rounds + 1):
        for name, function in functions.items():
            # Threads of one library spin for a while after their work and would slow down the next one.
            time.sleep(PAUSE)
            start = time.perf_counter()
            function()
            if round_ >= 1:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def clouds(kind: str, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and targets in R^3."""
    draw = np.random.default_rng(0)
    if kind == "normal":
        pair = draw.standard_normal((n, 3)), draw.standard_normal((n, 3)) + 0.5
    elif kind == "shifted":
        pair = draw.random((n, 3)), 0.7 * draw.random((n, 3)) + 0.5
    elif kind == "near":
        y = draw.random((n, 3))
        pair = y, y + 0.01 * draw.standard_normal((n, 3))
    else:
        pair = draw.random((n, 3)), draw.random((n, 3))
    return torch.from_numpy(pair[0]), torch.from_numpy(pair[1])


def setting(kind: str, n: int) -> tuple[TransportProblem, float]:
    """The problem, and the square of the diameter of both clouds together."""
    y, x = clouds(kind, n)
    every = torch.cat([y, x])
    problem = TransportProblem(jko.ParticleMeasure(y), jko.ParticleMeasure(x), jko.Euclidean())
    return problem, float(torch.cdist(every, every).amax().square())


def error_of(plan: Any, a: Any, w: Any) -> float:
    """Error of both marginals in L^1."""
    return float(abs(plan.sum(1) - a).sum() + abs(plan.sum(0) - w).sum())


def pot_threshold(C: np.ndarray, a: np.ndarray, eps: float) -> float:
    """The loosest threshold of POT that reaches the error, found once and not timed: it stops by another norm."""
    for power in np.arange(-5.0, -12.0, -0.5):
        threshold = float(10**power)
        plan = ot.sinkhorn(a, a, C, eps, stopThr=threshold, numItermax=100_000, warn=False)
        if error_of(plan, a, a) <= ERROR:
            return threshold
    raise RuntimeError("POT does not reach the error")


def sinkhorn_rows() -> list[dict[str, object]]:
    """Value, potentials and gradient to the marginal error 1e-6, against POT's plans to the same error."""
    rows = []
    for kind in CLOUDS:
        problem, diameter2 = setting(kind, N)
        eps = EPS * diameter2
        member = jko.Sinkhorn(eps, debias=False, tolerance=ERROR)
        solution = member.solve(problem)
        C, a = ot.dist(problem.source.points.numpy(), problem.target.points.numpy()), np.full(N, 1 / N)
        options: dict[str, Any] = {"stopThr": pot_threshold(C, a, eps), "numItermax": 100_000, "warn": False}

        def whole(solver: Any, options: dict[str, Any] = options, problem: Any = problem, eps: float = eps) -> Any:
            cost = ot.dist(problem.source.points.numpy(), problem.target.points.numpy())
            return solver(np.full(N, 1 / N), np.full(N, 1 / N), cost, eps, **options)

        seconds = in_turn(
            ROUNDS,
            ours=partial(member.solve, problem),
            plain=partial(whole, ot.sinkhorn),
            log=partial(whole, ot.bregman.sinkhorn_log),
        )
        rows.append(
            {
                "what": "Sinkhorn against POT",
                "clouds": kind,
                "eps_over_diameter2": EPS,
                "our_error": error_of(solution.plan(), 1 / N, 1 / N),
                "pot_error": error_of(whole(ot.sinkhorn), a, a),
                "our_iterations": solution.iterations,
                "our_ms": 1e3 * seconds["ours"],
                "plain_ms": 1e3 * seconds["plain"],
                "ours_over_plain": seconds["ours"] / seconds["plain"],
                "log_over_ours": seconds["log"] / seconds["ours"],
            }
        )
    return rows


def iteration_row() -> dict[str, object]:
    """One iteration, both potentials and the error, against two logarithmic sums over the stored cost."""
    problem, diameter2 = setting("cube", N)
    cost = problem.cost()
    a = torch.full((N,), 1 / N, dtype=torch.float64)
    kernel, C, eps = DenseKernel.of(cost, a, a), cost.matrix(), EPS * diameter2
    v = kernel.evaluate(torch.zeros_like(a), eps).v

    def sums() -> None:
        torch.logsumexp(C, 0)
        torch.logsumexp(C, 1)

    seconds = in_turn(5 * ROUNDS, ours=lambda: kernel.evaluate(v, eps), sums=sums)
    return {
        "what": "one iteration",
        "n": N,
        "our_ms": 1e3 * seconds["ours"],
        "logsumexp_ms": 1e3 * seconds["sums"],
        "ours_over_logsumexp": seconds["ours"] / seconds["sums"],
    }


def path_rows() -> list[dict[str, object]]:
    """Work and time down to small eps, plain and debiased, to the default error."""
    rows = []
    for ratio in (1e-1, 1e-2, 1e-3) if SMALL else (1e-1, 1e-2, 1e-3, 1e-4):
        problem, diameter2 = setting("cube", N)
        for debias in (False, True):
            member = jko.Sinkhorn(ratio * diameter2, debias=debias)
            start = time.perf_counter()
            solution = member.solve(problem)
            rows.append(
                {
                    "what": "Sinkhorn by eps",
                    "eps_over_diameter2": ratio,
                    "debiased": debias,
                    "value": solution.value,
                    "marginal_error": solution.marginal_error,
                    "iterations": solution.iterations,
                    "seconds": time.perf_counter() - start,
                }
            )
    return rows


def geomloss_rows() -> list[dict[str, object]]:
    """GeomLoss with the error that it reaches: it has no stopping rule. Its cost has the factor 1/2."""
    if importlib.util.find_spec("geomloss") is None:
        return []
    with contextlib.redirect_stdout(None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from geomloss import SamplesLoss
    rows = []
    for kind in CLOUDS:
        problem, diameter2 = setting(kind, N)
        eps = EPS * diameter2
        y, x = problem.source.points, problem.target.points
        for scaling in (0.5, 0.9):
            loss = SamplesLoss(
                "sinkhorn",
                p=2,
                blur=(eps / 2) ** 0.5,
                scaling=scaling,
                debias=False,
                potentials=True,
                backend="tensorized",
            )
            member = jko.Sinkhorn(eps, debias=False, tolerance=ERROR)
            seconds = in_turn(ROUNDS, geomloss=partial(loss, y, x), ours=partial(member.solve, problem))
            f, g = (2 * part.flatten() for part in loss(y, x))
            plan = ((f[:, None] + g - problem.cost().matrix()) / eps).exp() / N**2
            rows.append(
                {
                    "what": "GeomLoss",
                    "clouds": kind,
                    "scaling": scaling,
                    "its_error": error_of(plan, 1 / N, 1 / N),
                    "its_ms": 1e3 * seconds["geomloss"],
                    "ours_over_it": seconds["ours"] / seconds["geomloss"],
                }
            )
    return rows


def exact_rows() -> list[dict[str, object]]:
    """Exact transport with potentials and gradient, against POT's plan."""
    rows = []
    for n in EXACT_SIZES:
        for kind in ("cube", "near"):
            problem, _ = setting(kind, n)
            a, C = np.full(n, 1 / n), problem.cost().matrix().numpy()
            seconds = in_turn(
                ROUNDS,
                ours=partial(jko.ExactOT().solve, problem),
                simplex=partial(jko.ExactOT(10**7).solve, problem),
                pot=partial(ot.emd, a, a, C, numItermax=10**7),
            )
            rows.append(
                {
                    "what": "exact transport",
                    "clouds": kind,
                    "n": n,
                    "our_ms": 1e3 * seconds["ours"],
                    "assignment_over_pot": seconds["ours"] / seconds["pot"],
                    "simplex_over_pot": seconds["simplex"] / seconds["pot"],
                }
            )
    return rows


def lazy_rows() -> list[dict[str, object]]:
    """One iteration of a kernel that is not stored, blocked and by KeOps."""
    rows = []
    a = torch.full((LAZY_N,), 1 / LAZY_N, dtype=torch.float64)
    for manifold in (jko.Euclidean(), jko.Sphere()):
        y, x = (jko.Sphere().random_point((LAZY_N,), 3, seed) for seed in (0, 1))
        cost = GroundCost(y, x, manifold)
        kernels: dict[str, AbstractGibbsKernel] = {"blocked": BlockedKernel(cost, a, a)}
        if jko.reductions.keops_available().available:
            kernels["keops"] = KeOpsKernel(cost, a, a)
        seconds = in_turn(
            ROUNDS, **{name: partial(kernel.evaluate, torch.zeros_like(a), EPS) for name, kernel in kernels.items()}
        )
        row: dict[str, object] = {
            "what": "one lazy iteration",
            "manifold": type(manifold).__name__,
            "n": LAZY_N,
            "blocked_ns_per_pair": 1e9 * seconds["blocked"] / LAZY_N**2,
        }
        if "keops" in seconds:
            row["keops_over_blocked"] = seconds["keops"] / seconds["blocked"]
        rows.append(row)
    return rows


def memory_child() -> None:
    """Print by how much the peak of three iterations of a large lazy problem exceeds the memory before."""
    y, x = clouds("cube", LARGE_N)
    member = jko.Sinkhorn(1.0, debias=False, max_iterations=3, lazy=True)
    member.solve(TransportProblem(jko.ParticleMeasure(y[:100]), jko.ParticleMeasure(x[:100]), jko.Euclidean()))
    problem = TransportProblem(jko.ParticleMeasure(y), jko.ParticleMeasure(x), jko.Euclidean())
    before = resident_mib()
    start = time.perf_counter()
    solution = member.solve(problem)
    found = {
        "MiB": peak_mib() - before,
        "iterations": solution.iterations,
        "marginal_error": solution.marginal_error,
        "seconds": time.perf_counter() - start,
    }
    print(json.dumps(found))


def memory_row() -> dict[str, object]:
    """Measured in a process of its own, since a peak never falls."""
    command = [sys.executable, __file__, "--memory-child"]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(child.stdout.splitlines()[-1])
    return {"what": "memory of a lazy problem", "n": LARGE_N, **result}


def show(rows: list[dict[str, object]]) -> None:
    """Print rows as aligned columns, a headline wherever the columns change."""
    names: list[str] = []
    for row in rows:
        if list(row) != names:
            names = list(row)
            print("\n" + "  ".join(f"{name:>18}" for name in names))
        cells = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()]
        print("  ".join(f"{cell:>18.26}" for cell in cells))


def main() -> None:
    """Measure, print, and write the JSON file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    parser.add_argument("--memory-child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_child:
        memory_child()
        return
    about = {
        "n": N,
        "d": 3,
        "dtype": "float64",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "pot": ot.__version__,
        "python": platform.python_version(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
    }
    print(", ".join(f"{name} = {value}" for name, value in about.items()))
    rows = [
        *sinkhorn_rows(),
        iteration_row(),
        *geomloss_rows(),
        *path_rows(),
        *exact_rows(),
        *lazy_rows(),
        memory_row(),
    ]
    show(rows)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"setting": about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
