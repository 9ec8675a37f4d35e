"""Configuration of the documentation."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent / "examples"))

import benchmark_tables

# Before anything imports PyTorch: the examples are small, and several threads on a busy machine take far longer.
os.environ.setdefault("OMP_NUM_THREADS", "1")

benchmark_tables.write()

project = "jko"
author = "The jko developers"
project_copyright = "2026, The jko developers"
release = version = installed_version("jko")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "examples", "generated"]
html_theme = "furo"
html_title = "jko"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Single backticks mean code here, in docstrings as in Markdown.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Names in place of functions, since Sphinx compares this configuration with the one of the last build.
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"[\\/]plot_",
    "ignore_pattern": r"gallery_figures\.py",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "image_scrapers": ("gallery_figures.scrape", "matplotlib"),
    "image_srcset": ["2x"],
    "capture_repr": (),
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    # Running times differ from build to build.
    "min_reported_time": 3600,
    "write_computation_times": False,
}

_BACKTICKS = re.compile(r"(`+[^`]+`+)")
_MARKUP = re.compile(r"(?<!\\)([*|]|(?<=\w)_(?!\w))")


def _escape_mathematics(app, what, name, obj, options, lines):
    """Keep |xi|, (*batch, n, d) and D_ in running text from being read as markup."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "..", ":math:")):
            parts = _BACKTICKS.split(line)
            parts[::2] = [_MARKUP.sub(r"\\\1", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def setup(app):
    # After napoleon (priority 500), which writes markup for the sections but none of these characters.
    app.connect("autodoc-process-docstring", _escape_mathematics, priority=900)
