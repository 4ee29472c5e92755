"""Inputs of several arrays: which fields a sample has, and how they are packed into one row of numbers.

A data set holds one float32 row for each sample, with its fields one after the other, so that whatever handles single
arrays handles these. Only the model sees fields: its rows are unpacked right before its forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.errors import DataError

LARGEST_INTEGER = 2**24
"""The largest whole number up to which float32 has all whole numbers."""
FieldKind = Literal["float", "bytes", "integer", "bool"]
"""What a field holds; "bytes" are the pixels of images, 0 to 255, which become floats when they are scaled."""
InputShape = tuple[int, ...] | Mapping[str, tuple[int, ...]] | tuple[tuple[int, ...], ...]
"""The shape of an input; of several fields theirs, by name or by position."""


@dataclass(frozen=True)
class InputField:
    """One array of an input: its name, the shape for one sample, and what it holds."""

    name: str
    shape: tuple[int, ...]
    kind: FieldKind = "float"

    @property
    def size(self) -> int:
        """How many numbers a sample has in this field."""
        return math.prod(self.shape)

    @property
    def scalable(self) -> bool:
        """Whether its values are amounts, and not numbers of tokens or a mask."""
        return self.kind in ("float", "bytes")

    def describe(self) -> str:
        """Name, shape and kind, in a few words."""
        return f"{self.name} ({' x '.join(map(str, self.shape)) or 'one'} {self.kind})"


@dataclass(frozen=True)
class InputFields:
    """The fields of an input, in order. named: the model takes them by name, as keywords; otherwise by position.

    >>> fields = InputFields((InputField("ids", (2,), "integer"), InputField("age", ())), named=True)
    >>> fields.pack([np.array([[7, 9]]), np.array([0.5])])
    array([[7. , 9. , 0.5]])
    """

    fields: tuple[InputField, ...]
    named: bool

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> InputFields:
        """The fields that `record()` described, as JSON has them."""
        try:
            fields = tuple(
                InputField(each["name"], tuple(int(n) for n in each["shape"]), each["kind"])
                for each in record["fields"]
            )
            return cls(fields, bool(record["named"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"a record of input fields must have fields with name, shape and kind, and named, got {record!r}; "
                f"write it again"
            ) from error

    def record(self) -> dict[str, Any]:
        """The fields as JSON can write them."""
        fields = [{"name": each.name, "shape": list(each.shape), "kind": each.kind} for each in self.fields]
        return {"named": self.named, "fields": fields}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields; those of a tuple are their positions."""
        return tuple(each.name for each in self.fields)

    @property
    def size(self) -> int:
        """How many numbers a sample has."""
        return sum(each.size for each in self.fields)

    @property
    def columns(self) -> tuple[slice, ...]:
        """Where each field is in a row."""
        stops = np.cumsum([each.size for each in self.fields]).tolist()
        return tuple(slice(stop - each.size, stop) for stop, each in zip(stops, self.fields, strict=True))

    @property
    def shape(self) -> InputShape:
        """The fields' shapes, as a function that builds a model gets them: by name, or by position."""
        return {f.name: f.shape for f in self.fields} if self.named else tuple(f.shape for f in self.fields)

    def describe(self) -> str:
        """The fields in one line."""
        return ", ".join(each.describe() for each in self.fields)

    def pack(self, arrays: Sequence[NDArray[Any]], dtype: Any = np.float64) -> NDArray[Any]:
        """Rows, (n, size), of arrays (n, *shape), one for each field."""
        rows = np.empty((len(arrays[0]), self.size), dtype=dtype)
        for where, values in zip(self.columns, arrays, strict=True):
            rows[:, where] = np.reshape(values, (len(values), -1))
        return rows

    def split(self, rows: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """The arrays that rows were packed of: whole numbers as int64, masks as bool."""
        types = {"integer": np.dtype(np.int64), "bool": np.dtype(np.bool_), "bytes": np.dtype(np.uint8)}
        return tuple(
            (np.rint(rows[:, where]) if each.kind == "bytes" else rows[:, where])
            .astype(types.get(each.kind, rows.dtype))
            .reshape(len(rows), *each.shape)
            for where, each in zip(self.columns, self.fields, strict=True)
        )

    def together(self, values: Sequence[Any]) -> dict[str, Any] | tuple[Any, ...]:
        """One value for each field, as a dictionary or a tuple."""
        return dict(zip(self.names, values, strict=True)) if self.named else tuple(values)

    def unpack(self, rows: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a model is called with, for a tensor of rows (n, size): arguments by position, and by name."""
        values = []
        for where, each in zip(self.columns, self.fields, strict=True):
            part = rows[:, where].reshape(rows.shape[0], *each.shape)  # len(rows) would fix the number when traced
            values.append(part.long() if each.kind == "integer" else part.bool() if each.kind == "bool" else part)
        return ((), dict(zip(self.names, values, strict=True))) if self.named else (tuple(values), {})

    def arguments(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a model: a single tensor of packed rows is unpacked, fields themselves are passed on."""
        packed = len(inputs) == 1 and not named and tuple(getattr(inputs[0], "shape", ())[1:]) == (self.size,)
        return self.unpack(inputs[0]) if packed else (inputs, named)
