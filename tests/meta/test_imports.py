from __future__ import annotations

import pytest

from tests.meta.imports import Import, find_cycle, find_imports, find_layer_violations, read_layers
from tests.meta.source import Module, package_modules


def test_imports_only_go_down():
    modules = package_modules()
    assert not find_layer_violations(modules, find_imports(modules), read_layers())


def test_no_import_cycle():
    assert not find_cycle(find_imports(package_modules()))


def test_the_root_package_imports_nothing_of_itself():
    assert not [item for item in find_imports(package_modules()) if item.source == "jko"]


def test_layers_name_every_part_once():
    parts = [part for layer in read_layers() for part in layer]
    assert len(parts) == len(set(parts))


LAYERS = [{"low"}, {"high"}]


@pytest.mark.parametrize(
    "text",
    [
        "import jko.high",
        "from jko.high import x",
        "from jko import high",
        "from . import high",
        "from .high import x",
        "def f():\n    from jko.high import x",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import jko.high",
        "try:\n    import jko.high\nexcept ImportError:\n    pass",
    ],
)
def test_layer_rule_sees_an_import_upwards(text):
    modules = [Module("jko", "", True), Module("jko.low", text), Module("jko.high", "")]
    assert find_layer_violations(modules, find_imports(modules), LAYERS) == [
        "jko.low imports jko.high, which is above it"
    ]


def test_layer_rule_accepts_annotations_and_imports_downwards():
    low = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from jko.high import x"
    modules = [Module("jko.low", low), Module("jko.high", "import jko.low\nimport os")]
    assert not find_layer_violations(modules, find_imports(modules), LAYERS)


def test_layer_rule_sees_a_part_without_a_layer():
    modules = [Module("jko.stray", "")]
    assert find_layer_violations(modules, find_imports(modules), LAYERS) == ["jko.stray: no layer holds 'stray'"]


def test_cycle_rule_sees_a_cycle():
    modules = [Module("jko.a", "import jko.b"), Module("jko.b", "from jko import c"), Module("jko.c", "import jko.a")]
    assert set(find_cycle(find_imports(modules))) == {"jko.a", "jko.b", "jko.c"}


def test_cycle_rule_sees_a_cycle_through_a_package():
    modules = [
        Module("jko.p", "from jko.p.one import x", True),
        Module("jko.p.one", "from jko.p import y"),
    ]
    assert find_cycle(find_imports(modules))
    outside = [
        Module("jko.p", "from jko.p.one import x", True),
        Module("jko.p.one", "import jko.a"),
        Module("jko.p.two", ""),
        Module("jko.a", "import jko.p.two"),
    ]
    assert find_cycle(find_imports(outside))


def test_cycle_rule_accepts_siblings_and_deferred_imports():
    modules = [
        Module("jko.p", "from jko.p.one import x", True),
        Module("jko.p.one", "from jko.p.two import x"),
        Module("jko.p.two", "def f():\n    import jko.p.one"),
    ]
    imports = find_imports(modules)
    assert Import("jko.p.two", "jko.p.one", deferred=True) in imports
    assert not find_cycle(imports)
