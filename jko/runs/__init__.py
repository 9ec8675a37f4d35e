"""Run folders: what is saved while a run goes on, and what a run that was cut short continues from."""

from jko.runs.continuation import check_continues, check_same_flow, continued, run_file
from jko.runs.description import compare_config, config_changes, versions
from jko.runs.folder import CHUNKED, UNFINISHED, RunFolder, remove
from jko.runs.inspection import inspect, mend
from jko.runs.inventory import compare_files, digests, identify, locked, new_name, read_inventory, record
from jko.runs.options import Checkpoint, Save
from jko.runs.orphans import end_with_parent
from jko.runs.packing import pack, unpack
from jko.runs.reader import Restored, RunData, read_run, restore
from jko.runs.writer import Row, RunWriter

__all__ = [
    "CHUNKED",
    "UNFINISHED",
    "Checkpoint",
    "Restored",
    "Row",
    "RunData",
    "RunFolder",
    "RunWriter",
    "Save",
    "check_continues",
    "check_same_flow",
    "compare_config",
    "compare_files",
    "config_changes",
    "continued",
    "digests",
    "end_with_parent",
    "identify",
    "inspect",
    "locked",
    "mend",
    "new_name",
    "pack",
    "read_inventory",
    "read_run",
    "record",
    "remove",
    "restore",
    "run_file",
    "unpack",
    "versions",
]
