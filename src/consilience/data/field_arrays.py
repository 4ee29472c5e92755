"""Arrays of several fields as the user gives them, checked and packed into rows: a dictionary, or a tuple.

Fields keep the shapes in which they are given, except images: four axes, whose channels come first as in a single
array. Bytes with three axes or more are pixels; other whole numbers are numbers of something, and are never scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.errors import DataError
from consilience.input_fields import LARGEST_INTEGER, FieldKind, InputField, InputFields

IMAGE_AXES = 4
"""Of an array that holds images with channels."""
_PICTURE_AXES = 3  # of an array of bytes, at least, that holds pictures: (n, height, width)


def has_fields(inputs: Any) -> bool:
    """Whether inputs are several arrays: a dictionary, or a tuple."""
    return isinstance(inputs, Mapping | tuple)


def pack_fields(what: str, given: Any, arrays: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], InputFields]:
    """Rows (n, numbers) of checked arrays (n, ...), and the description of their fields."""
    names = field_names(what, given)
    fields = InputFields(
        tuple(
            InputField(name, values.shape[1:], field_kind(values)) for name, values in zip(names, arrays, strict=True)
        ),
        named=isinstance(given, Mapping),
    )
    for name, values in zip(names, arrays, strict=True):
        if len(values) != len(arrays[0]):
            raise DataError(
                f"{what}: field {name!r} has {len(values)} samples, and field {names[0]!r} has {len(arrays[0])}; give "
                f"one entry of each field for each sample"
            )
        check_integers(f"{what}: field {name!r}", values)
    wide = any(values.dtype.kind == "f" and values.dtype.itemsize > np.dtype(np.float32).itemsize for values in arrays)
    return fields.pack(arrays, np.float64 if wide else np.float32), fields


def as_given(rows: NDArray[Any], fields: InputFields | None) -> Any:
    """Unscaled inputs as `Dataset.from_arrays` takes them: one array, or the fields that rows were packed of."""
    return rows if fields is None else fields.together(fields.split(rows))


def field_names(what: str, given: Any) -> list[str]:
    """The names of fields; those of a tuple are their positions. No fields, or names that are no words, are refused."""
    names = list(given) if isinstance(given, Mapping) else [str(place) for place in range(len(given))]
    if not names:
        raise DataError(
            f"{what} are an empty {type(given).__name__}; give one array for each argument of the model's forward, "
            f'such as {{"input_ids": ids, "attention_mask": mask}}'
        )
    for name in names:
        if not isinstance(name, str) or (isinstance(given, Mapping) and not name.isidentifier()):
            raise DataError(
                f"{what} have a field named {name!r}; use the names of the arguments of the model's forward, such as "
                f"'input_ids'"
            )
    return names


def field_kind(values: NDArray[Any]) -> FieldKind:
    """What an array (n, ...) holds."""
    if values.dtype == np.uint8 and values.ndim >= _PICTURE_AXES:
        return "bytes"
    return "bool" if values.dtype.kind == "b" else "float" if values.dtype.kind == "f" else "integer"


def check_integers(what: str, values: NDArray[Any]) -> None:
    """Refuse whole numbers that float32 cannot hold."""
    if values.dtype.kind not in "iu" or not values.size:
        return
    low, high = int(values.min()), int(values.max())
    if max(high, -low) > LARGEST_INTEGER:
        raise DataError(
            f"{what} has whole numbers from {low} to {high}, and at most {LARGEST_INTEGER:,} (2^24) are kept exactly; "
            f"number its values 0, 1, 2, ..., or give amounts as floats: values.astype(numpy.float64)"
        )


def check_same_fields(what: str, train: InputFields | None, test: InputFields | None) -> None:
    """Refuse training and test inputs with other fields."""
    if train == test:
        return
    shown = ["a single array" if each is None else each.describe() for each in (train, test)]
    raise DataError(f"{what}: training inputs are {shown[0]}, test inputs {shown[1]}; give both the same fields")
