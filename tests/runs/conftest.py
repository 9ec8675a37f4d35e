from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test cuts the power, and waiting for the disk would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
