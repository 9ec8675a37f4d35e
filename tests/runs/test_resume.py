"""Runs that are cut short continue bit for bit, and refuse to continue as something else."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import jko
from jko.driver import Checkpoint, resume
from jko.errors import InvalidInput, ResumeMismatch, RunFolderError, SolveFailed
from jko.progress import AbstractProgress
from jko.storage import write_sealed
from tests.runs.kills import differences
from tests.schemes.problems import METRICS

TAU = 0.01
ROOT = Path(__file__).resolve().parents[2]


def flow(t1: float = 0.1, metric: str = "weighted", seed: int = 11, **options: Any) -> jko.GradientFlow:
    D0 = jko.initial_heads(4, 3, 11)
    heads = jko.OrnsteinUhlenbeckHeads(D0, dt=options.pop("dt", TAU), t1=t1, seed=seed)
    return jko.GradientFlow(jko.AttentionEnergy(heads, **options), METRICS[metric])


def cloud(n: int = 32, dtype: torch.dtype = torch.float64) -> jko.ParticleMeasure:
    return jko.ParticleMeasure(jko.initial_tokens(n, 3, 11, dtype=dtype))


def started(folder: Path, steps: int, scheme: Any = None, t1: float = 0.1, **options: Any) -> None:
    """Begin a run and leave it after some steps."""
    given = options.pop("flow", None) or flow(t1)
    options.setdefault("measure", cloud())
    measure = options.pop("measure")
    checkpoint = Checkpoint(folder, every=1)
    with pytest.raises(SolveFailed, match="MAX_STEPS"):
        jko.solve(given, measure, scheme or jko.JKO(TAU), t1=t1, checkpoint=checkpoint, max_steps=steps, **options)


def assert_same(one: jko.Solution, two: jko.Solution) -> None:
    assert differences(one, two) == []
    assert one.status is two.status
    assert one.failure == two.failure
    assert one.title == two.title


# H23: resume differs from an unbroken run


SCHEMES = {
    "jko": jko.JKO,
    "trust": lambda tau: jko.JKO(tau, minimizer=jko.TrustNewton()),
    "ledger": lambda tau: jko.ExplicitEuler(tau, ledger=True),
    "rk4": jko.RK4,
}


@pytest.mark.parametrize(
    ("metric", "name", "dtype", "dt"),
    [
        ("weighted", "jko", torch.float64, TAU),
        ("headwise", "jko", torch.float64, TAU),
        ("w2", "jko", torch.float32, 0.013),
        ("weighted", "ledger", torch.float64, TAU),
        ("headwise", "rk4", torch.float64, 0.013),
        ("w2", "trust", torch.float64, 0.013),
    ],
)
def test_h23_a_resumed_run_is_the_unbroken_one(
    tmp_path: Path, metric: str, name: str, dtype: torch.dtype, dt: float
) -> None:
    scheme, measure = SCHEMES[name](TAU), cloud(dtype=dtype)
    before = torch.get_rng_state()
    whole = jko.solve(flow(0.1, metric, dt=dt), measure, scheme, t1=0.1)
    started(tmp_path / "half", 5, scheme, flow=flow(0.1, metric, dt=dt), measure=measure)
    half = resume(tmp_path / "half", flow(0.1, metric, dt=dt), scheme)
    assert_same(half, whole)
    assert_same(jko.load(tmp_path / "half"), whole)
    started(tmp_path / "ten", 1, scheme, flow=flow(0.1, metric, dt=dt), measure=measure)
    for k in range(2, 11):
        part = resume(tmp_path / "ten", flow(0.1, metric, dt=dt), scheme, max_steps=1, throw=False)
        assert part.steps == k
        assert float(part.states.t[-1]) == float(whole.states.t[k])
    assert_same(part, whole)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", ["chunks", "checkpoints"])
def test_a_finished_run_whose_last_file_is_damaged_is_finished_again(tmp_path: Path, kind: str) -> None:
    whole = jko.solve(flow(), cloud(), jko.JKO(TAU), t1=0.1, checkpoint=Checkpoint(tmp_path, every=1))
    last = max((tmp_path / kind).glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-7])
    damaged = jko.load(tmp_path)
    assert damaged.status is jko.Status.DAMAGED
    assert "step 10 of 10 lost" in str(damaged.failure)
    assert str(last) in str(damaged.failure)
    assert_same(resume(tmp_path, flow(), jko.JKO(TAU)), whole)
    assert_same(jko.load(tmp_path), whole)


@pytest.mark.parametrize("steps", [-1, 1.5, "x"])
def test_steps_of_a_resumed_run_are_a_whole_number(tmp_path: Path, steps: Any) -> None:
    started(tmp_path, 2)
    with pytest.raises(InvalidInput, match="max_steps must be"):
        resume(tmp_path, flow(), jko.JKO(TAU), max_steps=steps)


@pytest.mark.parametrize("first", [0.05, 0.047, 0.07])
def test_h23_a_longer_run_is_the_unbroken_longer_one(tmp_path: Path, first: float) -> None:
    """Also from an end off the grid: 0.047 is none of its times, and 7 * 0.01 is not 0.07."""
    jko.solve(flow(first), cloud(), jko.JKO(TAU), t1=first, checkpoint=Checkpoint(tmp_path / "run", every=3))
    longer = resume(tmp_path / "run", flow(0.1), jko.JKO(TAU), t1=0.1)
    assert_same(longer, jko.solve(flow(0.1), cloud(), jko.JKO(TAU), t1=0.1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": jko.JKO(0.02)}, r"tau was 0\.01 .* is 0\.02 now"),
        ({"scheme": jko.ExplicitEuler(TAU)}, r"scheme\.kind was 'JKO'.* 'ExplicitEuler' now"),
        ({"scheme": jko.JKO(TAU, minimizer=jko.Anderson(1e-6))}, r"scheme\.minimizer\.rtol was None.* is 1e-06 now"),
        ({"flow": flow(seed=12)}, r"flow\.energy\.heads\.seed was 11 .* is 12 now"),
        ({"flow": flow(sign=-1)}, r"flow\.energy\.sign was 1 .* is -1 now"),
        ({"flow": flow(metric="w2")}, r"flow\.metric\.kind was 'WeightedWasserstein'"),
        ({"t1": 0.05}, r"t1 was 0\.1 .* is 0\.05 now; a run can be made longer"),
        ({"config": {"seed": 12, "n": 32}}, r"seed was 11 .* is 12 now"),
        ({"config": {"seed": 11, "n": 32, "d": 4}}, "d was absent .* is 4 now"),
    ],
)
def test_h23_what_is_not_the_same_run_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    started(tmp_path, 2, config={"seed": 11, "n": 32, "solve": {"t1": 0.1}})
    given = {"flow": flow(), "scheme": jko.JKO(TAU), **changes}
    files = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(ResumeMismatch, match=message):
        resume(tmp_path, given.pop("flow"), given.pop("scheme"), **given)
    assert sorted(path.name for path in tmp_path.rglob("*")) == files
    same = {"seed": 11, "n": 32, "solve": {"t1": 0.12}}
    assert resume(tmp_path, flow(0.12), jko.JKO(TAU), t1=0.12, config=same).status.ok


def test_h23_a_flow_with_other_matrices_is_noticed(tmp_path: Path) -> None:
    def constant(seed: int, d: int = 3) -> jko.GradientFlow:
        return jko.GradientFlow(jko.AttentionEnergy(jko.ConstantHeads(jko.initial_heads(2, d, seed))))

    started(tmp_path, 2, flow=constant(1))
    with pytest.raises(ResumeMismatch, match=r"at t = 0\.02 its velocity differs by"):
        resume(tmp_path, constant(2), jko.JKO(TAU))
    with pytest.raises(ResumeMismatch, match=r"does not fit the particles of the run \(n = 32, d = 3\)"):
        resume(tmp_path, constant(1, 4), jko.JKO(TAU))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_runs_continue() -> None:
    """Three kills; `python tests/runs/kills.py --kills 20` does more."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/runs/kills.py"), "--kills", "3", "--seed", "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": identical") == 3


def test_the_comparison_of_runs_can_fail() -> None:
    one = jko.solve(flow(), cloud(8), jko.JKO(TAU), t1=0.02)
    two = jko.solve(flow(seed=12), cloud(8), jko.JKO(TAU), t1=0.02)
    assert "points" in differences(one, two)
    assert "records.energy" in differences(one, two)


# damage


def _spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "changed":
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        shutil.copy(path.parents[2] / "foreign" / path.parent.name / path.name, path)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *(("checkpoints", how) for how in ("truncated", "changed", "empty", "foreign")),
        *(("chunks", how) for how in ("truncated", "changed", "empty", "foreign")),
    ],
)
def test_a_spoilt_file_is_named_and_the_checkpoint_before_it_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, how: str
) -> None:
    scheme = jko.ExplicitEuler(TAU)
    whole = jko.solve(flow(), cloud(), scheme, t1=0.1)
    for name in ("run", "foreign"):
        started(tmp_path / name, 4, scheme)
    last = sorted((tmp_path / "run" / kind).iterdir())[-1]
    _spoil(last, how)
    with caplog.at_level(logging.WARNING, "jko.runs"):
        partial = jko.load(tmp_path / "run")
    assert partial.steps == 3
    assert partial.status is jko.Status.DAMAGED
    assert str(last) in str(partial.failure)
    assert str(last) in caplog.text
    assert_same(resume(tmp_path / "run", flow(), scheme), whole)


def test_without_any_good_checkpoint_every_file_is_named(tmp_path: Path) -> None:
    started(tmp_path, 3, jko.ExplicitEuler(TAU))
    for path in (tmp_path / "checkpoints").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(RunFolderError, match=r"no checkpoint to continue from: .*0000000003.*0000000000"):
        resume(tmp_path, flow(), jko.ExplicitEuler(TAU))


def test_damaged_history_costs_the_steps_but_not_the_run(tmp_path: Path) -> None:
    started(tmp_path, 5, jko.ExplicitEuler(TAU))
    sorted((tmp_path / "chunks").iterdir())[1].unlink()
    whole = jko.solve(flow(), cloud(), jko.ExplicitEuler(TAU), t1=0.1)
    assert_same(resume(tmp_path, flow(), jko.ExplicitEuler(TAU)), whole)


# what ends a run


class _Stops(AbstractProgress):
    def __init__(self, step: int, error: BaseException) -> None:
        self.step, self.error = step, error

    def start(self, total: int, title: str) -> None:
        pass

    def update(self, step: int, t: float, columns: dict[str, float]) -> None:
        if step == self.step:
            raise self.error

    def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_what_is_complete_outlives_interrupts_and_errors(tmp_path: Path, error: BaseException) -> None:
    scheme = jko.ExplicitEuler(TAU)
    options = {"t1": 0.1, "checkpoint": Checkpoint(tmp_path, every=100), "progress": _Stops(4, error)}
    with pytest.raises(SolveFailed if isinstance(error, KeyboardInterrupt) else ZeroDivisionError):
        jko.solve(flow(), cloud(), scheme, **options)
    partial = jko.load(tmp_path)
    assert (partial.steps, partial.status) == (4, jko.Status.INTERRUPTED)
    assert_same(resume(tmp_path, flow(), scheme), jko.solve(flow(), cloud(), scheme, t1=0.1))


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    scheme = jko.ExplicitEuler(TAU)
    run = jko.solve(
        flow(), cloud(), scheme, t1=0.1, stop=lambda seen: seen.step == 3, checkpoint=Checkpoint(tmp_path, every=2)
    )
    assert run.status is jko.Status.STOPPED
    assert jko.load(tmp_path).status is jko.Status.STOPPED
    assert_same(resume(tmp_path, flow(), scheme), jko.solve(flow(), cloud(), scheme, t1=0.1))


def test_a_run_that_fails_fails_again(tmp_path: Path) -> None:
    line = jko.AttentionEnergy(jko.ConstantHeads(torch.ones(1, 1, 1).double()), sign=-1)
    unbounded = jko.GradientFlow(line, jko.Wasserstein2(), jko.Euclidean())
    options = {"t1": 1.0, "throw": False}
    whole = jko.solve(unbounded, jko.ParticleMeasure([[1.0]]), jko.JKO(0.02), **options)
    assert not whole.status.ok
    run = jko.solve(
        unbounded, jko.ParticleMeasure([[1.0]]), jko.JKO(0.02), checkpoint=Checkpoint(tmp_path, every=1), **options
    )
    assert_same(run, whole)
    assert_same(resume(tmp_path, unbounded, jko.JKO(0.02), throw=False), whole)
    json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)


def test_a_run_with_a_guess_begins_again_with_it(tmp_path: Path) -> None:
    guess = cloud().moved(jko.Sphere().exp(cloud().points, -0.02 * flow().velocity(cloud(), 0.0)))
    whole = jko.solve(flow(), cloud(), jko.JKO(TAU), t1=0.03, guess=guess)
    started(tmp_path, 0, t1=0.03, guess=guess)
    assert_same(resume(tmp_path, flow(), jko.JKO(TAU)), whole)
    without = jko.solve(flow(), cloud(), jko.JKO(TAU), t1=0.03)
    assert "points" in differences(without, whole)


# folders


def test_a_folder_with_a_run_is_not_replaced_unasked(tmp_path: Path) -> None:
    started(tmp_path, 2)
    with pytest.raises(RunFolderError, match=r"holds a run already; continue it with jko\.resume"):
        jko.solve(flow(), cloud(), jko.JKO(TAU), t1=0.1, checkpoint=Checkpoint(tmp_path))
    run = jko.solve(flow(), cloud(8), jko.JKO(TAU), t1=0.02, checkpoint=Checkpoint(tmp_path, overwrite=True))
    assert_same(jko.load(tmp_path), run)
    assert run.measure(-1).n == 8


def test_two_processes_cannot_write_to_one_folder(tmp_path: Path) -> None:
    from jko.runs import locked

    started(tmp_path, 2)
    with locked(tmp_path), pytest.raises(RunFolderError, match="is being written by another process"):
        resume(tmp_path, flow(), jko.JKO(TAU))


def test_another_number_of_threads_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    started(tmp_path, 2)
    described = json.loads((tmp_path / "run.json").read_text())
    assert described["threads"] == torch.get_num_threads()
    write_sealed(tmp_path / "run.json", {**described, "threads": 77})
    with caplog.at_level(logging.WARNING, "jko.runs"):
        resume(tmp_path, flow(), jko.JKO(TAU))
    assert "computed with 77 threads" in caplog.text


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="does not exist; is this a run folder"):
        resume(tmp_path / "gone", flow(), jko.JKO(TAU))
    jko.solve(flow(), cloud(), jko.JKO(TAU), t1=0.02).save(tmp_path / "old")
    with pytest.raises(RunFolderError, match="was saved as a whole"):
        resume(tmp_path / "old", flow(), jko.JKO(TAU))
    with pytest.raises(InvalidInput, match="checkpoint must be an instance of Checkpoint"):
        jko.solve(flow(), cloud(), jko.JKO(TAU), t1=0.02, checkpoint=str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="every must be at least 1"):
        Checkpoint(tmp_path, every=0)


def test_nothing_in_a_folder_runs_code(tmp_path: Path) -> None:
    started(tmp_path, 2)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert path.suffix in (".json", ".safetensors")
    for path in tmp_path.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
