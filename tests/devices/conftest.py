from __future__ import annotations

import pytest

from tests.devices import pretended


@pytest.fixture
def there(accelerator: object) -> str:
    """The name of the pretended device: these tests are about the device itself, not about what runs on it."""
    if str(accelerator) != pretended.NAME:
        pytest.skip("a GPU is there, and PyTorch has room for one accelerator")
    return pretended.NAME
