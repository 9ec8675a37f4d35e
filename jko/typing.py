"""Shapes in annotations: jaxtyping where it is installed (the tests enforce it), plain tensors otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float as Float
else:
    try:
        from jaxtyping import Float
    except ImportError:

        @final
        class Float:
            """Stand-in for `jaxtyping.Float`: the shape is documentation only."""

            def __class_getitem__(cls, item: Any) -> Any:
                """Drop the shape and keep the array type."""
                return item[0]


__all__ = ["Float", "Tensor"]
