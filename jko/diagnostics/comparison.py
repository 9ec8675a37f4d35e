"""The result of a comparison: distances between runs, orders, energies, and the statements that were checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from jko.diagnostics.run import Run
from jko.metrics import AbstractMetric
from jko.solution import Solution
from jko.status import Status

__all__ = ["Check", "Comparison", "Gap", "MetricComparison", "Pair"]

# Two runs whose clouds agree this well differ by the tolerance of the steps and by rounding, not by tau.
_FLOOR = 1e-6
_LEDGER = 1e-9


@final
@dataclass(frozen=True, slots=True, eq=False)
class Gap:
    """How far two runs of different metrics are apart over time.

    Attributes:
        first: title of one run.
        second: title of the other.
        tau: step size of both.
        times: the common times, shape (S,).
        distances: exact W_2 between the clouds there, shape (S,).
    """

    first: str
    second: str
    tau: float
    times: Tensor
    distances: Tensor

    @property
    def supremum(self) -> float:
        """The largest distance."""
        return float(self.distances.max())

    def numbers(self) -> dict[str, Any]:
        """Return the gap as plain data."""
        return {
            "first": self.first,
            "second": self.second,
            "tau": self.tau,
            "sup_distance": self.supremum,
            "t_sup": float(self.times[self.distances.argmax()]),
            "final_distance": float(self.distances[-1]),
            "times": self.times.tolist(),
            "distances": self.distances.tolist(),
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """JKO and the explicit scheme from the same measure, on the same head path, in the same metric, with one tau.

    Attributes:
        tau: step size of both.
        jko: the minimizing movement.
        explicit: the explicit scheme.
        times: the common times that both runs reached, shape (S,).
        distances: exact W_2 between the two clouds there, shape (S,).
        order: observed order against the next larger tau; None for the largest tau, or where a run ended early.
    """

    tau: float
    jko: Run
    explicit: Run
    times: Tensor
    distances: Tensor
    order: float | None

    @property
    def supremum(self) -> float:
        """The largest distance over the common times."""
        return float(self.distances.max())

    @property
    def complete(self) -> bool:
        """Whether both runs ended well."""
        return self.jko.solution.status.ok and self.explicit.solution.status.ok

    @property
    def status(self) -> Status:
        """The first status that is not ok, the minimizing movement's before the explicit one's."""
        first = self.jko.solution.status
        return self.explicit.solution.status if first.ok else first

    def numbers(self) -> dict[str, Any]:
        """Return the pair as plain data."""
        return {
            "tau": self.tau,
            "status": self.status.value,
            "sup_distance": self.supremum,
            "t_sup": float(self.times[self.distances.argmax()]),
            "order": self.order,
            "times": self.times.tolist(),
            "distances": self.distances.tolist(),
            "jko": self.jko.numbers(),
            "explicit": self.explicit.numbers(),
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class MetricComparison:
    """All step sizes of one metric, the largest first.

    Attributes:
        metric: the metric.
        pairs: one pair of runs per tau.
    """

    metric: AbstractMetric
    pairs: tuple[Pair, ...]

    @property
    def title(self) -> str:
        """Name of the metric."""
        return self.metric.title

    @property
    def finest(self) -> Pair:
        """The pair with the smallest tau."""
        return self.pairs[-1]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """A statement about the runs, and whether it held.

    Attributes:
        statement: what was checked.
        held: the verdict.
        detail: the numbers behind it.
    """

    statement: str
    held: bool
    detail: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """JKO against the explicit scheme, in every metric and for every tau.

    Attributes:
        sign: +1 minimizes E, -1 minimizes -E.
        num_heads: H.
        n: number of particles.
        d: ambient dimension.
        t1: final time.
        energy: description of the energy, with the method of its pair sums.
        metrics: one entry per metric; shorter than asked for where the comparison was interrupted.
        gaps: distances between runs of different metrics at the finest tau.
        status: INTERRUPTED where the comparison was, else the first status of a run that is not ok, else SUCCESS.
        unfinished: the run that an interrupt cut short, if it had begun.
    """

    sign: int
    num_heads: int
    n: int
    d: int
    t1: float
    energy: str
    metrics: tuple[MetricComparison, ...]
    gaps: tuple[Gap, ...]
    status: Status
    unfinished: Solution | None = None

    @property
    def checks(self) -> tuple[Check, ...]:
        """The statements that must hold for runs that ended well; they depend on nothing that is tuned.

        Motion and time part add up to the energy change; no JKO step raises its objective; and in one and the same
        metric the distance between JKO and explicit falls with tau, unless it is at rounding already.
        """
        found = []
        for entry in self.metrics:
            good = [pair for pair in entry.pairs if pair.complete]
            if not good:
                continue
            precise = good[0].jko.solution.points.element_size() == 8
            allowed = _LEDGER if precise else 1e-4
            ledger = max(max(pair.jko.ledger_gap, pair.explicit.ledger_gap) for pair in good)
            found.append(
                Check(
                    f"{entry.title}: motion part + time part = energy change",
                    ledger <= allowed,
                    f"largest relative gap {ledger:.1e}",
                )
            )
            rises = [pair.jko.objective_rise for pair in good if pair.jko.objective_rise is not None]
            if rises:
                found.append(
                    Check(
                        f"{entry.title}: no JKO step raises its objective",
                        max(rises) <= allowed,
                        f"largest relative change {max(rises):.1e}",
                    )
                )
            for pair in good:
                if pair.order is not None:
                    small = pair.supremum <= (_FLOOR if precise else 1e-3)
                    found.append(
                        Check(
                            f"{entry.title}: JKO and explicit approach each other down to tau = {pair.tau:g}",
                            pair.order > 0 or small,
                            f"sup W_2 = {pair.supremum:.3e}, observed order {pair.order:.2f}",
                        )
                    )
        return tuple(found)

    def numbers(self) -> dict[str, Any]:
        """Return every number of the comparison as plain data."""
        return {
            "sign": self.sign,
            "num_heads": self.num_heads,
            "n": self.n,
            "d": self.d,
            "t1": self.t1,
            "energy": self.energy,
            "status": self.status.value,
            "advice": self.status.advice,
            "metrics": [
                {
                    "metric": entry.title,
                    "pairs": [pair.numbers() for pair in entry.pairs],
                    "covariance_defect": _defect(entry.finest),
                }
                for entry in self.metrics
            ],
            "gaps": [gap.numbers() for gap in self.gaps],
            "checks": [
                {"statement": check.statement, "held": check.held, "detail": check.detail} for check in self.checks
            ],
        }


def _defect(pair: Pair) -> dict[str, float] | None:
    states = pair.jko.solution.states
    if "covariance_defect" not in states:
        return None
    column = states["covariance_defect"]
    return {"initial": float(column[0]), "largest": float(column.max()), "final": float(column[-1])}
