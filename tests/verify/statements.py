"""Running statements of the suite in their quick mode."""

from __future__ import annotations

from jko.verify import Finding, Setting, select


def run(key: str, seed: int = 0) -> dict[str, Finding]:
    """Findings of a statement by key."""
    (statement,) = select([key])
    return {finding.key: finding for finding in statement.run(Setting(quick=True, seed=seed))}


def assert_as_expected(findings: dict[str, Finding]) -> None:
    for finding in findings.values():
        failed = [m for m in finding.measurements if not m.passed]
        assert finding.as_expected, (finding.key, finding.verdict, failed)
        assert finding.claim
        assert finding.tested
        assert finding.figure is not None
        assert all(len(curve.x) == len(curve.y) > 0 for curve in finding.figure.curves)
