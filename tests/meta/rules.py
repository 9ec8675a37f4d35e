"""Rules of the house that a syntax tree can show. Each takes modules and returns one line per violation."""

from __future__ import annotations

import ast
import builtins
import io
import tokenize
from collections.abc import Iterable, Iterator

from tests.meta.source import Module, last_name

FILE_LINES = 400
FUNCTION_LINES = 100

_FOREIGN_ROOTS = {
    "exception": {
        name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
    },
    "enum": {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"},
    "pydantic model": {"BaseModel"},
    "autograd function": {"Function"},
    "protocol": {"Protocol"},
    "record": {"NamedTuple", "TypedDict"},
}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _classes(modules: Iterable[Module]) -> Iterator[tuple[Module, ast.ClassDef]]:
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                yield module, node


def _kinds(modules: Iterable[Module]) -> dict[str, str]:
    """Class name -> foreign family it descends from, if any."""
    kinds = {name: kind for kind, names in _FOREIGN_ROOTS.items() for name in names}
    classes = [node for _, node in _classes(modules)]
    size = -1
    while len(kinds) != size:
        size = len(kinds)
        for node in classes:
            for base in node.bases:
                if last_name(base) in kinds:
                    kinds.setdefault(node.name, kinds[last_name(base)])
    return kinds


def _decorator_names(node: ast.ClassDef | _Function) -> set[str]:
    return {last_name(decorator) for decorator in node.decorator_list}


def _abstract_methods(node: ast.ClassDef) -> list[str]:
    return [
        item.name for item in node.body if isinstance(item, _Function) and "abstractmethod" in _decorator_names(item)
    ]


def _is_thawed_dataclass(node: ast.ClassDef) -> bool:
    for decorator in node.decorator_list:
        if last_name(decorator) == "dataclass":
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            return not any(item.arg == "frozen" and ast.unparse(item.value) == "True" for item in keywords)
    return False


def find_class_violations(modules: Iterable[Module], mutable: Iterable[str] = ()) -> list[str]:
    """Abstract or final; a final class is a frozen dataclass, unless it is private or listed as mutable."""
    modules = list(modules)
    kinds = _kinds(modules)
    mutable = set(mutable)
    found = []
    for module, node in _classes(modules):
        where = f"{module.name}.{node.name}"
        decorators = _decorator_names(node)
        if node.name in kinds:
            continue
        if node.name.startswith("Abstract"):
            if "final" in decorators:
                found.append(f"{where} is named abstract and marked final")
            inherits = any(last_name(base) == "ABC" or last_name(base).startswith("Abstract") for base in node.bases)
            if not inherits or not _abstract_methods(node):
                found.append(f"{where} is named abstract, but is no ABC with an abstract method")
            continue
        if _abstract_methods(node):
            found.append(f"{where} has abstract methods: its name must start with Abstract")
        if "final" not in decorators:
            found.append(f"{where} is neither abstract nor @final")
        if _is_thawed_dataclass(node) and node.name not in mutable and not node.name.startswith("_"):
            found.append(f"{where} is a dataclass that is not frozen")
        if "dataclass" not in decorators and node.name not in mutable:
            found.append(f"{where} is no frozen dataclass")
    return found


def find_subclassed_concrete(modules: Iterable[Module]) -> list[str]:
    modules = list(modules)
    kinds = _kinds(modules)
    concrete = {
        node.name for _, node in _classes(modules) if node.name not in kinds and not node.name.startswith("Abstract")
    }
    return [
        f"{module.name}.{node.name} subclasses the concrete {last_name(base)}"
        for module, node in _classes(modules)
        for base in node.bases
        if last_name(base) in concrete
    ]


def find_overridden(modules: Iterable[Module]) -> list[str]:
    """An implemented method of an abstract class is never overridden, unless it is marked as a default."""
    classes = {node.name: node for _, node in _classes(modules)}
    found = []
    for module, node in _classes(modules):
        own = {item.name for item in node.body if isinstance(item, _Function)}
        queue = [last_name(base) for base in node.bases]
        while queue:
            base = classes.get(queue.pop())
            if base is None:
                continue
            queue += [last_name(other) for other in base.bases]
            implemented = {
                item.name
                for item in base.body
                if isinstance(item, _Function) and not _decorator_names(item) & {"abstractmethod", "default"}
            }
            found += [
                f"{module.name}.{node.name}.{name} overrides what {base.name} implements"
                for name in sorted(own & implemented)
            ]
    return found


def find_calls(modules: Iterable[Module], name: str) -> list[str]:
    return [
        f"{module.name}:{node.lineno} calls {name}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


def _inherited_docstrings(modules: Iterable[Module]) -> dict[str, set[str]]:
    """Class name -> methods that it or a base class documents."""
    bases: dict[str, list[str]] = {}
    documented: dict[str, set[str]] = {}
    for _, node in _classes(modules):
        bases[node.name] = [last_name(base) for base in node.bases]
        documented[node.name] = {
            item.name for item in node.body if isinstance(item, _Function) and ast.get_docstring(item) is not None
        }

    def collect(name: str) -> set[str]:
        return documented.get(name, set()).union(*(collect(base) for base in bases.get(name, [])))

    return {name: collect(name) for name in bases}


def find_undocumented(modules: Iterable[Module]) -> list[str]:
    """Public modules, classes, functions and methods without a docstring.

    A method that implements a documented contract inherits its docstring, as `inspect.getdoc` sees it.
    """
    modules = list(modules)
    inherited = _inherited_docstrings(modules)

    def visit(node: ast.Module | ast.ClassDef, where: str) -> Iterator[str]:
        if ast.get_docstring(node) is None:
            yield where
        from_bases = inherited[node.name] if isinstance(node, ast.ClassDef) else set()
        for item in node.body:
            if not isinstance(item, _Function | ast.ClassDef) or item.name.startswith("_"):
                continue
            if isinstance(item, ast.ClassDef):
                yield from visit(item, f"{where}.{item.name}")
            elif (
                ast.get_docstring(item) is None
                and item.name not in from_bases
                and not _decorator_names(item) & {"overload", "setter"}
            ):
                yield f"{where}.{item.name}"

    return [f"{name} has no docstring" for module in modules for name in visit(module.tree, module.name)]


def _code_lines(text: str) -> set[int]:
    """Lines that hold code: no blank lines, no comments, no docstrings."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _Function | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def find_too_long(modules: Iterable[Module]) -> list[str]:
    found = []
    for module in modules:
        length = len(module.text.splitlines())
        if length > FILE_LINES:
            found.append(f"{module.name} has {length} lines; the limit is {FILE_LINES}")
        code = _code_lines(module.text)
        for node in ast.walk(module.tree):
            if isinstance(node, _Function):
                size = len(code.intersection(range(node.lineno, (node.end_lineno or 0) + 1)))
                if size > FUNCTION_LINES:
                    found.append(f"{module.name}.{node.name} has {size} lines of code; the limit is {FUNCTION_LINES}")
    return found


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions and classes inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Function | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def _is_check(node: ast.AST) -> bool:
    """An assertion, `pytest.raises`, or a helper whose name starts with `assert` or `check`."""
    if isinstance(node, ast.Call):
        name = last_name(node)
        return name in ("raises", "succeeded") or name.startswith(("assert", "check"))
    return isinstance(node, ast.Assert)


def find_early_exits(modules: Iterable[Module]) -> list[str]:
    """Tests that return, or go on to the next turn of a loop, before an assertion: they pass without a word."""
    found = []
    for module in modules:
        for test in ast.walk(module.tree):
            if not isinstance(test, _Function) or not test.name.startswith("test_"):
                continue
            nodes = list(_own_nodes(test))
            last = max((node.lineno for node in nodes if _is_check(node)), default=0)
            found += [
                f"{module.name}:{node.lineno} leaves {test.name} before its last assertion"
                for node in nodes
                if isinstance(node, ast.Return | ast.Continue) and node.lineno < last
            ]
    return found
