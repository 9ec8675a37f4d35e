from __future__ import annotations

import pickle

import pytest
import torch

import jko
from jko.paper import Geometry, Job, Regime, Setting, flow_jobs, paper_jobs


def test_settings_of_the_text_and_of_the_code():
    printed, released = Setting.as_printed(), Setting.as_released()
    assert (printed.n, printed.dt, printed.t1, printed.paths, printed.heads) == (300, 0.01, 20.0, 20, (1, 10, 100))
    assert (released.n, released.dt, released.t1, released.paths) == (200, 0.005, 20.0, 10)
    assert (printed.sign, released.sign, printed.sigma2) == (1, 1, 1.0)
    assert (printed.window, released.window) == (2.5, 10.0)
    assert printed.windows == (2.5, 0.0, 10.0)
    assert released.windows == (10.0, 0.0, 2.5)
    assert (printed.steps, released.steps, printed.keep_every) == (2000, 4000, 20)
    assert Setting.as_released(t1=8.0).window == 4.0
    # Snapshots of Figure 1 are among the kept clouds.
    assert all(t * 100 % printed.keep_every == 0 for t in (16, 18, 20))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n must be"),
        ({"dimension": 1}, "dimension must be"),
        ({"paths": 0}, "paths must be"),
        ({"dt": 0.0}, "dt must be"),
        ({"t1": 1.005}, "multiple of dt"),
        ({"t1": 0.001}, "multiple of dt"),
        ({"heads": ()}, "increasing numbers of heads"),
        ({"heads": (10, 1)}, "increasing numbers of heads"),
        ({"heads": (0, 1)}, "heads must be"),
        ({"sign": 2}, "sign must be"),
        ({"dtype": "float16"}, "dtype must be"),
        ({"device": "abacus"}, "cannot be used here"),
        ({"window": 20.0}, "must lie before t1"),
        ({"seed": -1}, "seed must be"),
        ({"sigma2": float("nan")}, "sigma2"),
    ],
)
def test_bad_numbers_are_refused(changes, message):
    with pytest.raises(jko.InvalidInput, match=message):
        Setting(**changes)


def test_jobs_of_the_figures_and_of_the_comparison():
    setting = Setting.small()
    jobs = paper_jobs(setting, [Regime.OU, Regime.OSCILLATING_SHARED], setting.heads)
    assert len(jobs) == 3 * 3 + 3
    flows = flow_jobs(setting, list(Regime))
    assert len(flows) == 3 * 3 * 6
    # The explicit head-wise runs on the first path are shared.
    assert {job.name for job in jobs} & {job.name for job in flows} == {job.name for job in jobs if job.path == 0}


def test_another_job_has_another_name():
    setting = Setting.small()
    jobs = [
        Job(setting, Regime.OU, 1),
        Job(setting, Regime.OU, 4),
        Job(setting, Regime.OU, 1, path=1),
        Job(setting, Regime.OSCILLATING_SHARED, 1),
        Job(setting, Regime.OSCILLATING_SPREAD, 1),
        Job(setting, Regime.OU, 1, geometry=Geometry.WEIGHTED),
        Job(setting, Regime.OU, 1, minimizing=True),
        *(
            Job(Setting.small(**change), Regime.OU, 1)
            for change in ({"n": 7}, {"sign": -1}, {"seed": 1}, {"dimension": 2}, {"dtype": "float32"}, {"t1": 2.2})
        ),
    ]
    assert len({job.name for job in jobs}) == len(jobs)
    # More paths or other H make no other job: what is finished stays valid.
    assert Job(Setting.small(paths=9, heads=(1, 2)), Regime.OU, 1).name == jobs[0].name
    copy = pickle.loads(pickle.dumps(jobs[2]))
    assert copy.name == jobs[2].name


def test_streams_are_independent_and_nested():
    setting = Setting.small()
    first, second = (setting.make_heads(Regime.OU, 4, path) for path in (0, 1))
    assert torch.equal(first.at(0.0), second.at(0.0))
    end = setting.t1
    assert not torch.isclose(first.at(end), second.at(end)).any()
    # The first heads of a larger H are those of a smaller one, on every path.
    larger = setting.make_heads(Regime.OU, 16, 1)
    assert torch.equal(larger.at(end)[:4], second.at(end))
    # Increments of different paths and heads are uncorrelated: |r| below 4.5 / sqrt(N) for all pairs.
    noise = torch.stack([setting.make_heads(Regime.OU, 4, path).nodes.values.diff(dim=0) for path in range(4)])
    rows = noise[..., 0, 1].permute(0, 2, 1).flatten(0, 1)
    correlation = torch.corrcoef(rows) - torch.eye(len(rows), dtype=torch.float64)
    assert float(correlation.abs().max()) <= 4.5 / rows.shape[1] ** 0.5


def test_phases_and_tokens():
    setting = Setting.small(dimension=5)
    shared = setting.make_heads(Regime.OSCILLATING_SHARED, 4, 0)
    spread = setting.make_heads(Regime.OSCILLATING_SPREAD, 4, 0)
    assert torch.equal(shared.at(0.0), spread.at(0.0))
    assert torch.equal(shared.at(setting.t1)[0], spread.at(setting.t1)[0])
    assert not torch.isclose(shared.at(setting.t1)[1:], spread.at(setting.t1)[1:]).all()
    measure = setting.measure()
    assert measure.points.shape == (setting.n, 5)
    assert Setting.small(dtype="float32").measure().points.dtype == torch.float32
