"""Read-only tables of numbers by column name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor

from jko.status import Status

__all__ = ["Records"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Records(Mapping[str, Any]):
    """Columns of equal length, by name or as attributes: `records["energy"]`, `records.energy`.

    Numeric columns are float64 tensors on the CPU; `status`, where present, is a list of `Status`. A column that
    the flow or the scheme does not have is absent.
    """

    columns: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the columns as plain data, since a read-only view cannot be."""
        return _rebuilt, (dict(self.columns),)

    def __repr__(self) -> str:
        """Name the columns and their length."""
        length = len(next(iter(self.columns.values()), ()))
        return f"Records({length} rows: {', '.join(self.columns)})"

    @staticmethod
    def of(rows: list[Mapping[str, float]], status: list[Status] | None = None) -> Records:
        """Collect rows that all have the same keys.

        Raises:
            ValueError: when the rows differ in their keys, which is a fault of the caller.
        """
        names = list(rows[0]) if rows else []
        if any(list(row) != names for row in rows):
            raise ValueError("rows of a table must have the same columns")
        columns: dict[str, Any] = {
            name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in names
        }
        if status is not None:
            columns["status"] = list(status)
        return Records(MappingProxyType(columns))

    def numeric(self) -> dict[str, Tensor]:
        """Return the numeric columns."""
        return {name: column for name, column in self.columns.items() if isinstance(column, Tensor)}

    def __getitem__(self, name: str) -> Any:
        """Return a column."""
        return self.columns[name]

    def __getattr__(self, name: str) -> Any:
        """Return a column as an attribute."""
        try:
            return object.__getattribute__(self, "columns")[name]
        except KeyError:
            raise AttributeError(f"no column {name!r}; there are {sorted(self.columns)}") from None

    def __iter__(self) -> Iterator[str]:
        """Iterate over the column names."""
        return iter(self.columns)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.columns)


def _rebuilt(columns: dict[str, Any]) -> Records:
    return Records(MappingProxyType(columns))
