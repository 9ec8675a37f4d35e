"""What the meta tests look at: the repository's files and the package's syntax trees."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Module:
    name: str
    text: str
    is_package: bool = False

    @property
    def tree(self) -> ast.Module:
        return _parse(self.text)


@cache
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


def package_modules() -> tuple[Module, ...]:
    return _modules_in("jko")


def modules_of_the_tests() -> tuple[Module, ...]:
    return _modules_in("tests")


@cache
def _modules_in(folder: str) -> tuple[Module, ...]:
    modules = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        modules.append(Module(".".join(parts[:-1] if is_package else parts), path.read_text("utf-8"), is_package))
    return tuple(modules)


@cache
def repository_files() -> tuple[Path, ...]:
    """Files that are tracked or would be; where git is missing, everything outside hidden and build folders."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        paths = [ROOT / name for name in listing.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        skipped = ("_build", "build", "dist", "runs", "gallery", "__pycache__")
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(
                part in skipped or part.endswith(".egg-info") or (part.startswith(".") and part != ".ci")
                for part in path.relative_to(ROOT).parts
            )
        ]
    return tuple(sorted(path for path in paths if path.is_file()))


def dotted(node: ast.AST) -> str:
    """The name a decorator or base class goes by: `a.b.C[T](...)` is `a.b.C`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return ast.unparse(node)


def last_name(node: ast.AST) -> str:
    return dotted(node).rsplit(".", 1)[-1]
