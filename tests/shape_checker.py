"""Type checker for the import hook of jaxtyping: it looks at the shapes of arrays and at nothing else.

A full check of types would refuse bad arguments before the library does, and the tests of its messages want them to
arrive there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from beartype import beartype


def check_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    annotations = inspect.get_annotations(function)
    shapes = {name: hint for name, hint in annotations.items() if "Float[" in str(hint)}
    if not shapes:
        return function
    function.__annotations__ = shapes
    return beartype(function)
