from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure

import jko
from jko import plotting
from jko.diagnostics import compare


@pytest.fixture(scope="module")
def comparison():
    measure = jko.ParticleMeasure(jko.initial_tokens(12, 3, 0))
    return compare(measure, jko.ConstantHeads(jko.initial_heads(2, 3, 0)), t1=0.4, taus=[0.1, 0.05], sign=-1)


def _pixels(figure: Figure) -> np.ndarray:
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3] / 255.0


def _texts(figure: Figure) -> str:
    parts = [figure.get_suptitle()]
    for axes in figure.axes:
        parts += [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
        legend = axes.get_legend()
        parts += [text.get_text() for text in legend.get_texts()] if legend else []
    return "\n".join(parts)


def _solution(d: int, manifold, n: int = 9):
    points = jko.initial_tokens(n, d, 0) if d > 1 else torch.linspace(-1, 1, n, dtype=torch.float64)[:, None]
    heads = jko.ConstantHeads(torch.eye(d, dtype=torch.float64)[None])
    flow = jko.GradientFlow(jko.AttentionEnergy(heads), manifold=manifold)
    return jko.solve(flow, jko.ParticleMeasure(points), jko.ExplicitEuler(0.2), t1=1.0)


def test_comparison_figures_are_not_blank_and_say_what_they_show(comparison):
    expected = {
        plotting.distance_figure: ("sign = -1", "step size", "slope 1", "$W_{m,2}$", "head-wise"),
        plotting.energy_figure: ("sign = -1", "energy", "dissipation", "time $t$", "JKO", "explicit"),
        plotting.gap_figure: ("sign = -1", "covariance defect", "explicit head-wise", "H = 2"),
    }
    for make, parts in expected.items():
        figure = make(comparison)
        assert _pixels(figure).std() > 0.02
        for part in parts:
            assert part in _texts(figure), part


def test_distance_figure_draws_the_numbers(comparison):
    (axes,) = plotting.distance_figure(comparison).axes
    lines = {line.get_label(): line for line in axes.lines}
    for entry in comparison.metrics:
        (line,) = (line for label, line in lines.items() if label.startswith(plotting.math_title(entry.title) + ","))
        assert line.get_xdata().tolist() == [0.1, 0.05]
        assert line.get_ydata().tolist() == [pair.supremum for pair in entry.pairs]
    guide = lines["slope 1"]
    (x0, x1), (y0, y1) = guide.get_xdata(), guide.get_ydata()
    assert np.log(y1 / y0) / np.log(x1 / x0) == pytest.approx(1)


def test_snapshots_change_between_first_and_last_panel(comparison):
    entry = comparison.metrics[1]
    title = plotting.comparison_title(comparison, entry)
    assert "sign = -1" in title
    assert "W_{m,2}" in title
    rows = {"JKO": entry.finest.jko.solution, "explicit Euler": entry.finest.explicit.solution}
    figure = plotting.snapshot_figure(rows, manifold=jko.Sphere(), title=title)
    pixels = _pixels(figure)
    assert title in _texts(figure)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["JKO, t = 0", "JKO, t = 0.1", "JKO, t = 0.4"]
    assert pixels.std() > 0.02


def test_first_and_last_panel_differ(comparison):
    solution = comparison.metrics[1].finest.jko.solution

    def panel(fraction: float) -> np.ndarray:
        figure = plotting.snapshot_figure(
            {"JKO": solution}, manifold=jko.Sphere(), title="", fractions=(fraction,), color="red"
        )
        figure.axes[0].set_title("")
        return _pixels(figure)

    assert np.array_equal(panel(0.0), panel(0.0))
    assert (abs(panel(0.0) - panel(1.0)).max(-1) > 0.2).sum() > 50


def test_the_sphere_is_round():
    figure = plotting.snapshot_figure({"run": _solution(3, jko.Sphere())}, manifold=jko.Sphere(), title="t")
    figure.canvas.draw()
    for axes in figure.axes:
        corners = axes.transData.transform([(-1, -1), (1, 1)])
        width, height = corners[1] - corners[0]
        assert width == pytest.approx(height, rel=1e-6)
        assert min(axes.get_xlim()[1], axes.get_ylim()[1]) > 1


def test_points_behind_the_sphere_are_dimmed():
    solution = _solution(3, jko.Sphere(), n=60)
    figure = plotting.snapshot_figure({"run": solution}, manifold=jko.Sphere(), title="t")
    behind, front = figure.axes[0].collections
    assert behind.get_alpha() < front.get_alpha()
    assert len(behind.get_offsets()) + len(front.get_offsets()) == 60
    assert len(behind.get_offsets()) > 5


@pytest.mark.parametrize("d", [2, 3, 5])
def test_spheres_of_other_dimensions(d):
    figure = plotting.snapshot_figure({"run": _solution(d, jko.Sphere())}, manifold=jko.Sphere(), title="t")
    assert _pixels(figure).std() > 0.02
    assert ("first 3 principal axes of $\\mathbb{R}^{5}$" in _texts(figure)) == (d == 5)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_flat_spaces(d):
    solution = _solution(d, jko.Euclidean())
    figure = plotting.snapshot_figure({"run": solution}, manifold=jko.Euclidean(), title="t")
    assert _pixels(figure).std() > 0.02
    assert ("first 2 principal axes of $\\mathbb{R}^{4}$" in _texts(figure)) == (d == 4)
    (x0, x1), (y0, y1) = figure.axes[-1].get_xlim(), figure.axes[-1].get_ylim()
    offsets = figure.axes[-1].collections[-1].get_offsets()
    assert (offsets[:, 0] >= x0).all()
    assert (offsets[:, 0] <= x1).all()
    assert (offsets[:, 1] >= y0).all()
    assert (offsets[:, 1] <= y1).all()


def test_titles_are_set_as_mathematics():
    assert plotting.math_title("JKO, W_{m,2}, sign = +1") == "JKO, $W_{m,2}$, sign = +1"
    assert plotting.math_title("W2") == "$W_2$"
    assert plotting.math_title("head-wise") == "head-wise"


def test_single_run_figure():
    figure = plotting.run_figure(_solution(3, jko.Sphere()))
    assert "sign = +1" in _texts(figure)
    assert _pixels(figure).std() > 0.02


def test_files_are_written_and_pyplot_knows_nothing(comparison, tmp_path):
    names = plotting.save_figure(plotting.energy_figure(comparison), tmp_path / "sub" / "energy")
    assert names == ["energy.png", "energy.pdf"]
    assert sorted(path.name for path in (tmp_path / "sub").iterdir()) == ["energy.pdf", "energy.png"]
    assert pyplot.get_fignums() == []


def test_nothing_to_draw_is_refused():
    with pytest.raises(jko.InvalidInput, match="at least one solution"):
        plotting.snapshot_figure({}, manifold=jko.Sphere(), title="t")


@pytest.mark.parametrize(("lowest", "below"), [(-3.0, [-1.0, -0.1]), (-0.01, [-0.1])])
def test_a_dissipation_of_both_signs_has_ticks_on_both_sides(lowest, below):
    solution = _solution(3, jko.Sphere())
    solution.states.dissipation[:] = torch.linspace(lowest, 90.0, len(solution.states.dissipation))
    axes = plotting.run_figure(solution).axes[1]
    assert [tick for tick in axes.get_yticks() if tick < 0] == below
    assert r"linear between $\pm 10^{-1}$" in axes.get_ylabel()


def test_snapshots_say_what_is_faint_and_how_far_the_rows_are_apart():
    figure = plotting.snapshot_figure(
        {"run": _solution(3, jko.Sphere())}, manifold=jko.Sphere(), title="t", last_note="apart"
    )
    assert figure.get_supxlabel() == "faint: far side"
    assert [[text.get_text() for text in axes.texts] for axes in figure.axes] == [[], [], ["apart"]]
