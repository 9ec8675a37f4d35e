"""Solutions: save and load give the same bits, and what is no whole run is refused by name."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

import jko
from jko.errors import InvalidInput, RunFolderError
from jko.solution import FORMAT_VERSION
from tests.schemes.problems import METRICS, attention, tokens

FILES = ["measure.safetensors", "records.safetensors", "run.json", "states.safetensors", "summary.json"]
FILES = sorted([*FILES, "trajectory.safetensors"])
NEEDED = ["records.safetensors", "run.json", "states.safetensors", "trajectory.safetensors"]


def run(metric: str = "weighted", t1: float = 0.3, scheme: object = None, **options: object) -> jko.Solution:
    flow = attention(jko.initial_heads(2, 3, 1) * 0.4, metric)
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0], dtype=torch.float64)
    y = jko.ParticleMeasure(tokens(5), weights)
    return jko.solve(flow, y, scheme or jko.JKO(0.1), t1=t1, **options)


def assert_same(one: jko.Solution, two: jko.Solution) -> None:
    for name in ("times", "points", "weights"):
        a, b = getattr(one, name), getattr(two, name)
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    for table in ("records", "states"):
        a, b = getattr(one, table), getattr(two, table)
        assert set(a) == set(b)
        for name in a:
            if name == "status":
                assert a[name] == b[name]
            else:
                assert torch.equal(a[name], b[name])
    assert one.status is two.status
    assert one.failure == two.failure
    assert one.title == two.title
    assert dict(one.config) == dict(two.config)
    assert one.summary() == two.summary()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scheme", [jko.JKO(0.1), jko.ExplicitEuler(0.1)])
def test_round_trip(tmp_path: Path, metric: str, scheme: object) -> None:
    config = {"n": 5, "metric": metric, "list": [1, 2.5, None, True], "nested": {"x": "ü"}}
    solution = run(metric, scheme=scheme, config=config)
    folder = solution.save(tmp_path / "deep" / "run")
    assert sorted(p.name for p in folder.iterdir()) == FILES
    back = jko.load(folder)
    assert_same(back, solution)
    assert dict(back.config) == config
    assert torch.equal(back.measure(-1).points, solution.measure(-1).points)
    assert back.steps == 3


def test_round_trip_without_steps(tmp_path: Path) -> None:
    solution = run(t1=0)
    assert solution.steps == 0
    assert_same(jko.load(solution.save(tmp_path)), solution)


def test_round_trip_of_a_failure_in_single_precision(tmp_path: Path) -> None:
    flow = attention(torch.ones(1, 1, 1).double(), "w2", -1, jko.Euclidean())
    y = jko.ParticleMeasure(torch.ones(1, 1))
    solution = jko.solve(flow, y, jko.JKO(0.02), t1=1.0, throw=False)
    assert not solution.status.ok
    assert solution.steps >= 1
    back = jko.load(str(solution.save(str(tmp_path))))
    assert_same(back, solution)
    assert back.points.dtype == torch.float32
    assert str(back.failure) == str(solution.failure)


def test_files_are_plain(tmp_path: Path) -> None:
    folder = run().save(tmp_path, summary={"extra": math.inf})
    for path in folder.iterdir():
        data = path.read_bytes()
        if path.suffix == ".json":

            def refuse(constant: str) -> None:
                raise AssertionError(f"{constant} is no JSON")

            json.loads(data, parse_constant=refuse)
        else:
            header = int.from_bytes(data[:8], "little")
            assert json.loads(data[8 : 8 + header])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["extra"] is None
    assert summary["status"] == "success"
    assert summary["steps"] == 3
    described = _without_digests(folder)
    assert described["format"] == FORMAT_VERSION
    assert {"jko", "torch", "python"} <= set(described["versions"])


def test_the_summary_tells_the_run() -> None:
    solution = run()
    summary = solution.summary()
    assert summary["t0"] == 0
    assert summary["t1"] == 0.3
    assert summary["energy_final"] == float(solution.states.energy[-1])
    assert summary["evaluations"] == float(solution.records.evaluations.sum())
    assert summary["residual"] == float(solution.records.residual.max())
    assert summary["certified"] == 1
    assert summary["failure"] is None


@pytest.mark.parametrize("name", NEEDED)
def test_missing_and_broken_files_are_named(tmp_path: Path, name: str) -> None:
    folder = run().save(tmp_path / "run")
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(RunFolderError, match=name.replace(".", r"\.")):
        jko.load(folder)
    for content in (b"", data[: len(data) // 2], b"something else"):
        path.write_bytes(content)
        with pytest.raises(RunFolderError, match=name.replace(".", r"\.")):
            jko.load(folder)
    path.write_bytes(data)
    assert jko.load(folder).steps == 3


@pytest.mark.parametrize("name", ["records.safetensors", "states.safetensors", "trajectory.safetensors"])
def test_files_of_another_run_are_named(tmp_path: Path, name: str) -> None:
    folder = run().save(tmp_path / "run")
    other = run(t1=0.5).save(tmp_path / "other")
    if name == "trajectory.safetensors":
        # Another run of as many saved clouds is a matter of its own; one file in place of another is not.
        shutil.copy(folder / "records.safetensors", folder / name)
    else:
        shutil.copy(other / name, folder / name)
    with pytest.raises(RunFolderError, match=name.replace(".", r"\.")):
        jko.load(folder)


def _without_digests(folder: Path) -> dict[str, object]:
    """What a version before digests would have written into run.json."""
    described = json.loads((folder / "run.json").read_text())
    return {key: value for key, value in described.items() if key not in ("digest", "written")}


@pytest.mark.parametrize(
    "change",
    [
        {"format": FORMAT_VERSION + 1},
        {"format": None},
        {"kind": "sweep"},
        {"status": "excellent"},
        {"step_status": None},
        {"step_status": ["success"]},
        {"step_status": ["fine", "fine", "fine"]},
        {"failure": ["x"]},
        {"failure": {"status": "success"}},
        {"config": None},
    ],
)
def test_a_foreign_description_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    folder = run().save(tmp_path)
    described = _without_digests(folder)
    (folder / "run.json").write_text(json.dumps({**described, **change}))
    with pytest.raises(RunFolderError, match=str(tmp_path)):
        jko.load(folder)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"run"', "{}"])
def test_json_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"run\.json does not describe a single run"):
        jko.load(tmp_path)


@pytest.mark.parametrize("key", ["failure", "status", "title", "config", "step_status"])
def test_a_description_without_a_key_is_refused(tmp_path: Path, key: str) -> None:
    folder = run().save(tmp_path)
    described = _without_digests(folder)
    del described[key]
    (folder / "run.json").write_text(json.dumps(described))
    with pytest.raises(RunFolderError, match=rf"run\.json is incomplete.*{key}"):
        jko.load(folder)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="could not be written"):
        run().save(tmp_path / "file" / "run")
    with pytest.raises(RunFolderError, match=r"run\.json does not exist"):
        jko.load(tmp_path / "nowhere")


def test_the_config_is_a_copy() -> None:
    config = {"inner": [1]}
    solution = run(config=config)
    config["inner"].append(2)
    config["more"] = 3
    assert dict(solution.config) == {"inner": [1]}
    with pytest.raises(TypeError):
        solution.config["more"] = 3
    with pytest.raises(InvalidInput, match="config must hold plain data"):
        run(config={"x": torch.ones(1)})
    with pytest.raises(InvalidInput, match="config must be an instance of dict"):
        run(config=[1])


def test_measures_of_the_solution() -> None:
    solution = run(save=jko.Save(every=2))
    assert solution.times.tolist() == pytest.approx([0.0, 0.2, 0.3])
    assert torch.equal(solution.measure(0).points, tokens(5))
    assert torch.equal(solution.measure(-1).points, solution.points[2])
    assert torch.equal(solution.measure(1).weights, solution.weights)
    with pytest.raises(IndexError):
        solution.measure(3)


def test_device(tmp_path: Path, device: torch.device) -> None:
    flow = attention(jko.initial_heads(2, 3, 1) * 0.4)
    solution = jko.solve(flow, jko.ParticleMeasure(tokens(5)).to(device=device), jko.JKO(0.1), t1=0.2)
    assert solution.points.device.type == device.type
    assert solution.records.energy.device.type == "cpu"
    back = jko.load(solution.save(tmp_path))
    assert torch.equal(back.points, solution.points.cpu())


def test_another_run_is_not_replaced_unasked(tmp_path: Path) -> None:
    solution = run(config={"seed": 1})
    solution.save(tmp_path, summary={"seconds": 1.0})
    assert_same(jko.load(solution.save(tmp_path)), solution)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for other, message in (
        (run(config={"seed": 2}), "config.seed was 1 and is 2 now"),
        (run(t1=0.5, config={"seed": 1}), "summary.steps was 3 and is 5 now"),
    ):
        with pytest.raises(jko.RunFolderError, match=f"holds another run: .*{message}.*overwrite=True"):
            other.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert_same(jko.load(other.save(tmp_path, overwrite=True)), other)


def test_a_checkpointed_run_is_not_mixed_with_a_saved_one(tmp_path: Path) -> None:
    measure = jko.ParticleMeasure(jko.initial_tokens(5, 3, 1))
    flow = jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(jko.initial_heads(2, 3, 1))))
    written = jko.solve(flow, measure, jko.ExplicitEuler(0.1), t1=0.2, checkpoint=jko.Checkpoint(tmp_path))
    with pytest.raises(jko.RunFolderError, match="holds another run"):
        written.save(tmp_path)
    assert jko.load(written.save(tmp_path, overwrite=True)).steps == 2
    assert not list(tmp_path.glob("c*/*"))


def test_a_replacement_that_is_cut_short_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jko import solution as module

    run().save(tmp_path)

    def end(path: Path, content: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_json", end)
    with pytest.raises(KeyboardInterrupt):
        run(t1=0.5).save(tmp_path, overwrite=True)
    with pytest.raises(jko.RunFolderError, match=r"run\.json is missing"):
        jko.load(tmp_path)
