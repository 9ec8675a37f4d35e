from __future__ import annotations

import pytest

from jko import plotting
from jko.cli import main


def _empty_files(figure, stem, *, dpi=130):
    names = [f"{stem.name}.{suffix}" for suffix in ("png", "pdf")]
    for name in names:
        stem.with_name(name).touch()
    return names


@pytest.fixture
def real_figures(jko_command, monkeypatch):
    monkeypatch.setattr(plotting, "save_figure", _save_figure)


_save_figure = plotting.save_figure


@pytest.fixture
def jko_command(capsys, monkeypatch, tmp_path):
    """Run the command line inside the process, in a folder of its own: (status, standard output, standard error).

    Figures take most of the time of a tiny problem, so they are empty files unless the test asks for `real_figures`.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plotting, "save_figure", _empty_files)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call
