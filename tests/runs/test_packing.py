"""A packed state comes back bit for bit, with its memory laid out as it was."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch

import jko
from jko.errors import InvalidInput, RunFolderError
from jko.runs import pack, unpack
from jko.schemes import StepState
from jko.schemes.minimizers.anderson import Secants
from tests.schemes.problems import attention, tokens


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_layout_comes_back(dtype: torch.dtype) -> None:
    base = torch.arange(60, dtype=dtype).reshape(3, 4, 5)
    for tensor in (
        base,
        base.mT,
        base.permute(2, 0, 1),
        base[:, 1:3],
        base[..., ::2],
        base[0, 0, 1:],
        base[1, 1, 1],
        base[:, :1].expand(3, 6, 5),
        base[0].mT.expand(2, 5, 4),
        torch.empty(0, 3, dtype=dtype),
        torch.tensor([math.nan, -0.0, math.inf], dtype=dtype),
    ):
        tensors, tree = pack(Secants(tensor, tensor, 0.1))
        back = unpack(tensors, tree).images
        assert torch.equal(back.nan_to_num(7), tensor.nan_to_num(7))
        assert back.dtype == dtype
        assert back.shape == tensor.shape
        if tensor.numel():
            assert back.stride() == tensor.stride()
            assert back.data_ptr() % 64 == tensor.data_ptr() % 64


def test_the_state_of_a_step_is_packed_whole() -> None:
    flow = attention(jko.initial_heads(2, 3, 1), "headwise")
    state = jko.JKO(0.01).step(flow, jko.ParticleMeasure(tokens(5))).state
    back = unpack(*pack(state), flow)
    assert back.flow is flow
    assert {part.name for part in fields(StepState)} == {"flow", "flow_state", "memory"}
    assert torch.equal(back.memory.images, state.memory.images)
    assert back.memory.tau == state.memory.tau
    assert dict(back.flow_state.columns) == dict(state.flow_state.columns)
    assert torch.equal(back.flow_state.evaluation.heads.mobility, state.flow_state.evaluation.heads.mobility)


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"state is a function, which a checkpoint cannot hold"):
        pack(lambda: None)
    tensors, tree = pack(Secants(torch.ones(2), torch.ones(2), 0.1))
    for bad in ({}, {**tree, "class": "os.system"}, {"class": "Secants", "fields": {}}):
        with pytest.raises(RunFolderError, match="cannot be put together"):
            unpack(tensors, bad)
    with pytest.raises(RunFolderError, match="cannot be put together"):
        unpack({}, tree)
