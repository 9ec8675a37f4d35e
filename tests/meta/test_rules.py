from __future__ import annotations

import ast
import textwrap

import pytest

from tests.meta.rules import (
    FILE_LINES,
    FUNCTION_LINES,
    find_calls,
    find_class_violations,
    find_early_exits,
    find_overridden,
    find_subclassed_concrete,
    find_too_long,
    find_undocumented,
)
from tests.meta.source import Module, modules_of_the_tests, package_modules

# Final classes that are no frozen dataclass, each with the reason.
MUTABLE = {
    "EntropicTerm": "working state of a step: keeps the last transport, where the next one starts",
    "Search": "working state of a minimization: counts passes and keeps the best trial",
    "Float": "stand-in for a type of jaxtyping; never instantiated",
}


def _modules(text: str, name: str = "jko.sample") -> list[Module]:
    return [Module(name, textwrap.dedent(text))]


def test_classes_are_abstract_or_final():
    assert not find_class_violations(package_modules(), MUTABLE)


def test_mutable_classes_exist():
    names = {
        node.name for module in package_modules() for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)
    }
    assert set(MUTABLE) <= names


def test_no_concrete_class_is_subclassed():
    assert not find_subclassed_concrete(package_modules())


def test_no_implemented_method_is_overridden():
    assert not find_overridden(package_modules())


def test_no_super():
    assert not find_calls(package_modules(), "super")


def test_only_the_command_line_prints():
    assert not find_calls([module for module in package_modules() if not module.name.startswith("jko.cli")], "print")


def test_no_test_is_left_before_its_last_assertion():
    modules = modules_of_the_tests()
    assert len(modules) > 100
    assert not find_early_exits(modules)


def test_everything_public_is_documented():
    assert not find_undocumented(package_modules())


def test_files_and_functions_are_short():
    assert not find_too_long(package_modules())


@pytest.mark.parametrize(
    "text",
    [
        "class A: ...",
        "@final\nclass A: ...",
        "@final\n@dataclass\nclass A: ...",
        "@final\n@dataclass(slots=True)\nclass A: ...",
        "@dataclass(frozen=True)\nclass A: ...",
        "class AbstractA(ABC): ...",
        "class AbstractA:\n    @abstractmethod\n    def f(self): ...",
        "@final\nclass AbstractA(ABC):\n    @abstractmethod\n    def f(self): ...",
        "class A(ABC):\n    @abstractmethod\n    def f(self): ...",
    ],
)
def test_class_rule_fails_on(text):
    assert find_class_violations(_modules(text))


@pytest.mark.parametrize(
    "text",
    [
        "@final\n@dataclass(frozen=True, slots=True)\nclass A(AbstractA): ...",
        "class AbstractA(ABC):\n    @abstractmethod\n    def f(self): ...",
        "class Bad(ValueError): ...\nclass Worse(Bad): ...",
        "class Color(Enum):\n    RED = 1",
        "class Config(pydantic.BaseModel): ...\nclass Sub(Config): ...",
        "class Product(torch.autograd.Function): ...",
        "class Pair(NamedTuple):\n    x: int",
    ],
)
def test_class_rule_accepts(text):
    assert not find_class_violations(_modules(text))


def test_class_rule_accepts_a_listed_exception():
    assert not find_class_violations(_modules("@final\nclass Clock: ..."), {"Clock"})


def test_subclass_rule_fails_on_a_concrete_base():
    assert find_subclassed_concrete(_modules("class A(AbstractA): ...\nclass B(A): ..."))
    assert not find_subclassed_concrete(_modules("class A(AbstractA): ...\nclass B(AbstractA): ..."))


def test_override_rule_fails_on_an_implemented_method():
    base = "class AbstractA(ABC):\n    @abstractmethod\n    def f(self): ...\n    def g(self): ...\n"
    derived = "class A(AbstractA):\n    def f(self): ...\n"
    assert not find_overridden(_modules(base + derived))
    assert find_overridden(_modules(base + derived + "    def g(self): ...\n"))


def test_call_rule_fails_on_a_call():
    assert find_calls(_modules("def f():\n    print(1)"), "print")
    assert find_calls(_modules("class A:\n    def f(self):\n        super().f()"), "super")
    assert not find_calls(_modules("log.print(1)\n'print(1)'"), "print")


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        '"""Doc."""\ndef f(): ...',
        '"""Doc."""\nclass A:\n    x = 1',
        '"""Doc."""\nclass A:\n    """Doc."""\n    def f(self): ...',
    ],
)
def test_docstring_rule_fails_on(text):
    assert len(find_undocumented(_modules(text))) == 1


def test_docstring_rule_looks_into_the_contract():
    base = (
        '"""Doc."""\nclass AbstractA(ABC):\n    """Doc."""\n    @abstractmethod\n    def f(self):\n        """Doc."""\n'
    )
    derived = 'class A(AbstractA):\n    """Doc."""\n    def f(self): ...\n'
    assert not find_undocumented(_modules(base + derived))
    assert find_undocumented(_modules(base + derived + "    def g(self): ...\n"))


def test_docstring_rule_leaves_private_names_alone():
    assert not find_undocumented(_modules('"""Doc."""\ndef _f(): ...\nclass _A:\n    def f(self): ...'))


def test_length_rule_fails_on_long_files_and_functions():
    assert find_too_long(_modules("x = 1\n" * (FILE_LINES + 1)))
    assert not find_too_long(_modules("x = 1\n" * FILE_LINES))
    body = "    x = 1\n"
    assert find_too_long([Module("jko.sample", "def f():\n" + body * FUNCTION_LINES)])
    silent = '    """Doc.\n\n    More.\n    """\n' + "    # why\n\n" * 50
    assert not find_too_long([Module("jko.sample", "def f():\n" + silent + body * (FUNCTION_LINES - 1))])


@pytest.mark.parametrize(
    "body",
    [
        "if name == 'function':\n        return\n    assert name",
        "for k in range(3):\n        if k == name:\n            continue\n        assert k",
        "if name:\n        return\n    with pytest.raises(ValueError):\n        int(name)",
        "if name:\n        return\n    assert_close(name, name)",
    ],
)
def test_early_exits_are_found(body):
    assert find_early_exits(_modules(f"def test_it(name):\n    {body}\n"))


@pytest.mark.parametrize(
    "body",
    [
        "assert name\n    return",
        "def inner():\n        return 1\n    assert inner()",
        "for k in range(3):\n        assert k\n        if k:\n            break\n    assert k == 1",
    ],
)
def test_other_exits_are_free(body):
    assert not find_early_exits(_modules(f"def test_it(name):\n    {body}\n"))
    assert not find_early_exits(_modules("def helper(x):\n    if x:\n        return\n    assert x\n"))
