"""Tables by column name."""

from __future__ import annotations

import math

import pytest
import torch

from jko.records import Records
from jko.status import Status

ROWS = [{"t": 0.1, "energy": 2.0}, {"t": 0.2, "energy": math.pi}]


def test_columns_by_name_and_attribute() -> None:
    records = Records.of(ROWS, [Status.SUCCESS, Status.SUCCESS])
    assert records.energy.dtype == torch.float64
    assert records.energy.device.type == "cpu"
    assert records["energy"].tolist() == [2.0, math.pi]
    assert records.energy is records["energy"]
    assert records.status == [Status.SUCCESS] * 2
    assert list(records) == ["t", "energy", "status"]
    assert len(records) == 3
    assert "energy" in records
    assert "slope2" not in records
    assert set(records.numeric()) == {"t", "energy"}
    assert dict(records)["t"].tolist() == [0.1, 0.2]
    assert records.get("slope2") is None


def test_missing_columns() -> None:
    records = Records.of(ROWS)
    assert "status" not in records
    with pytest.raises(KeyError):
        records["slope2"]
    with pytest.raises(AttributeError, match=r"no column 'slope2'; there are \['energy', 't'\]"):
        _ = records.slope2
    assert not hasattr(records, "slope2")


def test_read_only() -> None:
    records = Records.of(ROWS)
    with pytest.raises((AttributeError, TypeError)):
        records.energy = torch.zeros(2)
    with pytest.raises(TypeError):
        records["energy"] = torch.zeros(2)
    with pytest.raises(TypeError):
        records.columns["energy"] = torch.zeros(2)
    status = [Status.SUCCESS] * 2
    records = Records.of(ROWS, status)
    status.append(Status.STOPPED)
    assert len(records.status) == 2


def test_no_rows() -> None:
    assert len(Records.of([])) == 0
    assert Records.of([], []).status == []


@pytest.mark.parametrize("other", [{"t": 0.2}, {"t": 0.2, "energy": 1.0, "slope2": 1.0}, {"energy": 1.0, "t": 0.2}])
def test_rows_of_different_columns_are_a_fault(other: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="same columns"):
        Records.of([ROWS[0], other])
