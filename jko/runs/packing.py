"""Everything that the next step uses, as named tensors and plain data: nothing of it is computed anew on resuming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from jko.errors import InvalidInput, RunFolderError
from jko.flows import AbstractFlow
from jko.schemes import StepState
from jko.storable import STORABLE

__all__ = ["pack", "unpack"]

_ALIGNMENT = 64


def pack(value: Any, name: str = "state") -> tuple[dict[str, Tensor], Any]:
    """Return the tensors in a step's state, or in a measure, by name, and plain data that tell how they fit together.

    The flow itself is left out: it is given again.

    Raises:
        InvalidInput: for a state that holds what a file cannot.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _pack(value, name, tensors)


def unpack(tensors: Mapping[str, Tensor], tree: Any, flow: AbstractFlow | None = None) -> Any:
    """Return what `pack` took apart, every tensor with the same strides and the same alignment in memory.

    Raises:
        RunFolderError: for data that are none of `pack`, or a device that is not there.
    """
    try:
        return _unpack(tree, tensors, flow)
    except (KeyError, TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise RunFolderError(f"the state cannot be put together: {str(error).splitlines()[0]}") from error


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return _pack_tensor(value, name, tensors)
    if value is None or isinstance(value, bool | int | str):
        return {"plain": value}
    if isinstance(value, float):
        # Exact, and JSON has no inf or NaN.
        return {"float": value.hex()}
    if isinstance(value, Mapping):
        return {"mapping": {str(key): _pack(item, f"{name}.{key}", tensors) for key, item in value.items()}}
    if type(value).__name__ in STORABLE and is_dataclass(value):
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        content = {
            key: _pack(item, f"{name}.{key}", tensors)
            for key, item in parts.items()
            if not isinstance(item, AbstractFlow)
        }
        return {"class": type(value).__name__, "fields": content}
    raise InvalidInput(f"{name} is a {type(value).__name__}, which a checkpoint cannot hold; run without checkpoint")


def _pack_tensor(tensor: Tensor, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    # An axis of stride 0 repeats one entry, which is all that need be kept.
    kept = tensor.detach()
    for axis, stride in enumerate(kept.stride()):
        if stride == 0 and kept.shape[axis] > 1:
            kept = kept.narrow(axis, 0, 1)
    tensors[name] = kept.clone(memory_format=torch.contiguous_format)
    # The order of a sum, and with it the last bit, may depend on how the memory is laid out.
    return {
        "tensor": name,
        "shape": list(tensor.shape),
        "strides": list(kept.stride()),
        "offset": tensor.data_ptr() % _ALIGNMENT // tensor.element_size(),
        "device": str(tensor.device),
    }


def _unpack(tree: Any, tensors: Mapping[str, Tensor], flow: AbstractFlow | None) -> Any:
    if "plain" in tree:
        return tree["plain"]
    if "float" in tree:
        return float.fromhex(tree["float"])
    if "mapping" in tree:
        return {key: _unpack(item, tensors, flow) for key, item in tree["mapping"].items()}
    if "tensor" in tree:
        return _unpack_tensor(tensors[tree["tensor"]], tree)
    kind = STORABLE[tree["class"]]
    parts = {key: _unpack(item, tensors, flow) for key, item in tree["fields"].items()}
    if kind is StepState:
        # Checkpoints of version 0.1 call the minimizer's memory by what it was then.
        parts["memory"] = parts.pop("secants", parts.get("memory"))
        parts["flow"] = flow
    return kind(**parts)


def _unpack_tensor(kept: Tensor, tree: Any) -> Tensor:
    strides, offset = tree["strides"], tree["offset"]
    reach = sum((size - 1) * stride for size, stride in zip(kept.shape, strides, strict=True))
    memory = torch.empty(offset + max(reach, 0) + 1, dtype=kept.dtype, device=tree["device"])
    tensor = memory.as_strided(kept.shape, strides, offset)
    tensor.copy_(kept)
    return tensor.expand(tree["shape"])
