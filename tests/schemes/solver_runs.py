"""A fixed set of runs through every part of the solver, to be held against what an earlier version gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

import jko
from jko.transport import ExactOT, Sinkhorn

METRICS = {
    "W2": jko.Wasserstein2,
    "Wm": jko.WeightedWasserstein,
    "heads": jko.HeadwiseWasserstein,
}


@dataclass(frozen=True)
class Case:
    """One run: a name, whether it belongs to the small set, and how to make it."""

    name: str
    small: bool
    run: Callable[[], jko.Solution | jko.schemes.base.Step]


def tokens(n: int, d: int, *, unequal: bool = False, tracers: bool = False, seed: int = 3) -> jko.ParticleMeasure:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    w = torch.full((n,), 1.0, dtype=torch.float64)
    if unequal:
        w = torch.rand(n, generator=generator, dtype=torch.float64) + 0.2
    if tracers:
        w[:2] = 0.0
    return jko.ParticleMeasure(x / x.norm(dim=-1, keepdim=True), w / w.sum())


def matrices(H: int, d: int, *, symmetric: bool, scale: float = 1.0, seed: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    D = torch.randn(H, d, d, generator=generator, dtype=torch.float64)
    return scale * ((D + D.mT) / 2 if symmetric else D)


def heads_of(kind: str, H: int, d: int) -> Any:
    if kind == "ou":
        D0 = matrices(H, d, symmetric=True)
        return jko.OrnsteinUhlenbeckHeads(D0, dt=0.01, t1=9.0, seed=2)
    if kind == "oscillating":
        return jko.OscillatingHeads(matrices(H, d, symmetric=True), dt=0.01, t1=9.0, phases="spread")
    return jko.ConstantHeads(matrices(H, d, symmetric=kind == "symmetric"))


def solved(
    measure: jko.ParticleMeasure,
    energy: Any,
    metric: Any,
    scheme: Any,
    steps: int,
    *,
    manifold: Any = None,
    **more: Any,
) -> jko.Solution:
    flow = jko.GradientFlow(energy, metric=metric, manifold=manifold or jko.Sphere())
    return jko.solve(flow, measure, scheme, t1=steps * scheme.tau, throw=False, **more)


def attention_cases() -> Iterator[Case]:
    """Three metrics, both signs, head laws, numbers of heads, weights, precisions, step sizes."""
    laws = ("symmetric", "general", "ou", "oscillating")
    for metric, sign, law, H in product(METRICS, (1, -1), laws, (1, 3)):
        small = (law, H, sign) in (("ou", 3, 1), ("general", 3, -1))

        def run(metric: str = metric, sign: int = sign, law: str = law, H: int = H) -> jko.Solution:
            energy = jko.AttentionEnergy(heads_of(law, H, 3), sign=sign)
            return solved(tokens(12, 3), energy, METRICS[metric](), jko.JKO(0.02), 4)

        yield Case(f"{metric} {sign:+d} {law} H={H}", small, run)
    for metric, kind, sign in product(METRICS, ("unequal", "tracers", "float32", "n1", "d2", "d8", "large"), (1, -1)):

        def run_kind(metric: str = metric, kind: str = kind, sign: int = sign) -> jko.Solution:
            d = {"d2": 2, "d8": 8}.get(kind, 3)
            measure = tokens(1 if kind == "n1" else 15, d, unequal=kind != "n1", tracers=kind == "tracers")
            if kind == "float32":
                measure = measure.to(dtype=torch.float32)
            energy = jko.AttentionEnergy(heads_of("general" if sign == 1 else "ou", 3, d), sign=sign)
            return solved(measure, energy, METRICS[metric](), jko.JKO(0.7 if kind == "large" else 0.03), 3)

        yield Case(f"{metric} {kind} {sign:+d}", kind in ("tracers", "float32") and sign == 1, run_kind)


def minimizer_cases() -> Iterator[Case]:
    """Every minimizer and every check, checks that fail included."""
    makers = {
        "anderson": jko.Anderson,
        "plain anderson": lambda: jko.Anderson(newton=False, carry=0, memory=3),
        "trust": jko.TrustNewton,
        "lbfgs": lambda: jko.TorchOptimizer(torch.optim.LBFGS, lr=1.0),
        "adam": lambda: jko.TorchOptimizer(torch.optim.Adam, lr=0.3, max_steps=400, rtol=1e-4),
        "impatient": lambda: jko.Anderson(max_passes=2),
    }
    for (name, make), metric, tracers in product(makers.items(), METRICS, (False, True)):

        def run(make: Any = make, metric: str = metric, tracers: bool = tracers) -> jko.Solution:
            energy = jko.AttentionEnergy(heads_of("ou", 2, 3), sign=1)
            measure = tokens(10, 3, unequal=True, tracers=tracers)
            scheme = jko.JKO(0.02, minimizer=make(), fallback=None)
            return solved(measure, energy, METRICS[metric](), scheme, 3)

        yield Case(f"{name} {metric} tracers={tracers}", tracers, run)
    for metric, sign in product(METRICS, (1, -1)):

        def run_checks(metric: str = metric, sign: int = sign) -> jko.Solution:
            energy = jko.AttentionEnergy(heads_of("symmetric", 2, 3), sign=sign)
            checks = (
                jko.DeGiorgi(),
                jko.LocalMinimality(),
                jko.Splitting(samples=100, iterations=15),
                jko.Uniqueness(),
            )
            return solved(tokens(8, 3, unequal=True), energy, METRICS[metric](), jko.JKO(0.02, checks=checks), 2)

        yield Case(f"checks {metric} {sign:+d}", sign == 1, run_checks)


def transport_cases() -> Iterator[Case]:
    """Exact and entropic transport, other supports, and a guess."""
    transports = {
        "exact": ExactOT,
        "debiased": lambda: Sinkhorn(0.05),
        "plain": lambda: Sinkhorn(0.05, debias=False),
    }
    for (name, make), metric, unequal, sphere in product(
        transports.items(), ("W2", "Wm"), (False, True), (True, False)
    ):

        def run(make: Any = make, metric: str = metric, unequal: bool = unequal, sphere: bool = sphere) -> jko.Solution:
            energy = jko.AttentionEnergy(heads_of("symmetric", 2, 3), sign=-1)
            manifold = jko.Sphere() if sphere else jko.Euclidean()
            scheme = jko.JKO(0.05, transport=make())
            return solved(tokens(8, 3, unequal=unequal), energy, METRICS[metric](), scheme, 2, manifold=manifold)

        yield Case(f"{name} {metric} unequal={unequal} sphere={sphere}", unequal and sphere, run)
        if unequal and sphere:

            def run_guess(make: Any = make, metric: str = metric) -> jko.Solution:
                energy = jko.AttentionEnergy(heads_of("symmetric", 2, 3), sign=1)
                scheme = jko.JKO(0.05, transport=make())
                return solved(
                    tokens(8, 3), energy, METRICS[metric](), scheme, 2, guess=tokens(5, 3, unequal=True, seed=9)
                )

            yield Case(f"{name} {metric} guess", name == "exact", run_guess)
    for metric in tuple(METRICS):

        def run_start(metric: str = metric) -> jko.Solution:
            energy = jko.AttentionEnergy(heads_of("general", 2, 3), sign=1)
            return solved(tokens(8, 3), energy, METRICS[metric](), jko.JKO(0.05), 2, guess=tokens(8, 3, seed=9))

        yield Case(f"guess {metric}", True, run_start)


def energy_cases() -> Iterator[Case]:
    """Other energies, sums, scaled ones, R^d."""

    def potential(x: torch.Tensor) -> torch.Tensor:
        return (x**4).sum(-1) / 4 + x[..., 0]

    energies = {
        "potential": lambda: jko.PotentialEnergy(potential),
        "interaction": lambda: jko.InteractionEnergy(jko.GaussianKernel(0.7)),
        "sum": lambda: jko.AttentionEnergy(heads_of("ou", 3, 3)) + 0.5 * jko.PotentialEnergy(potential),
        "scaled": lambda: jko.Scaled(jko.AttentionEnergy(heads_of("general", 2, 3)), lambda t: 1.0 + t),
    }
    for (name, make), metric, sphere in product(energies.items(), METRICS, (True, False)):
        if name in ("potential", "interaction") and metric != "W2":
            continue

        def run(make: Any = make, metric: str = metric, sphere: bool = sphere) -> jko.Solution:
            manifold = jko.Sphere() if sphere else jko.Euclidean()
            measure = tokens(9, 3, unequal=True, tracers=True)
            return solved(measure, make(), METRICS[metric](), jko.JKO(0.05), 3, manifold=manifold)

        yield Case(f"{name} {metric} sphere={sphere}", sphere, run)


def failure_cases() -> Iterator[Case]:
    """Runs that end badly, each with its status."""
    far = jko.ParticleMeasure(30.0 * tokens(5, 3).points)
    line = jko.ParticleMeasure(torch.ones(1, 1, dtype=torch.float64))
    for metric in tuple(METRICS):

        def overflow(metric: str = metric) -> jko.Solution:
            energy = jko.AttentionEnergy(jko.ConstantHeads(torch.eye(3, dtype=torch.float64)[None]))
            return solved(far, energy, METRICS[metric](), jko.JKO(0.1), 2, manifold=jko.Euclidean())

        def unbounded(metric: str = metric) -> jko.Solution:
            energy = jko.AttentionEnergy(jko.ConstantHeads(torch.ones(1, 1, 1, dtype=torch.float64)), sign=-1)
            return solved(line, energy, METRICS[metric](), jko.JKO(0.5), 2, manifold=jko.Euclidean())

        def tight(metric: str = metric) -> jko.Solution:
            energy = jko.AttentionEnergy(heads_of("general", 3, 3), sign=-1)
            scheme = jko.JKO(5.0, minimizer=jko.Anderson(max_passes=8), fallback=jko.TrustNewton(max_passes=20))
            return solved(tokens(10, 3), energy, METRICS[metric](), scheme, 2)

        yield Case(f"overflow {metric}", True, overflow)
        yield Case(f"unbounded {metric}", True, unbounded)
        yield Case(f"few passes {metric}", True, tight)


def cases() -> list[Case]:
    """Return every case."""
    groups = (attention_cases, minimizer_cases, transport_cases, energy_cases, failure_cases)
    return [case for group in groups for case in group()]


def outcome(solution: jko.Solution) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the numbers of a run, and what they are held against exactly."""
    numbers = {"times": solution.times, "points": solution.trajectory.points, "weights": solution.trajectory.weights}
    numbers |= {f"records.{name}": column for name, column in solution.records.numeric().items()}
    numbers |= {f"states.{name}": column for name, column in solution.states.numeric().items()}
    return numbers, {"status": solution.status.name, "failed": solution.failure is not None, "steps": solution.steps}
