"""What a run keeps is a choice: it changes neither the steps nor the records."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import jko
from jko.driver import Checkpoint
from jko.errors import InvalidInput
from tests.runs.kills import differences
from tests.schemes.problems import attention, tokens

FLOW = attention(jko.initial_heads(2, 3, 1) * 0.4)


def run(save: jko.Save, t1: float = 0.95, **options: Any) -> jko.Solution:
    return jko.solve(FLOW, jko.ParticleMeasure(tokens(5)), jko.ExplicitEuler(0.1), t1=t1, save=save, **options)


@pytest.mark.parametrize(
    ("save", "times"),
    [
        (jko.Save(every=4), [0, 0.4, 0.8, 0.95]),
        (jko.Save(times=[0.3, 0.7]), [0.3, 0.7, 0.95]),
        (jko.Save(times=[0.0, 0.31, 0.93]), [0, 0.4, 0.95]),
        (jko.Save(times=[0.95]), [0.95]),
        (jko.Save(clouds=False), [0.95]),
    ],
)
@pytest.mark.parametrize("every", [1, 3, 100])
def test_the_clouds_that_were_asked_for(tmp_path: Path, save: jko.Save, times: list[float], every: int) -> None:
    full, part = run(jko.Save()), run(save)
    assert part.times.tolist() == pytest.approx(times)
    for k, t in enumerate(part.times.tolist()):
        at = full.times.tolist().index(t)
        assert torch.equal(part.measure(k).points, full.measure(at).points)
    assert torch.equal(part.records.energy, full.records.energy)
    written = run(save, checkpoint=Checkpoint(tmp_path, every=every))
    assert differences(written, part) == []
    assert differences(jko.load(tmp_path), part) == []
    assert jko.load(tmp_path).summary() == part.summary()


def test_clouds_leave_the_memory_when_they_are_written(tmp_path: Path) -> None:
    rows = []

    def watch(seen: Any) -> bool:
        chunks = sorted((tmp_path / "chunks").iterdir())
        rows.append(int(chunks[-1].stem[-10:]))
        return False

    run(jko.Save(), stop=watch, checkpoint=Checkpoint(tmp_path, every=2))
    assert rows == [0, 0, 2, 2, 4, 4, 6, 6, 8, 9]


def test_no_clouds_take_no_room(tmp_path: Path) -> None:
    for name, save in (("all", jko.Save()), ("none", jko.Save(clouds=False))):
        jko.solve(
            FLOW,
            jko.ParticleMeasure(tokens(2000)),
            jko.ExplicitEuler(0.1),
            t1=0.5,
            save=save,
            checkpoint=Checkpoint(tmp_path / name, every=2),
        )
    size = {
        name: sum(path.stat().st_size for path in (tmp_path / name / "chunks").iterdir()) for name in ("all", "none")
    }
    assert size["all"] > 6 * 2000 * 24
    assert size["none"] < 20_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 2, "times": [0.1]}, "give one of every, times and clouds"),
        ({"every": 2, "clouds": False}, "give one of"),
        ({"times": []}, "at least one time"),
        ({"times": 0.1}, "must be a list"),
        ({"times": [float("nan")]}, "must be finite"),
        ({"clouds": 0}, "clouds must be True or False"),
        ({"every": 0}, "every must be at least 1"),
    ],
)
def test_bad_choices_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        jko.Save(**options)


@pytest.mark.parametrize("times", [np.array([0.1, 0.2]), torch.tensor([0.1, 0.2], dtype=torch.float64)])
def test_times_may_be_an_array(times: Any) -> None:
    assert jko.Save(times=times).times == (0.1, 0.2)
    assert jko.Save(times=times).as_data()["times"] == [0.1, 0.2]
    with pytest.raises(InvalidInput, match="must be a list"):
        jko.Save(times=times[None])


def test_times_outside_the_run_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"save asks for t = 1\.0, outside the run"):
        run(jko.Save(times=[1.0]))


def test_xarray_writes_strict_json() -> None:
    pytest.importorskip("xarray")
    told = replace(run(jko.Save()), config={"eps": math.nan}).to_xarray().attrs["config"]
    assert json.loads(told, parse_constant=pytest.fail) == {"eps": None}


def test_xarray(monkeypatch: pytest.MonkeyPatch) -> None:
    xarray = pytest.importorskip("xarray")
    solution = run(jko.Save(every=4))
    data = solution.to_xarray()
    assert isinstance(data, xarray.Dataset)
    assert data.points.dims == ("saved_t", "particle", "coordinate")
    assert data.energy.values.tolist() == solution.states.energy.tolist()
    assert data.step_evaluations.sizes == {"step_t": 10}


def test_xarray_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(jko.MissingDependency, match=r"pip install 'jko\[xarray\]'"):
        run(jko.Save()).to_xarray()
