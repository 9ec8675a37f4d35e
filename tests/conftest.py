"""Fixtures for every test: devices, precisions, reproducible hypothesis profiles, untouched global state."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before anything imports matplotlib: no test may need a display.
os.environ["MPLBACKEND"] = "Agg"

import pytest
import torch
from hypothesis import settings

# A test that fails for one person fails for all; whoever looks for new examples asks for them.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, _NO_CUDA])])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def _global_state() -> dict[str, object]:
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "number of threads": torch.get_num_threads(),
        "random state": torch.get_rng_state().numpy().tobytes(),
    }


@pytest.fixture(autouse=True)
def global_state_is_untouched() -> Iterator[None]:
    before = _global_state()
    yield
    after = _global_state()
    changed = [name for name in before if before[name] != after[name]]
    if changed:
        # Put it back first: one culprit must not fail every test after it.
        torch.set_default_dtype(before["default dtype"])
        torch.set_default_device(before["default device"])
        torch.set_grad_enabled(before["grad mode"])
        torch.set_num_threads(before["number of threads"])
        torch.set_rng_state(torch.frombuffer(bytearray(before["random state"]), dtype=torch.uint8))
    assert not changed, f"the test changed global state of torch: {', '.join(changed)}"
