from __future__ import annotations

import shutil
import stat

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import jko
from jko import plotting
from jko.paper import Regime, Setting, collect, collect_flows, execute, flow_jobs, paper_jobs
from jko.plotting.view import View

TINY = {"n": 8, "t1": 0.4, "heads": (1, 3), "paths": 2, "frames": 10}


def _results(folder, regimes=(Regime.OU, Regime.OSCILLATING_SPREAD), **changes):
    setting = Setting.small(**{**TINY, **changes})
    execute(paper_jobs(setting, regimes, setting.heads), folder, workers=1)
    return [collect(folder, setting, regime, setting.heads) for regime in regimes]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return _results(tmp_path_factory.mktemp("jobs"), sign=-1)


def _pixels(figure: Figure) -> np.ndarray:
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3] / 255.0


def _texts(figure: Figure) -> str:
    parts = [figure.get_suptitle()]
    for axes in figure.axes:
        parts += [axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), *(text.get_text() for text in axes.texts)]
        legend = axes.get_legend()
        parts += [text.get_text() for text in legend.get_texts()] if legend else []
    parts += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return "\n".join(parts)


def test_figures_are_not_blank_and_say_what_they_show(results):
    expected = {
        plotting.paper_snapshot_figure: ("sign = -1", "$t$ = 0.32", "spread phases", "mean of 2 paths", "n = 8"),
        plotting.paper_slope_figure: ("sign = -1", "head-wise", "spread phases", "non-linear", "log-log", "Pearson"),
        plotting.paper_ledger_figure: ("sign = -1", "balance (147)", "martingale", "motion part", "time part", "a/100"),
    }
    for make, parts in expected.items():
        figure = make(results)
        assert _pixels(figure).std() > 0.02
        for part in parts:
            assert part in _texts(figure), part
        with pytest.raises(jko.InvalidInput, match="at least one regime"):
            make([])


def test_the_slope_figure_draws_the_numbers(results):
    figure = plotting.paper_slope_figure(results)
    series, means = figure.axes[:2]
    entry = results[0].entries[1]
    line = next(line for line in series.lines if line.get_label() == "$H$ = 3")
    assert torch.equal(torch.as_tensor(line.get_ydata()), entry.slope2.mean)
    points = [line for line in means.lines if line.get_marker() == "o"]
    window = results[0].setting.window
    assert [float(line.get_ydata()[0]) for line in points] == [
        pytest.approx(entry.estimate(window).mean) for entry in results[0].entries
    ]


def test_snapshots_are_those_of_the_stated_times(results):
    figure = plotting.paper_snapshot_figure(results)
    clouds = results[0].entries[-1].mean_clouds
    view = View.on_sphere([clouds[0]])
    for axes, k in zip(figure.axes[:4], (0, 8, 9, 10), strict=True):
        drawn = np.concatenate([np.asarray(scatter.get_offsets()) for scatter in axes.collections])
        seen = (clouds[k].numpy() @ view.axes.T)[:, :2]
        assert np.allclose(np.sort(drawn, axis=0), np.sort(seen, axis=0))


@pytest.mark.parametrize("dimension", [2, 5])
def test_other_dimensions_can_be_drawn(tmp_path, dimension):
    results = _results(tmp_path, regimes=(Regime.OU,), dimension=dimension, t1=0.2, heads=(2,))
    figure = plotting.paper_snapshot_figure(results)
    assert _pixels(figure).std() > 0.02
    assert ("principal axes" in figure.get_supxlabel()) is (dimension == 5)
    # A single number of heads has no fit, and the figure is drawn without it.
    assert _pixels(plotting.paper_slope_figure(results)).std() > 0.02
    assert _pixels(plotting.paper_ledger_figure(results)).std() > 0.02


def test_the_view_keeps_lengths_and_the_sphere_is_round():
    for dimension in (2, 3, 6):
        view = View.on_sphere([jko.initial_tokens(30, dimension, 0)])
        assert np.allclose(view.axes @ view.axes.T, np.eye(min(dimension, 3)), atol=1e-12)
    figure = plotting.new_figure(4, 4)
    axes = figure.subplots()
    View.on_sphere([torch.eye(3, dtype=torch.float64)]).draw(axes, torch.eye(3, dtype=torch.float64), "#0072B2")
    figure.canvas.draw()
    outline = axes.transData.transform(axes.lines[0].get_xydata())
    width, height = np.ptp(outline, axis=0)
    assert width == pytest.approx(height, rel=1e-3)


# ---- animations: field report H27


def _moving(frames=5):
    """Particles that move only along z, on S^2."""
    figure = plotting.new_figure(3, 3)
    axes = figure.subplots()
    heights = torch.linspace(-0.9, 0.9, frames, dtype=torch.float64)
    clouds = [
        torch.stack([(1 - z**2).sqrt() * torch.tensor([1.0, 0.0, 0.0]) + z * torch.tensor([0.0, 0.0, 1.0])])
        for z in heights
    ]
    drawn = View.on_sphere(clouds).draw(axes, clouds[0], "#0072B2")
    calls = []

    def update(k: int) -> None:
        calls.append(k)
        drawn.move(clouds[k])

    return figure, update, calls


def test_a_gif_moves_and_needs_nothing_but_pillow(tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("PATH", "")
    figure, update, calls = _moving()
    assert plotting.save_animation(figure, update, 5, tmp_path / "a.gif") == "a.gif"
    assert calls == list(range(5))
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == 5
        frames = []
        for k in (0, 4):
            image.seek(k)
            frames.append(np.asarray(image.convert("RGB"), dtype=float))
    assert np.abs(frames[0] - frames[1]).max() > 50
    # The background stays white, and the outline stays where it is.
    assert all((frame[:3, :3] == 255).all() for frame in frames)
    assert not list(tmp_path.glob(".*"))


def test_mp4_without_ffmpeg_is_refused_before_any_frame(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    figure, update, calls = _moving()
    with pytest.raises(jko.MissingDependency, match=r"needs the program ffmpeg.*a\.gif"):
        plotting.save_animation(figure, update, 5, tmp_path / "a.mp4")
    assert calls == []
    assert not list(tmp_path.iterdir())
    with pytest.raises(jko.InvalidInput, match=r"a \.gif or a \.mp4 file, got 'a\.avi'"):
        plotting.check_animation("a.avi")


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell for a stand-in")
def test_mp4_passes_every_frame_to_ffmpeg(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    # A stand-in that writes what it was given; the last argument is the file.
    program.write_text('#!/bin/sh\nfor last in "$@"; do :; done\necho "$@" > "$last"\n/bin/cat >> "$last"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent))
    figure, update, calls = _moving()
    plotting.save_animation(figure, update, 5, tmp_path / "a.mp4", dpi=51)
    arguments, _, frames = (tmp_path / "a.mp4").read_bytes().partition(b"\n")
    assert b"-s 152x152" in arguments  # 3 inches at 51 dpi are 153 pixels: the format wants even numbers
    assert len(frames) == 5 * 152 * 152 * 3
    assert calls == list(range(5))


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell for a stand-in")
def test_an_ffmpeg_that_fails_is_named_with_its_reason(tmp_path, monkeypatch):
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\necho no such encoder >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    figure, update, _ = _moving()
    with pytest.raises(jko.RunFolderError, match="ffmpeg could not write the animation: no such encoder"):
        plotting.save_animation(figure, update, 2, tmp_path / "a.mp4")
    assert not (tmp_path / "a.mp4").exists()


def test_clouds_are_animated(results, tmp_path):
    assert plotting.animate_clouds(results, tmp_path / "clouds.gif") == "clouds.gif"
    with Image.open(tmp_path / "clouds.gif") as image:
        assert image.n_frames == len(results[0].entries[-1].cloud_times) == 11


# ---- the comparison


def test_comparison_figures_are_not_blank(tmp_path):
    setting = Setting.small(n=6, t1=0.1, dt=0.02, heads=(1, 2), window=0.02, frames=5)
    regimes = (Regime.OSCILLATING_SHARED, Regime.OSCILLATING_SPREAD)
    execute(flow_jobs(setting, regimes), tmp_path, workers=1)
    result = collect_flows(tmp_path, setting, regimes)
    figures = {column: plotting.flows_figure(result, column) for column in ("energy", "dissipation", "paper_slope2")}
    figures["distance"] = plotting.flows_distance_figure(result)
    figures["phases"] = plotting.phases_figure(result)
    for name, figure in figures.items():
        assert _pixels(figure).std() > 0.02, name
        for part in ("sign = +1", "n = 6", "spread phases", "W_{m,2}", "head-wise"):
            assert part in _texts(figure), (name, part)
    assert len(figures["energy"].axes) == 4
    assert all(len(axes.lines) == 6 for axes in figures["energy"].axes)
    with pytest.raises(jko.InvalidInput, match="column must be one of"):
        plotting.flows_figure(result, "speed")
