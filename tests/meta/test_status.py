from __future__ import annotations

import pytest

from jko import Status


@pytest.mark.parametrize("status", Status)
def test_every_status_has_advice(status):
    assert len(status.advice.split()) >= 4
    assert status.advice.endswith(".")


def test_values_are_the_names():
    assert [status.value for status in Status] == [status.name.lower() for status in Status]
