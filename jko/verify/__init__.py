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

__all__ = ["Curve", "Finding", "FindingFigure", "Measurement", "Relation", "Setting", "Statement", "Verdict", "decide"]
