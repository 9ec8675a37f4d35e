"""Every Python block of the readme and the docs runs: the blocks of one page in order, in a process of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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


def _script(text: str) -> str:
    """The blocks as one script, each on the lines that it has in the page, so that a traceback points there."""
    script = ""
    for line, code in _blocks(text):
        script += "\n" * (line - script.count("\n")) + code
    return script


def _run(text: str, where: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the blocks in a process of their own: what another page has imported is not there."""
    program = "import sys; exec(compile(sys.stdin.read(), sys.argv[1], 'exec'), {'__name__': '__example__'})"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, where],
        input=_script(text),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)},
        check=False,
    )


PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    if path.exists() and _blocks(path.read_text("utf-8"))
)


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, tmp_path: Path) -> None:
    done = _run((ROOT / page).read_text("utf-8"), page, tmp_path)
    assert done.returncode == 0, done.stderr


def test_readme_has_an_example():
    assert _blocks(Path(ROOT / "README.md").read_text("utf-8"))


def test_runner_fails_on_a_bad_example_and_skips_fragments(tmp_path: Path) -> None:
    bad = _run("```python\nx = 0\n```\ntext\n```python\n1 / x\n```\n", "page", tmp_path)
    assert bad.returncode != 0
    assert 'File "page", line 6' in bad.stderr
    assert "ZeroDivisionError" in bad.stderr
    unloaded = _run("```python\nimport jko\n\njko.transport.squared_wasserstein\n```\n", "page", tmp_path)
    assert "no attribute 'transport'" in unloaded.stderr
    assert _run("```python no-run\n1 / 0\n```\n```sh\nnot python\n```\n", "page", tmp_path).returncode == 0
