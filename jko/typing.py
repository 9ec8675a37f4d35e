"""Shapes in annotations (jaxtyping where it is installed, plain tensors otherwise), and helpers of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, final

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


__all__ = ["Float", "Tensor", "default", "settle"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def default(method: _Method) -> _Method:
    """Mark what an abstract class implements for members with nothing of their own to say: only this they override."""
    return method


def settle(instance: object, **values: Any) -> None:
    """Set fields of a frozen dataclass, in `__post_init__`, to what its checks made of them: a float for an int."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)
