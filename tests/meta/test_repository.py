from __future__ import annotations

import os
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.meta.source import ROOT, repository_files

# Written in pieces, or this file would contain what it forbids.
FOREIGN_PATH = re.compile(r"(?<![\w.])/(?:" + "|".join(["wo" + "rk", "ro" + "ot", "t" + "mp"]) + r")\b|\bshared" + "/")


def _foreign_paths(text: str) -> list[str]:
    return [line.strip()[:120] for line in text.splitlines() if FOREIGN_PATH.search(line)]


def _texts() -> dict[str, str]:
    texts = {}
    for path in repository_files():
        try:
            texts[str(path.relative_to(ROOT))] = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
    return texts


def test_no_file_names_a_place_outside_the_repository():
    assert not {name: found for name, text in _texts().items() if (found := _foreign_paths(text))}


def test_path_check_fails_on_machine_paths():
    for bad in ("/t" + "mp/x", "see share" + "d/x", "'/wo" + "rk'", "cd /ro" + "ot"):
        assert _foreign_paths(bad), bad
    for good in ("frame/works", 'phases="shared"', "../rooted", "https://example.org/working"):
        assert not _foreign_paths(good), good


# The readme and the checks


def _install_commands(text: str) -> list[str]:
    return re.findall(r"^python3 -m venv \.venv .*$", text, flags=re.MULTILINE)


def _ci() -> str:
    return (ROOT / ".ci" / "run").read_text("utf-8")


def test_readme_has_the_two_commands_and_the_checks_run_them():
    commands = _install_commands((ROOT / "README.md").read_text("utf-8"))
    assert len(commands) == 2
    use, develop = commands
    assert use.endswith("&& .venv/bin/jko compare")
    assert develop.endswith("&& .venv/bin/python -m pytest")
    assert _install_commands(_ci()) == [develop]


def test_package_page_shows_the_readme():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["readme"] == "README.md"


def test_command_reader_finds_commands_in_code_blocks_only():
    text = "```sh\npython3 -m venv .venv && x\n```\nRun python3 -m venv yourself."
    assert _install_commands(text) == ["python3 -m venv .venv && x"]


def test_checks_run_every_experiment():
    assert 'for script in "$root"/experiments/*.py "$root"/experiments/bench/*.py' in _ci()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


# The tested environment


def _constraints() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(item.name): item for item in requirements}


def _declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    optional = [line for name in ("test", "docs", "xarray", "cluster") for line in extras[name]]
    return [Requirement(line) for line in [*project["dependencies"], *optional]]


@pytest.mark.parametrize("requirement", _declared(), ids=lambda item: item.name)
def test_every_dependency_has_a_lower_bound_and_a_tested_version(requirement):
    assert str(requirement.specifier).startswith(">=")
    (pin,) = _constraints()[canonicalize_name(requirement.name)].specifier
    assert pin.operator == "=="
    assert requirement.specifier.contains(pin.version)


def test_constraints_leave_local_builds_and_cuda_to_torch():
    constraints = _constraints()
    assert str(constraints["torch"].specifier) == "==2.13.0"
    assert not [name for name in constraints if name.startswith(("nvidia", "cuda", "triton"))]
    assert not [item for item in constraints.values() if "+" in str(item.specifier)]
