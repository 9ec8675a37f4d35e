"""What a verification returns: measured numbers beside what theory says, and a verdict computed from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, final

from jko.errors import InvalidInput
from jko.random import check_word

__all__ = ["Curve", "Finding", "FindingFigure", "Measurement", "Relation", "Setting", "Statement", "Verdict", "decide"]


# Further draws take seeds up to this far above the given one.
_SEEDS = 4096


class Verdict(Enum):
    """What a run of a test says about a statement; the value is what tables and files show."""

    HOLDS = "holds"
    RESTRICTED = "holds only under a restriction"
    FAILS = "fails"
    NOT_APPLICABLE = "not applicable"
    NOT_TESTABLE = "not testable numerically"


class Relation(Enum):
    """How a measured number must stand to its reference."""

    AT_MOST = "<="
    AT_LEAST = ">="
    EQUAL = "="
    REPORTED = "reported"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """One measured number beside its reference.

    Attributes:
        name: what was measured, with its unit where it has one.
        value: the measured number.
        reference: the bound or the theory; None for a number that is only reported.
        relation: how the two must stand to each other.
        tolerance: absolute slack, derived from step size and rounding, never chosen by the outcome.
    """

    name: str
    value: float
    reference: float | None = None
    relation: Relation = Relation.REPORTED
    tolerance: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the relation holds within the tolerance; NaN never passes."""
        if self.relation is Relation.REPORTED or self.reference is None:
            return True
        gap = self.value - self.reference
        if self.relation is Relation.AT_MOST:
            return gap <= self.tolerance
        if self.relation is Relation.AT_LEAST:
            return -gap <= self.tolerance
        return abs(gap) <= self.tolerance

    def as_data(self) -> dict[str, Any]:
        """Return plain data for a file; numbers that are not finite become text, since JSON has none."""
        data = {**asdict(self), "relation": self.relation.value, "passed": self.passed}
        return {
            key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in data.items()
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One curve of a figure.

    Attributes:
        label: legend entry.
        x: abscissas.
        y: ordinates.
        reference: drawn as a thin guide (a bound or a theory) instead of measured points.
        joined: whether a line joins the measured points; False for a cloud of them.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    reference: bool = False
    joined: bool = True


@final
@dataclass(frozen=True, slots=True, eq=False)
class FindingFigure:
    """What the figure of a finding shows; drawn by `jko.plotting`, so that verifying needs no matplotlib.

    Attributes:
        title: with sign and metric.
        x_label: with unit.
        y_label: with unit.
        curves: measured and theoretical curves.
        x_log: logarithmic abscissa.
        y_log: logarithmic ordinate.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_log: bool = False
    y_log: bool = False


@final
@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """What was found about one statement.

    Attributes:
        key: short name, unique in a report, for files and options.
        statement: the paper's name of it, such as "Lemma 3.8".
        claim: the statement in one sentence.
        tested: what was tested, on which problem.
        measurements: numbers beside their references.
        verdict: computed from the measurements, see `decide`.
        explanation: why, in a sentence or two; for a failure the smallest counterexample in numbers.
        figure: what to draw.
        expected: the verdict that theory predicts. Some statements of the paper fail for several heads; a run is in
            order when every verdict is the expected one.
    """

    key: str
    statement: str
    claim: str
    tested: str
    measurements: tuple[Measurement, ...]
    verdict: Verdict
    explanation: str = ""
    figure: FindingFigure | None = None
    expected: Verdict = Verdict.HOLDS

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the one that theory predicts."""
        return self.verdict is self.expected

    @property
    def main(self) -> Measurement | None:
        """The measurement that a table shows: the first that did not pass, else the first with a reference."""
        judged = [m for m in self.measurements if m.relation is not Relation.REPORTED]
        failed = [m for m in judged if not m.passed]
        return next(iter([*failed, *judged, *self.measurements]), None)

    def as_data(self) -> dict[str, Any]:
        """Return plain data for `verify.json`, the figure left out."""
        return {
            "key": self.key,
            "statement": self.statement,
            "claim": self.claim,
            "tested": self.tested,
            "verdict": self.verdict.value,
            "expected": self.expected.value,
            "as_expected": self.as_expected,
            "explanation": self.explanation,
            "measurements": [measurement.as_data() for measurement in self.measurements],
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """How large and how random a verification is.

    Attributes:
        quick: the small mode of every test: about a minute for all of them.
        seed: of every random draw, with the few thousand seeds above it.

    Raises:
        InvalidInput: for a seed that is none, or leaves no room above it.
    """

    quick: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_word(check_word(self.seed, "seed") + _SEEDS, f"seed + {_SEEDS}")

    def choose(self, quick: Any, full: Any) -> Any:
        """Return the first value in the quick mode, the second in a full run."""
        return quick if self.quick else full


@final
@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """One row of the suite: a test by name, which may return several findings.

    Attributes:
        key: short name for options and progress.
        title: what the paper calls it.
        run: the test.
    """

    key: str
    title: str
    run: Callable[[Setting], tuple[Finding, ...]]


def decide(
    measurements: tuple[Measurement, ...], *, expected_to_fail: tuple[Measurement, ...] = (), restriction: str = ""
) -> Verdict:
    """Compute the verdict from numbers.

    Args:
        measurements: what must pass for the statement to hold.
        expected_to_fail: what the statement claims outside its restriction; if the statement were true everywhere
            these would pass too.
        restriction: under which the statement was tested by `measurements`.

    Returns:
        HOLDS when everything passed; RESTRICTED when `measurements` passed, and there is a restriction outside of
        which something did not; FAILS when one of `measurements` did not pass.

    Raises:
        InvalidInput: when nothing was measured.
    """
    judged = [m for m in measurements if m.relation is not Relation.REPORTED]
    if not judged:
        raise InvalidInput("a verdict needs at least one measurement with a reference")
    if not all(measurement.passed for measurement in judged):
        return Verdict.FAILS
    outside = [m for m in expected_to_fail if not m.passed]
    return Verdict.RESTRICTED if restriction and outside else Verdict.HOLDS
