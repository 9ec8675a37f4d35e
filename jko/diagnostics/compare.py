"""JKO and the explicit scheme from the same measure, on the same head path, in the same metric."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import final

from jko.checks import check_positive
from jko.diagnostics.common_times import common_intervals
from jko.diagnostics.comparison import Comparison, Gap, MetricComparison, Pair
from jko.diagnostics.distances import Distances, distances_over_time
from jko.diagnostics.run import Run
from jko.driver import Save, solve
from jko.energies import AttentionEnergy
from jko.errors import InvalidInput
from jko.flows import GradientFlow
from jko.heads import AbstractHeads
from jko.manifolds import AbstractManifold, Sphere
from jko.measure import ParticleMeasure, check_measure
from jko.metrics import AbstractMetric, HeadwiseWasserstein, Wasserstein2, WeightedWasserstein
from jko.progress import AbstractProgress
from jko.schemes import JKO, AbstractScheme, ExplicitEuler
from jko.solution import Solution
from jko.status import Status

__all__ = ["compare"]

_log = logging.getLogger("jko")


def compare(
    measure: ParticleMeasure,
    heads: AbstractHeads,
    *,
    t1: float,
    taus: Sequence[float],
    metrics: Sequence[AbstractMetric] = (Wasserstein2(), WeightedWasserstein(), HeadwiseWasserstein()),
    sign: int = 1,
    manifold: AbstractManifold | None = None,
    samples: int = 100,
    minimizing: Callable[[float], AbstractScheme] = JKO,
    explicit: Callable[[float], AbstractScheme] = ExplicitEuler,
    progress: AbstractProgress | None = None,
    executor: Executor | None = None,
) -> Comparison:
    """Run both schemes for every metric and tau and measure how far their clouds are apart.

    In one and the same metric the two agree to O(tau). Different metrics have different limits: for H >= 2 heads with
    different mobilities JKO in W_{m,2} does NOT approach the head-wise explicit flow, and the gaps measure it.

    Args:
        measure: the initial measure, unbatched.
        heads: the path t -> D(t); every run sees the same one.
        t1: final time.
        taus: step sizes in any order, each a divisor of t1.
        metrics: the geometries to compare in.
        sign: +1 minimizes E, -1 minimizes -E.
        manifold: where the particles live, by default the unit sphere.
        samples: largest number of common times at which distances are taken, the initial time not counted.
        minimizing: makes the minimizing movement for a tau.
        explicit: makes its explicit peer for a tau.
        progress: told about each run in turn.
        executor: computes the distances while the next run goes on, for instance a `ProcessPoolExecutor`; None
            computes them between the runs.

    Returns:
        The comparison. A run that fails is in it with its status. An interrupt ends the comparison with status
        INTERRUPTED and keeps what is complete.

    Raises:
        InvalidInput: for bad input, before any work.
    """
    plan = _Plan.of(measure, heads, t1, taus, metrics, sign, manifold, samples, (minimizing, explicit), progress)
    entries: list[tuple[AbstractMetric, list[_Drawn]]] = []
    gaps: tuple[Gap, ...] = ()
    unfinished: Solution | None = None
    interrupted = False
    try:
        plan.warm_up()
        for number, (metric, tau) in enumerate(itertools.product(plan.metrics, plan.taus)):
            if tau == plan.taus[0]:
                entries.append((metric, []))
            runs: list[Run] = []
            for scheme in (make(tau) for make in plan.factories):
                runs.append(plan.run(metric, scheme, tau, 2 * number + len(runs) + 1))
                if runs[-1].solution.status is Status.INTERRUPTED:
                    unfinished = runs[-1].solution
                    raise KeyboardInterrupt
            distances = distances_over_time(runs[0].solution, runs[1].solution, plan.manifold, executor)
            entries[-1][1].append(_Drawn(tau, runs[0], runs[1], distances))
        gaps = plan.gaps(entries, executor)
    except KeyboardInterrupt:
        interrupted = True
    done = tuple(MetricComparison(metric, _pairs(drawn)) for metric, drawn in entries if drawn)
    bad = [pair.status for entry in done for pair in entry.pairs if not pair.complete]
    return Comparison(
        sign=plan.energy.sign,
        num_heads=heads.num_heads,
        n=measure.n,
        d=measure.d,
        t1=plan.t1,
        energy=plan.energy.description,
        metrics=done,
        gaps=gaps,
        status=Status.INTERRUPTED if interrupted else bad[0] if bad else Status.SUCCESS,
        unfinished=unfinished,
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """The runs of a comparison, validated."""

    measure: ParticleMeasure
    energy: AttentionEnergy
    manifold: AbstractManifold
    metrics: tuple[AbstractMetric, ...]
    taus: tuple[float, ...]
    t1: float
    intervals: int
    factories: tuple[Callable[[float], AbstractScheme], Callable[[float], AbstractScheme]]
    progress: AbstractProgress | None

    @staticmethod
    def of(
        measure: ParticleMeasure,
        heads: AbstractHeads,
        t1: float,
        taus: Sequence[float],
        metrics: Sequence[AbstractMetric],
        sign: int,
        manifold: AbstractManifold | None,
        samples: int,
        factories: tuple[Callable[[float], AbstractScheme], Callable[[float], AbstractScheme]],
        progress: AbstractProgress | None,
    ) -> _Plan:
        check_measure(measure)
        steps = tuple(sorted((check_positive(tau, "tau") for tau in taus), reverse=True))
        if not steps or not metrics:
            raise InvalidInput("a comparison needs at least one tau and one metric")
        for values, name in ((steps, "tau"), ([metric.title for metric in metrics], "metric")):
            if len(set(values)) < len(values):
                raise InvalidInput(f"every {name} may be given once, got {list(values)}")
        energy = AttentionEnergy(heads, sign)
        space = Sphere() if manifold is None else manifold
        space.check(measure.points)
        intervals = common_intervals(t1, steps, samples)
        if t1 > heads.t1 * (1 + 1e-9):
            raise InvalidInput(f"t1 = {t1!r} lies beyond the end of the head path, {heads.t1!r}")
        if heads.dimension != measure.d:
            raise InvalidInput(f"heads of dimension {heads.dimension} do not fit points in R^{measure.d}")
        return _Plan(measure, energy, space, tuple(metrics), steps, float(t1), intervals, factories, progress)

    def warm_up(self) -> None:
        """Take one step for nothing: the first one in a process pays for imports, and would be timed with them."""
        flow = GradientFlow(self.energy, self.metrics[0], self.manifold)
        self.factories[0](self.taus[-1]).step(flow, self.measure)

    def run(self, metric: AbstractMetric, scheme: AbstractScheme, tau: float, number: int) -> Run:
        total = 2 * len(self.metrics) * len(self.taus)
        label = f"{number}/{total}  tau = {tau:g}  "
        _log.info("run %s%s, %s", label, scheme.title, metric.title)
        start = time.perf_counter()
        solution = solve(
            GradientFlow(self.energy, metric, self.manifold),
            self.measure,
            scheme,
            t1=self.t1,
            save=Save(times=[self.t1 * k / self.intervals for k in range(self.intervals + 1)]),
            progress=None if self.progress is None else _Labeled(self.progress, label),
            throw=False,
            config={"scheme": scheme.title, "metric": metric.title, "tau": tau, "sign": self.energy.sign},
        )
        return Run(solution, time.perf_counter() - start)

    def gaps(self, entries: list[tuple[AbstractMetric, list[_Drawn]]], executor: Executor | None) -> tuple[Gap, ...]:
        """Distances between the runs of different metrics at the finest tau."""
        pending = [
            (first, second, distances_over_time(one, other, self.manifold, executor))
            for first, one, second, other in _crossings(entries)
        ]
        return tuple(Gap(first, second, self.taus[-1], *distances()) for first, second, distances in pending)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Labeled(AbstractProgress):
    """Passes everything on, with the number of the run and its tau in the title."""

    inner: AbstractProgress
    label: str

    def start(self, total: int, title: str) -> None:
        self.inner.start(total, self.label + title)

    def update(self, step: int, t: float, columns: dict[str, float]) -> None:
        self.inner.update(step, t, columns)

    def close(self) -> None:
        self.inner.close()


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """Both runs of one tau, with their distances on the way."""

    tau: float
    jko: Run
    explicit: Run
    distances: Distances


def _pairs(drawn: list[_Drawn]) -> tuple[Pair, ...]:
    pairs: list[Pair] = []
    for item in drawn:
        times, distances = item.distances()
        pair = Pair(item.tau, item.jko, item.explicit, times, distances, None)
        coarser = pairs[-1] if pairs else None
        if coarser and pair.complete and coarser.complete and pair.supremum > 0 and coarser.supremum > 0:
            order = math.log(coarser.supremum / pair.supremum) / math.log(coarser.tau / pair.tau)
            pair = replace(pair, order=order)
        pairs.append(pair)
    return tuple(pairs)


def _crossings(
    entries: list[tuple[AbstractMetric, list[_Drawn]]],
) -> Iterator[tuple[str, Solution, str, Solution]]:
    """JKO against JKO for every two metrics, and JKO in W_{m,2} against the explicit head-wise flow."""
    finest = [(metric, drawn[-1]) for metric, drawn in entries]
    for (first, one), (second, other) in itertools.combinations(finest, 2):
        yield f"JKO, {first.title}", one.jko.solution, f"JKO, {second.title}", other.jko.solution
    for (first, one), (second, other) in itertools.permutations(finest, 2):
        if isinstance(first, WeightedWasserstein) and isinstance(second, HeadwiseWasserstein):
            yield f"JKO, {first.title}", one.jko.solution, f"explicit, {second.title}", other.explicit.solution
