"""The pretended device is as strict as a GPU, counts what a GPU would wait for, and computes what the CPU computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.devices.pretended import PretendedTensor, watched

F32, F64 = torch.float32, torch.float64
MASK, INDEX = [True, False, True], [2, 0]


def array(there: str = "cpu", dtype: torch.dtype = F32) -> Tensor:
    return torch.tensor([[1.0, 2.0], [3.0, 5.0], [8.0, 13.0]], dtype=dtype).to(there)


def assign(x: Tensor, key: Any, value: Any) -> Tensor:
    x[key] = value
    return x


def backward_through(x: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
    y = 2 * x.requires_grad_()
    y.register_hook(rule)
    return torch.autograd.grad(y.sum(), x)[0]


MIXED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "sum of arrays": lambda x, host: x + host,
    "host first": lambda x, host: host * x,
    "matrix product": lambda x, host: x.mT @ host,
    "cat": lambda x, host: torch.cat([x, host]),
    "where": lambda x, host: torch.where(x > 2, x, host),
    "in place": lambda x, host: x.add_(host),
    "into the host": lambda x, host: host.add_(x),
    "choice by a mask of the host": lambda x, host: x[host[:, 0] > 2],
    "assignment by a mask of the host": lambda x, host: assign(x, host[:, 0] > 2, 0.0),
    "assignment of an array of the host": lambda x, host: assign(x, torch.tensor(INDEX).to(x.device), host[:2]),
    "comparison": torch.equal,
    "backward": lambda x, host: backward_through(x, lambda g: g * host),
    "numpy": lambda x, host: x.numpy(),
    "numpy without a word": lambda x, host: np.asarray(x),
}


@pytest.mark.parametrize("name", MIXED)
def test_an_operand_of_another_device_is_refused(there: str, name: str) -> None:
    # The same on the CPU alone is no error.
    MIXED[name](array(), array())
    with pytest.raises(RuntimeError, match=r"device|not supported for tensor subclasses"):
        MIXED[name](array(there), array())


def test_a_number_of_the_host_may_stand_beside_an_array(there: str) -> None:
    assert torch.equal((array(there) * torch.tensor(2.0)).cpu(), 2 * array())
    assert torch.equal(assign(array(there), 0, torch.tensor(4.0)).cpu(), assign(array(), 0, 4.0))


def test_arrays_are_made_there(there: str) -> None:
    x = array(there)
    made = [
        *(torch.zeros(3, device=there), torch.ones(3, device=there), torch.full((3,), 2.0, device=there)),
        *(torch.empty(3, device=there), torch.eye(3, device=there), torch.arange(3, device=there)),
        *(torch.linspace(0, 1, 3, device=there), torch.triu_indices(3, 3, device=there)),
        *(torch.tensor([1.0, 2.0], device=there), x.new_ones(3), torch.zeros_like(x), x.clone(), x.double(), x[0]),
        torch.from_numpy(np.ones(3)).to(there),
    ]
    assert {str(a.device) for a in made} == {f"{there}:0"}
    assert {type(a) for a in made} == {PretendedTensor}
    assert all(a.shape == a.inner.shape for a in made)
    assert torch.eye(3, device=there)[1].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("key", "value"),
    [(0, 7.0), ((slice(0, 2), 1), 7.0), (MASK, 7.0), (MASK, [[7.0, 9.0]]), (INDEX, [[1.0, 2.0], [3.0, 4.0]])],
    ids=["row", "slice", "mask", "mask of rows", "rows"],
)
def test_assignment_by_index_is_that_of_the_cpu(there: str, key: Any, value: Any) -> None:
    results = []
    for device in ("cpu", there):
        at = torch.tensor(key, device=device) if isinstance(key, list) else key
        new = torch.tensor(value, device=device) if isinstance(value, list) else value
        results.append(assign(array(device), at, new))
    assert results[1].device.type == there
    assert not torch.equal(results[0], array())
    assert torch.equal(results[1].cpu(), results[0])


def test_views_and_work_in_place_share_memory(there: str) -> None:
    x = array(there)
    x[1].mul_(2)
    x.mT[0, 0].fill_(-1)
    assert x.tolist() == [[-1.0, 2.0], [6.0, 10.0], [8.0, 13.0]]
    assert x.add_(1) is x
    # What comes to the host is a copy.
    x.cpu().zero_()
    assert float(x[0, 1]) == 3.0


def test_growing_in_place_is_refused(there: str) -> None:
    with pytest.raises(NotImplementedError, match=r"resize_.* changes the shape \(3, 2\)"):
        array(there).resize_(12)


def test_derivatives_are_those_of_the_cpu(there: str) -> None:
    gradients = []
    for device in ("cpu", there):
        x = array(device, F64).requires_grad_()
        y = x.clone()
        # Assigned in place: the rule of derivatives that goes through views.
        y[1] = 3 * x[0]
        value = (torch.linalg.solve(y[:2] @ y[:2].mT + torch.eye(2, dtype=F64, device=device), y[1:].exp())).sum()
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        gradients.append(torch.autograd.grad(gradient.square().sum(), x)[0])
    assert gradients[1].device.type == there
    assert torch.allclose(gradients[1].cpu(), gradients[0], rtol=1e-14)


READS: dict[str, Callable[[Tensor], object]] = {
    "float": lambda x: float(x[0, 0]),
    "bool": lambda x: bool(x.any()),
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu", F64),
    "tolist": lambda x: x.tolist(),
    "equal": lambda x: torch.equal(x, x),
    "copy into the host": lambda x: torch.empty(3, 2).copy_(x),
    "choice by a mask": lambda x: x[x > 2],
    "assignment of rows by a mask": lambda x: assign(x, x[:, 0] > 2, 2 * x[:2]),
    "nonzero": lambda x: x.nonzero(),
}
QUIET: dict[str, Callable[[Tensor], object]] = {
    "sums": lambda x: (x * 2 + x.mean()).sum(-1),
    "products": lambda x: x.mT @ x,
    "precision": lambda x: x.double(),
    "shapes": lambda x: torch.zeros(len(x), device=x.device),
    "choice": lambda x: torch.where(x > 2, x, 0.0),
    "copy within the device": lambda x: torch.empty_like(x).copy_(x),
    "copy to the device": lambda x: torch.ones(3).to(x.device),
    "assignment": lambda x: assign(x, 0, 1.0),
    "assignment of a number by a mask": lambda x: assign(x, x > 2, 1.0),
}


@pytest.mark.parametrize("name", [*READS, *QUIET])
def test_what_reads_the_device_is_counted_once_and_nothing_else_is(there: str, name: str) -> None:
    x = array(there)
    with watched() as traffic:
        {**READS, **QUIET}[name](x)
    assert traffic.operations.total() >= 1
    assert traffic.to_host.total() == (name in READS), traffic.to_host
    # Nothing is counted after the block.
    float(x.sum())
    assert traffic.to_host.total() == (name in READS)


def test_arrays_of_double_precision_are_seen_with_their_size(there: str) -> None:
    x = array(there)
    with watched() as traffic:
        x.exp() @ x.mT + torch.tensor(2.0, dtype=F64)
    assert not traffic.doubles
    with watched() as traffic:
        x * torch.ones(2, dtype=F64, device=there)
        torch.linspace(0, 1, 5, dtype=F64, device=there)
    assert traffic.doubles["mul"] == 6
    assert traffic.doubles["linspace"] == 5
