"""The suite: every statement by its key, and a report of what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

from jko.errors import InvalidInput, JKOError, SolveFailed
from jko.runs import versions
from jko.status import Status
from jko.verify import (
    construction,
    continuity,
    gradients,
    identity,
    ledger,
    limits,
    longtime,
    metric,
    minimizers,
    mutations,
    refinement,
    rest,
    second_order,
    stability,
)
from jko.verify.base import Finding, Setting, Statement, Verdict

__all__ = ["STATEMENTS", "Report", "select", "verify"]

STATEMENTS: tuple[Statement, ...] = (
    *metric.STATEMENTS,
    *minimizers.STATEMENTS,
    *construction.STATEMENTS,
    *continuity.STATEMENTS,
    *second_order.STATEMENTS,
    *limits.STATEMENTS,
    *gradients.STATEMENTS,
    *identity.STATEMENTS,
    *ledger.STATEMENTS,
    *longtime.STATEMENTS,
    *rest.STATEMENTS,
    *stability.STATEMENTS,
    *refinement.STATEMENTS,
    *mutations.STATEMENTS,
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What a run of the suite found.

    Attributes:
        findings: in the order of the suite.
        setting: size and seed.
        timings: seconds that each finished statement took, by key.
        status: SUCCESS when every statement asked for was tested, INTERRUPTED when the run was ended before.
    """

    findings: tuple[Finding, ...]
    setting: Setting
    timings: Mapping[str, float]
    status: Status

    @property
    def unexpected(self) -> tuple[Finding, ...]:
        """The findings whose verdict is not the one that theory predicts."""
        return tuple(finding for finding in self.findings if not finding.as_expected)

    @property
    def seconds(self) -> float:
        """Wall-clock time of the finished statements."""
        return sum(self.timings.values())

    def as_data(self) -> dict[str, Any]:
        """Return plain data for `verify.json`; every number in it is finite."""
        return {
            "status": self.status.value,
            "quick": self.setting.quick,
            "seed": self.setting.seed,
            "seconds": self.seconds,
            "timings": dict(self.timings),
            "versions": versions(),
            "unexpected": [finding.key for finding in self.unexpected],
            "findings": [finding.as_data() for finding in self.findings],
        }


def select(keys: Sequence[str] | None = None) -> tuple[Statement, ...]:
    """Return the statements with these keys, in the order of the suite; None means all of them.

    Raises:
        InvalidInput: for an unknown key, naming those there are.
    """
    known = [statement.key for statement in STATEMENTS]
    if keys is None:
        return STATEMENTS
    if isinstance(keys, str):
        raise InvalidInput(f"keys must be a list of statements, got the text {keys!r}; write [{keys!r}]")
    for key in keys:
        if key not in known:
            raise InvalidInput(f"there is no statement {key!r}; there are {', '.join(known)}")
    return tuple(statement for statement in STATEMENTS if statement.key in keys)


def verify(
    setting: Setting | None = None,
    keys: Sequence[str] | None = None,
    *,
    on_start: Callable[[Statement], None] | None = None,
    on_finding: Callable[[Report], None] | None = None,
) -> Report:
    """Test the statements of the paper one by one.

    A statement whose own run breaks down is reported as not testable, with the reason; an interrupt (Ctrl-C) ends the
    run with what is complete.

    Args:
        setting: size and seed; None means a full run with seed 0.
        keys: which statements; None means all.
        on_start: told before each statement.
        on_finding: told after each finding, with the report so far; the finding is its last one.

    Raises:
        InvalidInput: for an unknown key.
    """
    setting = Setting() if setting is None else setting
    chosen = select(keys)
    findings: list[Finding] = []
    timings: dict[str, float] = {}

    def report(status: Status) -> Report:
        return Report(tuple(findings), setting, MappingProxyType(dict(timings)), status)

    try:
        for statement in chosen:
            if on_start is not None:
                on_start(statement)
            began = time.perf_counter()
            found = _run(statement, setting)
            timings[statement.key] = time.perf_counter() - began
            for finding in found:
                findings.append(finding)
                if on_finding is not None:
                    on_finding(report(Status.STOPPED))
    except KeyboardInterrupt:
        return report(Status.INTERRUPTED)
    return report(Status.SUCCESS)


def _run(statement: Statement, setting: Setting) -> tuple[Finding, ...]:
    try:
        return statement.run(setting)
    except JKOError as error:
        if isinstance(error, SolveFailed) and error.status is Status.INTERRUPTED:
            raise KeyboardInterrupt from error
        return (
            Finding(
                key=statement.key,
                statement=statement.title,
                claim="",
                tested="",
                measurements=(),
                verdict=Verdict.NOT_TESTABLE,
                explanation=f"the test itself broke down: {error}",
            ),
        )
