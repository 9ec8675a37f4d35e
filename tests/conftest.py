"""Fixtures for every test: devices, precisions, reproducible hypothesis profiles, untouched global state."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before anything imports matplotlib: no test may need a display.
os.environ["MPLBACKEND"] = "Agg"

import pytest
import torch
from hypothesis import settings

from tests.devices import pretended

# A test that fails for one person fails for all; whoever looks for new examples asks for them.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# A GPU where there is one, else the pretended device.
_ACCELERATOR = "cuda" if torch.cuda.is_available() else pretended.start()
_NO_ACCELERATOR = "no GPU, and this PyTorch cannot pretend to have one"
_THERE = {"marks": pytest.mark.accelerator}
_DOUBLE, _SINGLE = torch.float64, torch.float32
_ROWS = {
    ("dtype",): [pytest.param(_DOUBLE, id="float64"), pytest.param(_SINGLE, id="float32")],
    ("device",): [pytest.param("cpu", id="cpu"), pytest.param("accelerator", **_THERE)],
    # A device adds one row: single precision, in which a constant of the wrong precision shows as well.
    ("dtype", "device"): [
        pytest.param(_DOUBLE, "cpu", id="float64-cpu"),
        pytest.param(_SINGLE, "cpu", id="float32-cpu"),
        pytest.param(_SINGLE, "accelerator", id="float32-accelerator", **_THERE),
    ],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    own = {name for names in own for name in ((names,) if isinstance(names, str) else names)}
    wanted = tuple(name for name in ("dtype", "device") if name in metafunc.fixturenames and name not in own)
    if wanted:
        metafunc.parametrize(wanted, _ROWS[wanted], indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, then the accelerator; `accelerator` is the second alone, for a test that is about devices."""
    return torch.device("cpu") if request.param == "cpu" else request.getfixturevalue("accelerator")


@pytest.fixture
def accelerator() -> torch.device:
    if _ACCELERATOR is None:
        pytest.skip(_NO_ACCELERATOR)
    return torch.device(_ACCELERATOR)


def pytest_itemcollected(item: pytest.Item) -> None:
    if "accelerator" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.accelerator)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    rows = sum("accelerator" in report.keywords for report in reports)
    name = {None: "none", "cuda": "GPU", pretended.NAME: "a pretended device on the CPU"}[_ACCELERATOR]
    terminalreporter.write_line(f"accelerator: {name}, {rows} rows ran there")


@pytest.fixture
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
