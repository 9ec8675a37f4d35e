from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

import jko
from jko.plotting import color_of, finding_figure
from jko.plotting.verification import finding_png
from jko.verify import Curve, Finding, FindingFigure, Measurement, Relation, Verdict

CURVES = (
    Curve("W2, sign = +1, H = 1", (0.1, 0.2, 0.4), (1e-3, 2e-3, 4e-3)),
    Curve("W_{m,2}, sign = -1, H = 4", (0.1, 0.2, 0.4), (2e-3, 4e-3, 8e-3)),
    Curve("W2, sign = +1, H = 4", (0.1, 0.2, 0.4), (3e-3, 5e-3, 9e-3), joined=False),
    Curve("slope 1", (0.1, 0.4), (1e-3, 4e-3), reference=True),
)
FIGURE = FindingFigure("Convergence in W_{m,2}, sign = -1", "step size tau", "W_2 (radians)", CURVES, True, True)
FINDING = Finding(
    "convergence", "Theorem 3.11", "c", "t", (Measurement("m", 1.0, 1.0, Relation.EQUAL),), Verdict.HOLDS, figure=FIGURE
)


def test_a_figure_says_what_it_shows():
    figure = finding_figure(FINDING)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "Convergence in $W_{m,2}$, sign = -1"
    assert figure.get_suptitle() == "Theorem 3.11"
    assert [text.get_text() for text in figure.texts if text.get_text() == "holds"] == ["holds"]
    assert axes.get_xlabel() == "step size $\\tau$"
    assert axes.get_ylabel() == "$W_2$ (radians)"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["$W_2$, sign = +1, H = 1", "$W_{m,2}$, sign = -1, H = 4", "$W_2$, sign = +1, H = 4", "slope 1"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_a_figure_draws_the_numbers_in_the_color_of_the_metric():
    (axes,) = finding_figure(FINDING).axes
    first, second, cloud, guide = axes.lines
    for line, curve in zip(axes.lines, CURVES, strict=True):
        assert np.array_equal(line.get_xdata(), curve.x)
        assert np.array_equal(line.get_ydata(), curve.y)
    assert [to_hex(line.get_color()) for line in (first, second, cloud)] == [
        color_of(name).lower() for name in ("W2", "W_{m,2}", "W2")
    ]
    assert to_hex(second.get_markerfacecolor()) == "#ffffff"
    assert to_hex(first.get_markerfacecolor()) != "#ffffff"
    assert cloud.get_linestyle() == "None"
    assert guide.get_marker() in (None, "None", "")


def test_few_step_sizes_are_the_ticks():
    (axes,) = finding_figure(FINDING).axes
    assert axes.get_xticks().tolist() == [0.1, 0.2, 0.4]


def test_many_curves_move_the_legend_outside():
    many = tuple(replace(CURVES[0], label=f"case {k}") for k in range(9))
    figure = finding_figure(replace(FINDING, figure=replace(FIGURE, curves=many)))
    (axes,) = figure.axes
    assert axes.get_legend() is None
    assert len(figure.legends) == 1
    assert len({to_hex(line.get_color()) + line.get_linestyle() for line in axes.lines}) == 9


def test_numbers_that_are_not_finite_leave_a_gap():
    curve = Curve("a", (1.0, 2.0, 3.0), (1.0, float("inf"), 2.0))
    (axes,) = finding_figure(replace(FINDING, figure=FindingFigure("t", "x", "y", (curve,)))).axes
    assert np.isnan(axes.lines[0].get_ydata()[1])
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_png_is_a_picture():
    data = finding_png(FINDING, dpi=50)
    assert data.startswith(b"\x89PNG")


@pytest.mark.parametrize("figure", [None, FindingFigure("t", "x", "y", ())])
def test_nothing_to_draw_is_refused(figure):
    with pytest.raises(jko.InvalidInput, match="nothing to draw"):
        finding_figure(replace(FINDING, figure=figure))
