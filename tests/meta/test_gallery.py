"""The examples of the gallery: what a reader relies on, without running them; the build of the docs runs them."""

from __future__ import annotations

import ast
import re

import pytest

from tests.meta.source import ROOT

FOLDER = ROOT / "docs" / "examples"
EXAMPLES = sorted(FOLDER.glob("plot_*.py"))
MOST_LINES = 120
# The package, what its documentation names besides, and what a figure needs.
ALLOWED = {"jko", "jko.transport", "math", "itertools", "pathlib", "tempfile", "matplotlib.pyplot", "torch"}


def _faults(text: str) -> list[str]:
    """What is wrong with an example."""
    tree = ast.parse(text)
    title, line, _, *introduction = [*(ast.get_docstring(tree) or "").splitlines(), "", "", ""]
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    private = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    checks = {
        "a title, underlined": bool(title) and line == "=" * len(title),
        "an introduction without formulas, which a thumbnail shows as plain text": bool("".join(introduction))
        and ":math:" not in "".join(introduction),
        "prose between the code": len(re.findall(r"^# %%\n# \S", text, flags=re.MULTILINE)) >= 2,
        "a claim that is asserted": any(isinstance(node, ast.Assert) for node in ast.walk(tree)),
        f"at most {MOST_LINES} lines": text.count("\n") <= MOST_LINES,
        f"imports among {sorted(ALLOWED)}": modules <= ALLOWED,
        "public names only": not private,
    }
    return [wanted for wanted, held in checks.items() if not held]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_complete(path):
    assert not _faults(path.read_text("utf-8"))


def test_examples_are_numbered_in_reading_order():
    numbers = [int(re.match(r"plot_(\d)_", path.name)[1]) for path in EXAMPLES]
    assert numbers == list(range(1, len(EXAMPLES) + 1))


def test_gallery_is_listed_and_generated_pages_are_not_kept():
    assert "\ngallery/index\n" in (ROOT / "docs" / "index.md").read_text("utf-8")
    assert "docs/gallery/" in (ROOT / ".gitignore").read_text("utf-8").splitlines()


def test_faults_are_found():
    good = '"""\nA title\n=======\n\nText.\n"""\n\nimport jko\n\n# %%\n# One.\n\njko.JKO(1.0)\n'
    good += "\n# %%\n# Two.\n\nassert True\n"
    assert not _faults(good)
    for old, new in (
        ("=======", "====="),
        ("Text.", ""),
        ("Text.", "See :math:`x`."),
        ("# Two.", ""),
        ("assert True", "True"),
        ("import jko", "import jko.numerics"),
        ("import jko", "from jko.schemes import JKO"),
        ("jko.JKO", "jko._HOME"),
        ("assert True\n", "assert True\n" * (MOST_LINES + 1)),
    ):
        assert _faults(good.replace(old, new)), (old, new)
