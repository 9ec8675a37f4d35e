from __future__ import annotations

import pytest

from jko.cli import main


@pytest.fixture
def jko_command(capsys, monkeypatch, tmp_path):
    """Run the command line inside the process, in a folder of its own: (status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call
