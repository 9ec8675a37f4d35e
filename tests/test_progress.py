"""The bar: it draws on what it was given, survives several runs, and always comes down."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

import jko
from jko.progress import AbstractProgress, RichProgress
from tests.schemes.problems import attention, tokens


def bar() -> tuple[RichProgress, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=200)
    columns = (TextColumn("{task.description}"), TextColumn("{task.fields[numbers]}"))
    return RichProgress(Progress(*columns, console=console, transient=True, auto_refresh=False)), stream


def test_it_shows_time_energy_and_residual() -> None:
    progress, _ = bar()
    progress.start(3, "a run")
    progress.update(1, 0.25, {"energy": 1.5, "residual": 2e-9})
    (task,) = progress.bar.tasks
    assert task.description == "a run"
    assert (task.completed, task.total) == (1, 3)
    assert task.fields["numbers"] == "t = 0.25  energy 1.5  residual 2.0e-09"
    progress.update(2, 0.5, {})
    assert task.fields["numbers"] == "t = 0.5"
    progress.close()
    assert not progress.bar.live.is_started


def test_closing_twice_or_before_the_start() -> None:
    progress, _ = bar()
    progress.close()
    progress.start(1, "x")
    progress.close()
    progress.close()
    assert not progress.bar.tasks


def test_two_runs_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    progress, stream = bar()
    flow, y = attention(jko.initial_heads(2, 3, 1) * 0.3), jko.ParticleMeasure(tokens(4))
    for _ in range(2):
        jko.solve(flow, y, jko.JKO(0.1), t1=0.2, progress=progress)
        assert not progress.bar.live.is_started
        assert not progress.bar.tasks
    assert "JKO" in stream.getvalue()
    assert capsys.readouterr().out == ""


def test_the_default_draws_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RichProgress()
    assert isinstance(progress, AbstractProgress)
    assert progress.bar.console.stderr
    progress.start(1, "a run")
    progress.close()
    assert capsys.readouterr().out == ""
