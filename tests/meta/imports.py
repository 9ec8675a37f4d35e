"""The import graph of the package, read from the syntax trees, and the layer rule on it."""

from __future__ import annotations

import ast
import graphlib
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.meta.source import ROOT, Module


@dataclass(frozen=True)
class Import:
    source: str
    target: str
    deferred: bool  # inside a function: runs after the modules are loaded, so it closes no cycle


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _import_nodes(node: ast.AST, deferred: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, deferred
        elif isinstance(child, ast.If) and _is_type_checking(child.test):
            for other in child.orelse:
                yield from _import_nodes(ast.Module([other], []), deferred)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _import_nodes(child, deferred or is_function)


def _targets(module: Module, node: ast.Import | ast.ImportFrom, names: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        package = module.name.split(".")[: None if module.is_package else -1]
        package = package[: len(package) - node.level + 1]
        base = ".".join([*package, base] if base else package)
    for alias in node.names:
        submodule = f"{base}.{alias.name}"
        yield submodule if submodule in names else base


def find_imports(modules: Iterable[Module], root: str = "jko") -> set[Import]:
    """Every import inside the package, those under TYPE_CHECKING excepted.

    Importing `a.b.c` runs `a.b` too, unless the importing module is itself inside `a.b`. The root package is left
    out: it loads nothing.
    """
    modules = list(modules)
    names = {module.name for module in modules}
    found = set()
    for module in modules:
        for node, deferred in _import_nodes(module.tree):
            for target in _targets(module, node, names):
                parts = target.split(".")
                chain = [".".join(parts[:k]) for k in range(2, len(parts) + 1)] if parts[0] == root else []
                for name in chain:
                    is_around = f"{module.name}.".startswith(f"{name}.") and name != target
                    if name in names and not is_around:
                        found.add(Import(module.name, name, deferred))
    return found


def find_cycle(imports: Iterable[Import]) -> list[str]:
    """One cycle of imports that run while modules load, or nothing."""
    graph: dict[str, set[str]] = {}
    for item in imports:
        if not item.deferred:
            graph.setdefault(item.source, set()).add(item.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def read_layers() -> list[set[str]]:
    """The layers of the package, lowest first, from the contract that import-linter checks as well."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (contract,) = (contract for contract in settings["contracts"] if contract["type"] == "layers")
    return [set(re.findall(r"\w+", layer)) for layer in reversed(contract["layers"])]


def find_layer_violations(
    modules: Iterable[Module], imports: Iterable[Import], layers: list[set[str]], root: str = "jko"
) -> list[str]:
    rank = {part: level for level, parts in enumerate(layers) for part in parts}

    def part_of(name: str) -> str:
        return name.split(".")[1]

    found = [
        f"{module.name}: no layer holds {part_of(module.name)!r}"
        for module in modules
        if module.name != root and part_of(module.name) not in rank
    ]
    found += [
        f"{item.source} imports {item.target}, which is above it"
        for item in imports
        if item.source != root and rank.get(part_of(item.target), 0) > rank.get(part_of(item.source), 0)
    ]
    return sorted(found)
