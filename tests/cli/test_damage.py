"""A folder with a spoilt file shows all that was written, or names what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.damage import KINDS, Place, build, call, measure, quick_figures

import jko
from jko.storage import write_sealed


@pytest.fixture(scope="module", autouse=True)
def no_slow_files() -> Iterator[None]:
    with quick_figures():
        yield


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    top = tmp_path_factory.mktemp("folders")
    return {kind: build(kind, top / kind) for kind in KINDS}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_command_shows_less_than_was_written_without_a_word(places: dict[str, Place], kind: str) -> None:
    """Forty spoilt files of each kind; `python tests/cli/damage.py --count 200` does more."""
    ways, silent = measure(places[kind], 40, 1)
    assert sum(ways.values()) == 40
    assert not silent, "\n".join(silent)


def test_a_run_without_its_last_chunk_names_the_steps_and_is_resumed(places: dict[str, Place]) -> None:
    folder = _copy(places["run"])
    last = max((folder / "chunks").iterdir())
    last.unlink()
    damaged = jko.load(folder)
    assert (damaged.status, damaged.status.ok) == (jko.Status.DAMAGED, False)
    assert "of 10 lost" in str(damaged.failure)
    status, out, _ = call("info", folder)
    assert status == 4
    assert "damaged: run.json says success, and steps of the run are lost" in out
    assert f"jko resume {folder}` computes lost steps again" in out
    assert call("plot", folder)[0] == 4
    assert call("resume", folder, "-q")[0] == 0
    assert last.exists()
    assert jko.load(folder).status is jko.Status.SUCCESS
    assert call("info", folder)[0] == 0


def test_even_the_initial_state_is_written_again(places: dict[str, Place]) -> None:
    folder = _copy(places["run"])
    min((folder / "chunks").iterdir()).unlink()
    with pytest.raises(jko.RunDamaged, match="has no file of step 0"):
        jko.load(folder)
    assert call("resume", folder, "-q")[0] == 0
    mended, whole = jko.load(folder), jko.load(places["run"].whole)
    assert mended.states.energy.tolist() == whole.states.energy.tolist()
    assert mended.times.tolist() == whole.times.tolist()


def test_every_missing_file_of_a_saved_solution_is_named(places: dict[str, Place]) -> None:
    folder = _copy(places["solution"])
    for name in ("records.safetensors", "trajectory.safetensors"):
        (folder / name).unlink()
    with pytest.raises(jko.RunDamaged, match=r"records\.safetensors is missing; .*trajectory\.safetensors is missing"):
        jko.load(folder)


def test_a_missing_run_of_a_sweep_is_named_and_nothing_is_drawn(places: dict[str, Place]) -> None:
    folder = _copy(places["sweep"])
    (folder / "runs" / "H1" / "run.json").unlink()
    status, _, err = call("plot", folder)
    assert status == 4
    assert "has lost runs/H1/run.json" in err


def test_a_figure_that_is_older_than_the_run_is_named_until_it_is_drawn_again(places: dict[str, Place]) -> None:
    folder = _copy(places["run"])
    solution = jko.load(folder)
    whole = json.loads((folder / "run.json").read_text())
    write_sealed(folder / "run.json", {**whole, "written": {}})
    status, out, _ = call("info", folder)
    assert status == 4
    assert "energy.png is older than the run" in out
    assert jko.load(folder).steps == solution.steps
    assert call("resume", folder, "-q")[0] == 0
    assert call("info", folder)[0] == 0


@pytest.mark.parametrize("kind", ["run", "solution"])
def test_folders_of_the_version_before_are_read(places: dict[str, Place], kind: str) -> None:
    folder = _copy(places[kind])
    run = json.loads((folder / "run.json").read_text())
    new = ("digest", "written", "checkpoints") + (("run",) if kind == "solution" else ())
    (folder / "run.json").write_text(json.dumps({key: value for key, value in run.items() if key not in new}))
    assert jko.load(folder).status is jko.Status.SUCCESS
    assert call("info", folder)[0] == 0
    assert call("plot", folder)[0] == 0


def _copy(place: Place) -> Path:
    """A whole copy, under the name that `measure` spoils."""
    place.renew()
    return place.root / "spoilt"
