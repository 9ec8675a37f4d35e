from __future__ import annotations

import re
from pathlib import Path

import pytest

import jko
from jko.config import CompareConfig, RunConfig

ROOT = Path(__file__).resolve().parents[2]


def test_the_configuration_in_the_readme_runs(jko_command):
    (text,) = re.findall(r"^```toml\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    Path("run.toml").write_text(text)
    assert jko_command("run", "run.toml", "-q")[0] == 0
    assert jko.load("jko-run").times.tolist() == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


@pytest.mark.parametrize("model", [CompareConfig, RunConfig])
def test_the_page_names_every_key(model):
    page = (ROOT / "docs/command_line.md").read_text("utf-8")
    for name, field in model.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        rows = [rf"\| `\[{name}\]` [^|]*`{key}`" for key in inner] if inner else [rf"\| `{name}` \|"]
        assert all(re.search(row, page) for row in rows), rows
