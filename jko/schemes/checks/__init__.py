"""Further checks of a finished step, on request."""

from jko.schemes.checks.base import AbstractCheck, CheckResult, FinishedStep
from jko.schemes.checks.de_giorgi import DeGiorgi
from jko.schemes.checks.local_minimality import LocalMinimality
from jko.schemes.checks.splitting import Splitting
from jko.schemes.checks.uniqueness import Uniqueness

__all__ = ["AbstractCheck", "CheckResult", "DeGiorgi", "FinishedStep", "LocalMinimality", "Splitting", "Uniqueness"]
