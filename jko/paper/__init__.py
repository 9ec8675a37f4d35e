"""The numerical section of the paper: settings, jobs that survive anything, statistics, and what they show."""

from jko.paper.comparison import Distance, FlowsEntry, FlowsResult, Movement, collect_flows, flow_jobs
from jko.paper.execute import Execution, Failed, execute
from jko.paper.job import Geometry, Job, JobResult
from jko.paper.ledgers import Ledgers
from jko.paper.progress import AbstractWorkProgress, RichWork, remaining_seconds
from jko.paper.results import HeadsResult, RegimeResult, collect, paper_jobs
from jko.paper.setting import SNAPSHOTS, Regime, Setting
from jko.paper.statistics import Band, Estimate, PowerLaw, PowerLaws, fit_power_laws, pearson, window_mean
from jko.paper.store import is_finished, load_job, save_job

__all__ = [
    "SNAPSHOTS",
    "AbstractWorkProgress",
    "Band",
    "Distance",
    "Estimate",
    "Execution",
    "Failed",
    "FlowsEntry",
    "FlowsResult",
    "Geometry",
    "HeadsResult",
    "Job",
    "JobResult",
    "Ledgers",
    "Movement",
    "PowerLaw",
    "PowerLaws",
    "Regime",
    "RegimeResult",
    "RichWork",
    "Setting",
    "collect",
    "collect_flows",
    "execute",
    "fit_power_laws",
    "flow_jobs",
    "is_finished",
    "load_job",
    "paper_jobs",
    "pearson",
    "remaining_seconds",
    "save_job",
    "window_mean",
]
