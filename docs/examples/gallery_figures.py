"""Shows sphinx-gallery the figures that are not pyplot's: those of jko.plotting, which are in no global list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

# The figure that each example showed last.
_shown: dict[str, Figure] = {}


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figure that the variable `figure` holds since this block, and return the lines that show it."""
    figure, example = block_vars["example_globals"].get("figure"), block_vars["src_file"]
    if not isinstance(figure, Figure) or figure is _shown.get(example):
        return ""
    _shown[example] = figure
    if any(pyplot.figure(number) is figure for number in pyplot.get_fignums()):
        return ""
    path = Path(next(block_vars["image_path_iterator"]))
    sharp = path.with_stem(f"{path.stem}_2_00x")
    figure.savefig(path)
    figure.savefig(sharp, dpi=2 * figure.dpi)
    return figure_rst([path], gallery_conf["src_dir"], srcsetpaths=[{0: path, 2.0: sharp}])
