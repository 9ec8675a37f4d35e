from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import final

import pytest
import torch

import jko
from jko.paper import (
    AbstractWorkProgress,
    Geometry,
    Job,
    Regime,
    RichWork,
    Setting,
    collect,
    execute,
    is_finished,
    load_job,
    paper_jobs,
    remaining_seconds,
)
from jko.storage import write_sealed

TINY = {"n": 6, "t1": 0.2, "heads": (1, 3), "paths": 2, "frames": 5}
REGIMES = (Regime.OU, Regime.OSCILLATING_SHARED)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Told(AbstractWorkProgress):
    calls: list = field(default_factory=list)

    def start(self, total, jobs):
        self.calls.append(("start", total, jobs))

    def update(self, done, finished):
        self.calls.append(("update", done, finished))

    def close(self):
        self.calls.append(("close",))


def _numbers(folder, setting):
    data = [collect(folder, setting, regime, setting.heads).as_data() for regime in REGIMES]
    return json.loads(json.dumps(data, allow_nan=False), parse_constant=pytest.fail)


def test_a_rerun_skips_what_is_finished_and_gives_identical_tables(tmp_path):
    setting = Setting.small(**TINY)
    jobs = paper_jobs(setting, REGIMES, setting.heads)
    told = _Told()
    first = execute(jobs, tmp_path, workers=1, progress=told)
    assert (first.skipped, first.computed, first.failed) == (0, len(jobs), ())
    assert told.calls[0] == ("start", pytest.approx(sum(job.work for job in jobs)), len(jobs))
    assert told.calls[-1] == ("close",)
    numbers = _numbers(tmp_path, setting)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(files) == 2 * len(jobs)

    again = execute(jobs, tmp_path, workers=1)
    assert (again.skipped, again.computed) == (len(jobs), 0)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files
    assert _numbers(tmp_path, setting) == numbers


def test_an_interrupted_execution_goes_on_where_it_stopped(tmp_path, monkeypatch):
    setting = Setting.small(**TINY)
    jobs = paper_jobs(setting, REGIMES, setting.heads)
    execute(jobs, tmp_path / "whole", workers=1)

    begun = []
    run = Job.run

    def interrupted(job, progress=None):
        begun.append(job.name)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return run(job, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(jobs, tmp_path / "parts", workers=1)
    assert sum(is_finished(tmp_path / "parts", job) for job in jobs) == 2
    rest = execute(jobs, tmp_path / "parts", workers=1)
    assert (rest.skipped, rest.computed) == (2, len(jobs) - 2)
    for job in jobs:
        one, other = load_job(tmp_path / "whole", job), load_job(tmp_path / "parts", job)
        assert torch.equal(one.clouds, other.clouds)
        assert one.states.keys() == other.states.keys()
        assert all(torch.equal(one.states[name], other.states[name]) for name in one.states)
        assert all(torch.equal(one.steps[name], other.steps[name]) for name in one.steps)


def test_damaged_and_foreign_files_are_computed_again(tmp_path):
    setting = Setting.small(**TINY)
    jobs = [Job(setting, Regime.OU, 1), Job(setting, Regime.OU, 3)]
    execute(jobs, tmp_path, workers=1)
    tensors = tmp_path / f"{jobs[0].name}.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:100])
    entry = tmp_path / f"{jobs[1].name}.json"
    data = json.loads(entry.read_text())
    write_sealed(entry, {**data, "identity": {**data["identity"], "seed": 7}})
    with pytest.raises(jko.RunFolderError, match="safetensors"):
        load_job(tmp_path, jobs[0])
    with pytest.raises(jko.RunFolderError, match="does not describe the job"):
        load_job(tmp_path, jobs[1])
    assert execute(jobs, tmp_path, workers=1).computed == 2
    assert all(is_finished(tmp_path, job) for job in jobs)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_processes_give_the_same_bits(tmp_path):
    setting = Setting.small(**TINY)
    jobs = paper_jobs(setting, [Regime.OU], setting.heads)
    execute(jobs, tmp_path / "one", workers=1)
    told = _Told()
    execution = execute(jobs, tmp_path / "two", workers=2, progress=told)
    assert (execution.computed, execution.failed) == (len(jobs), ())
    for job in jobs:
        one, other = load_job(tmp_path / "one", job), load_job(tmp_path / "two", job)
        assert torch.equal(one.clouds, other.clouds)
        assert all(torch.equal(one.states[name], other.states[name]) for name in one.states)
    assert not list((tmp_path / "two").glob(".*"))


def test_a_failed_job_is_told_and_not_saved(tmp_path):
    # Exponents beyond the range of float32.
    setting = Setting.small(**{**TINY, "dtype": "float32", "sigma2": 1e8})
    bad, good = Job(setting, Regime.OU, 1), Job(setting, Regime.OSCILLATING_SHARED, 1)
    execution = execute([bad, good, good], tmp_path, workers=1)
    assert [failed.job.name for failed in execution.failed] == [bad.name]
    assert execution.failed[0].detail
    assert execution.computed == 1
    assert is_finished(tmp_path, good)
    assert not is_finished(tmp_path, bad)


def test_remaining_time_is_work_over_measured_speed():
    assert remaining_seconds(0.0, 10.0, 5.0) is None
    assert remaining_seconds(2.0, 10.0, 5.0) == pytest.approx(20.0)
    assert remaining_seconds(10.0, 10.0, 5.0) == 0.0
    assert remaining_seconds(11.0, 10.0, 5.0) == 0.0


def test_the_bar_tells_jobs_and_time():
    bar = RichWork()
    bar.start(10.0, 4)
    (task,) = bar.bar.tasks
    bar.update(5.0, 3)
    assert task.fields["jobs"] == "3/4"
    assert task.fields["rest"].startswith("about ")
    assert task.completed == 5.0
    bar.close()
    assert not bar.bar.tasks


def test_work_grows_with_what_it_costs():
    setting = Setting.small()
    small, large = Job(setting, Regime.OU, 1), Job(setting, Regime.OU, 100)
    assert large.work > small.work
    for geometry in Geometry:
        explicit, jko_run = (Job(setting, Regime.OU, 4, 0, geometry, minimizing) for minimizing in (False, True))
        assert jko_run.work > explicit.work
    paper = Setting.as_printed()
    assert Job(paper, Regime.OU, 100).work / Job(paper, Regime.OU, 10).work == pytest.approx(7.23, rel=0.01)
