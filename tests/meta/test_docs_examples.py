"""Every Python block of the readme and the docs runs: the blocks of one page in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from tests.meta.source import ROOT

# A block opened with "```python no-run" shows a fragment that cannot stand alone.
BLOCK = re.compile(r"^```python(?P<options>[^\n]*)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)


def _blocks(text: str) -> list[tuple[int, str]]:
    """First line and code of each block that is to run."""
    return [
        (text.count("\n", 0, match.start("code")), match["code"])
        for match in BLOCK.finditer(text)
        if "no-run" not in match["options"]
    ]


def _run(text: str, where: str) -> None:
    namespace: dict[str, object] = {"__name__": "__example__"}
    for line, code in _blocks(text):
        # Leading newlines make the traceback point into the page.
        exec(compile("\n" * line + code, where, "exec"), namespace)


PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    if path.exists() and _blocks(path.read_text("utf-8"))
)


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        _run((ROOT / page).read_text("utf-8"), page)
    finally:
        plt.close("all")


def test_readme_has_an_example():
    assert _blocks(Path(ROOT / "README.md").read_text("utf-8"))


def test_runner_fails_on_a_bad_example_and_skips_fragments():
    with pytest.raises(ZeroDivisionError):
        _run("```python\nx = 0\n```\ntext\n```python\n1 / x\n```\n", "page")
    _run("```python no-run\n1 / 0\n```\n```sh\nnot python\n```\n", "page")
