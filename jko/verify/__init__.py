"""Verification of the minimizing-movement construction: numbers beside theory, with verdicts."""

from jko.verify.base import (
    Curve,
    Finding,
    FindingFigure,
    Measurement,
    Relation,
    Setting,
    Statement,
    Verdict,
    decide,
)
from jko.verify.suite import STATEMENTS, Report, select, verify

__all__ = [
    "STATEMENTS",
    "Curve",
    "Finding",
    "FindingFigure",
    "Measurement",
    "Relation",
    "Report",
    "Setting",
    "Statement",
    "Verdict",
    "decide",
    "select",
    "verify",
]
