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
from jko.verify.continuity import weak_form
from jko.verify.movement import existence
from jko.verify.probes import Probe, default_probes
from jko.verify.suite import STATEMENTS, Report, select, verify

__all__ = [
    "STATEMENTS",
    "Curve",
    "Finding",
    "FindingFigure",
    "Measurement",
    "Probe",
    "Relation",
    "Report",
    "Setting",
    "Statement",
    "Verdict",
    "decide",
    "default_probes",
    "existence",
    "select",
    "verify",
    "weak_form",
]
