from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module

import pytest

import jko
from tests.meta.source import ROOT, Module, package_modules

HEAVY = ("torch", "ot", "pykeops", "keopscore", "scipy", "matplotlib")


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)


def _heavy_imports_after(statement: str) -> tuple[list[str], str]:
    """What of the heavy packages a fresh interpreter has loaded after a statement, and what it wrote."""
    marker = "loaded:"
    done = _run(
        f"import sys\n{statement}\nprint({marker!r} + ','.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    assert done.returncode == 0, done.stderr
    output, _, loaded = done.stdout.rpartition(marker)
    return [name for name in loaded.strip().split(",") if name], output


def _type_checking_imports(module: Module) -> dict[str, str]:
    """Public name -> submodule, as the TYPE_CHECKING block says; submodules that are public map to ''."""
    found = {}
    for block in module.tree.body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                assert isinstance(node, ast.ImportFrom), ast.unparse(node)
                for alias in node.names:
                    assert alias.asname == alias.name, f"write `{alias.name} as {alias.name}`"
                    found[alias.name] = (node.module or "").removeprefix("jko").removeprefix(".")
    return found


def test_lazy_names_and_type_checking_block_agree():
    (root,) = (module for module in package_modules() if module.name == "jko")
    assert _type_checking_imports(root) == jko._HOME


def test_type_checking_reader_fails_on_a_plain_import():
    with pytest.raises(AssertionError):
        _type_checking_imports(Module("jko", "if TYPE_CHECKING:\n    from jko.a import b"))


def test_names_are_unique_and_sorted():
    assert len(jko.__all__) == len(set(jko.__all__))
    assert list(jko._HOME) == sorted(jko._HOME)


def test_star_import_gives_every_name():
    namespace: dict[str, object] = {}
    exec("from jko import *", namespace)
    assert set(jko.__all__) <= set(namespace)


@pytest.mark.parametrize("name", sorted(jko._HOME))
def test_public_name_is_exported_where_it_lives(name):
    value = getattr(jko, name)
    home = jko._HOME[name]
    if home:
        module = import_module(f"jko.{home}")
        assert name in module.__all__
        assert value is getattr(module, name)
    else:
        assert value is import_module(f"jko.{name}")


@pytest.mark.parametrize("name", sorted(module.name for module in package_modules() if module.name != "jko.__main__"))
def test_all_of_every_module_is_right(name):
    module = import_module(name)
    names = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    assert not [item for item in names if not hasattr(module, item)]


def _documented(page: str) -> set[str]:
    return set(re.findall(r"automodule:: jko\.([\w.]+)", page))


def test_the_reference_covers_every_public_name():
    documented = _documented((ROOT / "docs" / "api.md").read_text("utf-8"))
    homes = {home or name for name, home in jko._HOME.items()}
    assert homes <= documented
    assert _documented("```\n.. automodule:: jko.cli.sweeping\n```\njko.heads") == {"cli.sweeping"}


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = jko.nothing


def test_dir_lists_what_is_not_loaded_yet():
    assert {*jko.__all__, "__version__"} <= set(dir(jko))


def test_version_is_that_of_the_project():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert jko.__version__ == version
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_import_is_light_and_silent():
    assert _heavy_imports_after("import jko") == ([], "")
    assert _heavy_imports_after("import jko; jko.InvalidInput; dir(jko)") == ([], "")


def test_command_line_help_is_light():
    assert _heavy_imports_after("import jko.cli") == ([], "")
    loaded, output = _heavy_imports_after(
        "import jko.cli\nsys.argv = ['jko', '--help']\ntry:\n    jko.cli.main()\nexcept SystemExit:\n    pass"
    )
    assert loaded == []
    assert "compare" in output


def test_weight_check_fails_on_a_heavy_import():
    loaded, output = _heavy_imports_after("import torch; print('hello')")
    assert "torch" in loaded
    assert output == "hello\n"
