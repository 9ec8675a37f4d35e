"""Checks of arguments: each refuses bad input with one sentence that names the value, the shape and the remedy."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jko.errors import InvalidInput

__all__ = [
    "as_float_tensor",
    "check_device",
    "check_finite",
    "check_finite_number",
    "check_integer",
    "check_jumps",
    "check_kind",
    "check_no_gradient",
    "check_number",
    "check_positive",
    "check_sign",
    "check_simplex",
    "check_tensors",
    "first_bad_index",
    "simplex_tolerance",
]

_FLOATS = (torch.float32, torch.float64)
_LONGEST_VALUE = 160  # characters of a value in an error; a longer one is named by its class


def as_float_tensor(value: Any, name: str, *, dtype: torch.dtype | None = None, copy: bool = True) -> Tensor:
    """Turn `value` into a floating tensor; integers and lists of numbers become float64.

    Raises:
        InvalidInput: for complex, boolean, half-precision or non-numeric input, and for a tensor that requires a
            gradient, which would get none.
    """
    check_no_gradient(value, name)
    try:
        # Through NumPy, where a list of floats is float64: torch would round it to its default precision, and it
        # warns of read-only arrays and refuses negative strides.
        tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{name} must be an array of numbers, got {type(value).__name__}: {error}") from None
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise InvalidInput(f"{name} must hold real numbers, got dtype {tensor.dtype}; convert it first")
    if tensor.is_floating_point() and tensor.dtype not in _FLOATS:
        raise InvalidInput(f"{name} has dtype {tensor.dtype}; use float32 or float64")
    if dtype is None:
        dtype = tensor.dtype if tensor.is_floating_point() else torch.float64
    return tensor.to(dtype, copy=copy)


def check_no_gradient(value: Any, name: str) -> None:
    """Refuse a tensor that requires a gradient where none is computed: whoever trains it would train nothing.

    Under `torch.no_grad()` nobody asks for one.
    """
    if isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled():
        raise InvalidInput(
            f"{name} of shape {tuple(value.shape)} requires a gradient, but nothing here has a derivative in it; pass "
            f"{name}.detach() if the values are all you mean"
        )


def first_bad_index(bad: Tensor) -> tuple[int, ...]:
    """Index of the first true entry of a boolean tensor."""
    return tuple(int(i) for i in bad.nonzero()[0])


def check_finite(tensor: Tensor, name: str) -> None:
    """Refuse NaN and inf, naming the array and the first bad index."""
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        index = first_bad_index(~finite)
        raise InvalidInput(
            f"{name}{list(index)} is {float(tensor[index])}; every entry must be finite (shape {tuple(tensor.shape)})"
        )


def simplex_tolerance(dtype: torch.dtype) -> float:
    """How far a sum of weights of this dtype may be from 1 by rounding."""
    return 1e-5 if dtype == torch.float32 else 1e-9


def check_simplex(weights: Tensor, name: str, *, tolerance: float | None = None) -> None:
    """Refuse weights that are not on the simplex along the last axis; nothing is renormalized.

    Raises:
        InvalidInput: naming the first negative or non-finite entry, or the sum that differs from 1.
    """
    check_finite(weights, name)
    negative = weights < 0
    if bool(negative.any()):
        index = first_bad_index(negative)
        raise InvalidInput(f"{name}{list(index)} = {float(weights[index])} is negative; weights are at least 0")
    total = weights.to(torch.float64).sum(-1)
    off = (total - 1).abs() > (simplex_tolerance(weights.dtype) if tolerance is None else tolerance)
    if bool(off.any()):
        value = float(total[first_bad_index(off)]) if total.ndim else float(total)
        raise InvalidInput(f"{name} sum to {value:.10g}, not 1; divide them by their sum if that is what you mean")


def check_number(value: Any, name: str) -> float:
    """Return `value` as a float; text and truth values are no numbers, though Python would convert them."""
    check_no_gradient(value, name)
    try:
        if isinstance(value, str | bytes | bytearray | bool | np.bool_):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(f"{name} must be a number, got {value!r}") from None


def check_positive(value: Any, name: str, *, zero: bool = False) -> float:
    """Return `value` as a float if it is finite and positive (or zero, where allowed)."""
    number = check_number(value, name)
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise InvalidInput(f"{name} must be {'at least 0' if zero else 'positive'} and finite, got {value!r}")
    return number


def check_integer(value: Any, name: str, *, least: int) -> int:
    """Return `value` as an int if it is a whole number of at least `least`, of any integer type or a whole float."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except TypeError:
        raise InvalidInput(f"{name} must be a whole number, got {value!r}") from None
    if number < least:
        raise InvalidInput(f"{name} must be at least {least}, got {value!r}")
    return number


def check_sign(sign: Any) -> int:
    """Return `sign` if it is +1 (minimize E) or -1 (minimize -E)."""
    if isinstance(sign, bool) or sign not in (1, -1):
        raise InvalidInput(f"sign must be +1 (minimize E) or -1 (minimize -E), got {sign!r}")
    return int(sign)


def check_finite_number(value: Any, name: str) -> float:
    """Return `value` as a float if it is a finite number of any sign."""
    number = check_number(value, name)
    if not math.isfinite(number):
        raise InvalidInput(f"{name} must be finite, got {value!r}")
    return number


def check_jumps(jumps: Any, *, moves: bool = True) -> tuple[float, ...]:
    """Return times of jumps, sorted and each once; what does not move has none.

    Raises:
        InvalidInput: for anything but finite numbers, and for jumps of something that does not depend on t.
    """
    if isinstance(jumps, str) or not isinstance(jumps, Iterable):
        raise InvalidInput(f"jumps must be the times of the jumps, such as (0.5,), got {jumps!r}")
    times = tuple(sorted({check_finite_number(time, "every jump") for time in jumps}))
    if times and not moves:
        raise InvalidInput(f"jumps = {times} are given for something that does not depend on t; leave them out")
    return times


def check_device(name: str) -> torch.device:
    """Return the device of this name, if it can be used here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"device {name!r} cannot be used here: {reason}") from None
    return device


def check_kind(value: Any, kind: type | tuple[type, ...], name: str, *, example: str = "", hint: str = "") -> None:
    """Refuse what is no instance of a class, or of one of several.

    Args:
        value: what was given.
        kind: the class or classes.
        name: of the argument.
        example: shows an instance.
        hint: what to do; where a class itself was given, the error says to call it instead.
    """
    if isinstance(value, kind):
        return
    kinds = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
    such = f" such as {example}" if example else ""
    hint = f"write {value.__name__}()" if isinstance(value, type) else hint
    text = type(value).__name__ if isinstance(value, Tensor | np.ndarray) else repr(value)
    got = text if len(text) <= _LONGEST_VALUE else type(value).__name__
    raise InvalidInput(f"{name} must be an instance of {kinds}{such}, got {got}" + (f"; {hint}" if hint else ""))


def check_tensors(**values: Any) -> None:
    """Refuse arguments that are no tensors, by their names."""
    for name, value in values.items():
        check_kind(value, Tensor, name, hint="use torch.as_tensor")
