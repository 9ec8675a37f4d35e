"""A device that is not there: it computes on the CPU and is as strict as a GPU about where its operands live.

PyTorch lets Python stand in for a backend. Here a tensor of the device holds one of the CPU: every operation is run
on that one, once it is certain that no operand lives elsewhere. What a GPU would only slow down is counted: every
copy of the device's numbers to the host, and every array of double precision that is made there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map_only

_SETUP = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
NAME = "pretended"
_aten = torch.ops.aten
# Operations that read numbers of the device on the host.
_READS = (_aten._local_scalar_dense, _aten.equal, _aten.is_nonzero)
# Those whose result has a size that only the numbers tell: a GPU waits for them as well.
_WAITS = (_aten.nonzero, _aten.masked_select, _aten._unique2, _aten.unique_dim, _aten.unique_consecutive)
_NO_BACKWARD_PASS = -1
_COPIES = (_aten._to_copy, _aten.copy_, _aten._copy_from, _aten._copy_from_and_resize)
# What PyTorch would compose of a copy or of an empty array that grows, which a stand-in cannot do.
_DIRECT = (
    *(_aten._copy_from.default, _aten.eye.default, _aten.eye.m, _aten.linspace.default, _aten.logspace.default),
    *(_aten.arange.default, _aten.arange.start, _aten.arange.start_step, _aten.randperm.default),
)


@dataclass
class Traffic:
    """What was done on the device, by the names of the operations.

    Attributes:
        operations: how many were run.
        to_host: how many of them handed numbers to the host, or made it wait for a size.
        doubles: elements of the largest array of double precision that each made; single numbers do not count.
    """

    operations: Counter[str] = field(default_factory=Counter)
    to_host: Counter[str] = field(default_factory=Counter)
    doubles: Counter[str] = field(default_factory=Counter)


_LISTENERS: list[Traffic] = []
# A library that nobody holds takes its operations back.
_LIBRARIES: list[torch.library.Library] = []


@contextmanager
def watched() -> Iterator[Traffic]:
    """Count what happens on the pretended device inside the block."""
    traffic = Traffic()
    _LISTENERS.append(traffic)
    try:
        yield traffic
    finally:
        # By identity: two counts that are equal are not the same.
        _LISTENERS[:] = [listener for listener in _LISTENERS if listener is not traffic]


class PretendedTensor(Tensor):
    """A tensor that says that it lives on the pretended device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> PretendedTensor:
        assert inner.device.type == "cpu"
        outer = Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=f"{NAME}:0"
        )
        outer.inner = inner
        return outer

    __torch_function__ = torch._C._disabled_torch_function_impl

    def tolist(self) -> Any:
        # PyTorch refuses this one to subclasses.
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{self.inner!r} on {NAME}:0"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    packet, name = func.overloadpacket, func.overloadpacket.__name__
    operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    ours = [operand for operand in operands if isinstance(operand, PretendedTensor)]
    if packet not in _COPIES:
        _refuse_strangers(name, operands, bool(ours))
    if packet in (_aten._copy_from, _aten._copy_from_and_resize):
        func, args = _aten.copy_.default, (args[1], args[0], *args[2:])
    asked = kwargs.get("device")
    arguments, options = tree_map_only(PretendedTensor, lambda outer: outer.inner, (args, kwargs))
    if asked is not None:
        options["device"] = torch.device("cpu")
    result = func(*arguments, **options)
    there = torch.device(asked).type == NAME if asked is not None else bool(ours)
    if packet in _COPIES and func.overloadpacket is _aten.copy_:
        there = isinstance(args[0], PretendedTensor)
    reads = packet in (*_READS, *_WAITS) or (bool(ours) and not there) or _counts_a_mask(packet, args)
    wrapped = _outside(func, args, kwargs, result) if there else _detached(result, arguments, options)
    made = [leaf for leaf in tree_leaves(wrapped) if isinstance(leaf, PretendedTensor)]
    sizes = [leaf.numel() for leaf in made if leaf.dtype in (torch.float64, torch.complex128) and leaf.ndim]
    for listener in _LISTENERS:
        listener.operations[name] += 1
        if reads:
            listener.to_host[name] += 1
        if sizes:
            listener.doubles[name] = max(listener.doubles[name], *sizes)
    return wrapped


def _counts_a_mask(packet: Any, args: Any) -> bool:
    # x[mask] has the size that the mask says, and so has the v of x[mask] = v, unless it is a number.
    masked = packet in (_aten.index, _aten.index_put_) and any(i is not None and i.dtype == torch.bool for i in args[1])
    return masked and (packet is _aten.index or args[2].numel() > 1)


def _refuse_strangers(name: str, operands: list[Tensor], ours: bool) -> None:
    # As on CUDA, a number in a CPU tensor may stand beside an array.
    for operand in operands:
        if ours and not isinstance(operand, PretendedTensor) and operand.ndim:
            found = f"found {NAME}:0 and {operand.device} with shape {tuple(operand.shape)}"
            error = RuntimeError(f"{name}: expected all tensors to be on the same device, but {found}")
            if torch._C._current_graph_task_id() == _NO_BACKWARD_PASS:
                raise error
            # In the midst of a backward pass an error of Python ends the process: it is raised at the end of the pass.
            torch.autograd.Variable._execution_engine.queue_callback(partial(_throw, error))


def _throw(error: Exception) -> None:
    raise error


def _outside(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Any:
    """Return the result on the device; what was written in place is the argument itself."""
    known = {id(leaf.inner): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, PretendedTensor)}
    grown = [leaf.shape for leaf in known.values() if leaf.shape != leaf.inner.shape]
    if grown:
        raise NotImplementedError(f"{func} changes the shape {tuple(grown[0])} of an array of the device in place")
    return tree_map_only(Tensor, lambda a: known[id(a)] if id(a) in known else PretendedTensor(a), result)


def _detached(result: Any, arguments: Any, options: Any) -> Any:
    """Return a result on the host that shares no memory with the device."""
    theirs = {id(leaf) for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)}
    return tree_map_only(Tensor, lambda inner: inner.clone() if id(inner) in theirs else inner, result)


def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(func, args, kwargs)


class _DeviceModule(backend_registration._DummyBackendModule if _SETUP else object):  # type: ignore[misc]
    """What PyTorch asks of `torch.pretended`. The device draws its random numbers on the CPU."""

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        torch.set_rng_state(state)


def start() -> str | None:
    """Make the device known to this process and return its name; None where this PyTorch cannot pretend.

    Only where there is no GPU: PyTorch allows one accelerator beside the CPU.
    """
    if _SETUP is None:
        return None
    if not _LIBRARIES:
        _SETUP(rename=NAME, backend_module=_DeviceModule())
        # Backward passes stay in the thread of the caller, as they do on the CPU.
        torch.autograd.set_multithreading_enabled(False)
        every, some = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
        every.fallback(_fallback, "PrivateUse1")
        for func in _DIRECT:
            some.impl(func.name(), partial(_fallback, func), "PrivateUse1")
        _LIBRARIES.extend((every, some))
    return NAME
