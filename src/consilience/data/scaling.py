"""How inputs are scaled before training: nothing, all pixels by one mean, or each column of a table by its own.

Inputs of several fields have one scaling for each field.

A scaling is part of the task: learners that work together use the same one, and whoever uses a model later needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.data.raw_dataset import RawDataset
from consilience.errors import DataError
from consilience.input_fields import InputField, InputFields

_BYTE = 255
_CHUNK = 1 << 22  # bytes counted at once, so that little memory is used
_NAMED = 5  # columns that an error names

ScalingKind = Literal["none", "pixels", "columns", "fields"]
ScalingChoice = Literal["auto", "none", "pixels", "columns"]
SCALINGS = ("auto", "none", "pixels", "columns")
"""What may be asked for; "auto" is the kind that suits the inputs."""
FieldScalings = Mapping[str, ScalingChoice]
"""What may be asked for of inputs with several fields, by field; "auto" for a field that is not named."""


@dataclass(frozen=True)
class FieldScaling:
    """The scaling of one of several fields, and how many numbers a sample has in it."""

    name: str
    size: int
    scaling: Scaling


@dataclass(frozen=True)
class Scaling:
    """(value / pixel_max - mean) / std; the default leaves values as they are.

    kind: "pixels" has one mean and std for all values, "columns" one for each column of a table, "none" has none, and
    "fields" a scaling of its own for each field of a row.

        >>> Scaling("columns", mean=(1.0, 10.0), std=(2.0, 5.0)).apply(np.array([[3.0, 10.0]]))
        array([[1., 0.]], dtype=float32)
    """

    kind: ScalingKind = "none"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pixel_max: int = 1
    """The value that counts as 1.0: 255 for images of bytes, 1 for other inputs."""
    fields: tuple[FieldScaling, ...] = ()
    """Of the kind "fields": the fields of a row, in order."""

    def __post_init__(self) -> None:
        counts = {"none": 0, "pixels": 1, "columns": max(1, len(self.mean)), "fields": 0}
        if self.kind not in counts:
            raise DataError(f"scaling is {self.kind!r}; known: {', '.join(counts)}")
        if not len(self.mean) == len(self.std) == counts[self.kind]:
            raise DataError(
                f"scaling {self.kind!r} has {len(self.mean)} means and {len(self.std)} standard deviations; give "
                f"{'one of each for each column' if self.kind == 'columns' else f'{counts[self.kind]} of each'}"
            )
        if not all(map(math.isfinite, self.mean)) or not all(0 < std < math.inf for std in self.std):
            raise DataError(
                f"scaling {self.kind!r}: mean must be finite and std above 0, got mean {_listed(self.mean)}, "
                f"std {_listed(self.std)}"
            )
        if self.pixel_max < 1:
            raise DataError(f"scaling {self.kind!r}: pixel_max must be at least 1, got {self.pixel_max}")
        if (self.kind == "fields") != bool(self.fields):
            raise DataError(f"scaling {self.kind!r} has {len(self.fields)} fields; only 'fields' has some")

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Scaling:
        """The scaling that `record()` described, as JSON or TOML has it."""
        try:
            numbers = {key: tuple(float(value) for value in record.get(key, ())) for key in ("mean", "std")}
            fields = tuple(
                FieldScaling(str(each["name"]), int(each["size"]), cls.from_record(each["scaling"]))
                for each in record.get("fields", ())
            )
            return cls(record["kind"], **numbers, pixel_max=int(record.get("pixel_max", 1)), fields=fields)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"a scaling must have kind, mean, std and pixel_max, got {record!r}; write it again"
            ) from error

    def record(self) -> dict[str, Any]:
        """The scaling as JSON and TOML can write it."""
        if self.fields:
            fields = [{"name": f.name, "size": f.size, "scaling": f.scaling.record()} for f in self.fields]
            return {"kind": self.kind, "fields": fields}
        return {"kind": self.kind, "mean": list(self.mean), "std": list(self.std), "pixel_max": self.pixel_max}

    def apply(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """Scaled inputs of the same shape: raw is (n, channels, height, width) of images, (n, columns) of a table."""
        if self.fields:
            return self._of_fields(raw, _apply_to_field).astype(np.float32, copy=False)
        if self.kind == "columns" and raw.shape[1:] != (len(self.mean),):
            raise DataError(
                f"inputs of the shape {raw.shape} cannot be scaled by column: {len(self.mean)} columns are expected"
            )
        # Bytes fit into float32; other numbers may be large compared to their spread, so they are centered in float64.
        result: NDArray[Any] = raw.astype(np.float32 if self._in_single(raw) else np.float64, order="C")
        if self.kind != "none":
            mean, std = self._numbers()
            result /= self.pixel_max
            result -= mean
            result /= std
        with np.errstate(over="ignore"):  # Dataset refuses infinite inputs
            return result.astype(np.float32, copy=False)

    def undo(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Inputs as they were before they were scaled, up to rounding; pixels of images in [0, 1]."""
        if self.kind == "none":
            return inputs
        if self.fields:
            return self._of_fields(inputs, lambda scaling, part: scaling.undo(part) * scaling.pixel_max)
        mean, std = self._numbers()
        values: NDArray[Any] = inputs * std + mean
        return values

    @property
    def of_pixels(self) -> tuple[float, float]:
        """Mean and standard deviation of pixels: input x std + mean is a pixel; 0 and 1 where inputs are others."""
        return (self.mean[0], self.std[0]) if self.kind == "pixels" else (0.0, 1.0)

    def describe(self) -> str:
        """How inputs are scaled, in a few words."""
        if self.kind == "none":
            return "not scaled"
        if self.kind == "pixels":
            return f"scaled by mean {self.mean[0]:.4f} and standard deviation {self.std[0]:.4f}"
        if self.fields:
            scaled = [f"{f.name}: {f.scaling.describe()}" for f in self.fields if f.scaling.kind != "none"]
            return "; ".join(scaled) or "not scaled"
        return "each column scaled by its mean and standard deviation"

    def _of_fields(
        self, rows: NDArray[Any], change: Callable[[Scaling, NDArray[Any]], NDArray[Any]]
    ) -> NDArray[np.float64]:
        """Rows, (n, numbers), with every field changed by its own scaling."""
        sizes = [field.size for field in self.fields]
        if rows.shape[1:] != (sum(sizes),):
            raise DataError(
                f"inputs of the shape {rows.shape} cannot be scaled: the fields "
                f"{', '.join(f'{f.name} ({f.size})' for f in self.fields)} are expected"
            )
        parts = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
        changed = [change(field.scaling, part) for field, part in zip(self.fields, parts, strict=True)]
        return np.concatenate(changed, axis=1)

    def _numbers(self) -> tuple[Any, Any]:
        """Mean and standard deviation, as numbers or (columns,)."""
        if self.kind == "pixels":
            return self.mean[0], self.std[0]
        return np.array(self.mean), np.array(self.std)

    def _in_single(self, raw: NDArray[Any]) -> bool:
        return raw.dtype == np.uint8 and self.kind != "columns"


UNSCALED = Scaling()
"""Inputs stay as they are."""


def _apply_to_field(scaling: Scaling, values: NDArray[Any]) -> NDArray[np.float32]:
    """The scaled values of a field, with the same bits as those of a single array."""
    return scaling.apply(np.rint(values).astype(np.uint8) if scaling.pixel_max == _BYTE else values)


def measure_scaling(what: str, raw: RawDataset, kind: ScalingKind | FieldScalings | None = None) -> Scaling:
    """The scaling of a data set by its training inputs; kind: None is the one that suits them.

    Characters and other whole numbers of a sequence are not scaled, tables by column, all else as pixels. Bytes are
    pixels, also where images are flattened to rows. Of several fields each is measured for itself; whole numbers and
    masks are never scaled.
    """
    if raw.fields is not None:
        return _by_field(what, raw, raw.fields, kind)
    if isinstance(kind, Mapping):
        raise DataError(
            f"{what}: its inputs are one array, which has one scaling; use scaling='pixels' or another kind"
        )
    kind = kind or _suitable(raw)
    if kind == "none":
        return UNSCALED
    if kind == "columns":
        return _by_column(what, raw)
    mean, std = _moments(raw.inputs)
    # Equal floats may deviate from their rounded mean, so equality is checked as well.
    if std == 0 or raw.inputs.min() == raw.inputs.max():
        raise DataError(
            f"{what}: all values of its first {len(raw.inputs)} training samples are the same, "
            f"so they cannot be scaled; use more samples or check the source"
        )
    if not np.isfinite(std):
        raise DataError(f"{what}: the training inputs are too large to be scaled; divide them by a constant first")
    return Scaling("pixels", (mean / raw.pixel_max,), (std / raw.pixel_max,), raw.pixel_max)


def _by_field(what: str, raw: RawDataset, fields: InputFields, kinds: ScalingKind | FieldScalings | None) -> Scaling:
    """The scaling of each field, measured as that of a data set with this field alone."""
    if kinds == "none":
        kinds = dict.fromkeys(fields.names, "none")
    elif not isinstance(kinds, Mapping | None) and kinds != "fields":
        raise DataError(
            f"{what}: scaling {kinds!r} is for a single array, and its inputs are {fields.describe()}; say it by "
            f"field, such as scaling={{{fields.names[0]!r}: {kinds!r}}}, or leave it out"
        )
    asked: FieldScalings = kinds if isinstance(kinds, Mapping) else {}
    if unknown := [name for name in asked if name not in fields.names]:
        raise DataError(f"{what}: scaling names the field {unknown[0]!r}, and there are {', '.join(fields.names)}")
    found = []
    for field, where in zip(fields.fields, fields.columns, strict=True):
        kind = asked.get(field.name, "auto")
        found.append(FieldScaling(field.name, field.size, _of_field(what, field, raw.inputs[:, where], kind)))
    return Scaling("fields", fields=tuple(found))


def _of_field(what: str, field: InputField, values: NDArray[Any], kind: ScalingChoice) -> Scaling:
    """The scaling of one field, whose values are (n, size)."""
    if not field.scalable or kind == "none":
        if kind not in ("auto", "none"):
            raise DataError(f"{what}: field {field.name!r} holds {field.kind} values, which are not scaled")
        return UNSCALED
    table = len(field.shape) <= 1 and field.kind == "float"
    values = values.astype(np.uint8) if field.kind == "bytes" else values
    alone = RawDataset(
        values if table else values.reshape(len(values), *field.shape),
        *(np.empty(0, dtype=np.int64), values[:0], np.empty(0, dtype=np.int64), 1),
        pixel_max=_BYTE if field.kind == "bytes" else 1,
    )
    try:
        return measure_scaling(f"{what}: field {field.name!r}", alone, None if kind == "auto" else kind)
    except DataError as error:
        raise DataError(f"{error}; or leave it as it is: scaling={{{field.name!r}: 'none'}}") from None


def _suitable(raw: RawDataset) -> ScalingKind:
    if raw.alphabet:
        return "none"
    if raw.inputs.ndim != 2 or raw.inputs.dtype == np.uint8:
        return "pixels"
    tokens = raw.inputs.dtype.kind in "iu" and raw.inputs.shape[1] > 1 and not raw.columns and raw.inputs.min() >= 0
    return "none" if tokens else "columns"


def _by_column(what: str, raw: RawDataset) -> Scaling:
    if raw.inputs.ndim != 2:
        raise DataError(
            f"{what}: scaling 'columns' is for tables, (n, columns), and its inputs have the shape "
            f"{raw.inputs.shape[1:]}; use 'pixels' or 'none'"
        )
    values = raw.inputs.astype(np.float64, copy=False) / raw.pixel_max
    constant = np.flatnonzero(raw.inputs.min(axis=0) == raw.inputs.max(axis=0))
    if len(constant):
        names = [_column_name(raw, int(column)) for column in constant]
        which = f"column {names[0]} has" if len(names) == 1 else f"the columns {_listed(names)} each have"
        left_out = ",".join(raw.columns[int(column)] for column in constant) if raw.columns else ""
        advice = (
            f"leave it out with --drop {left_out!r}" if left_out else "remove it, or use scaling 'pixels' or 'none'"
        )
        raise DataError(
            f"{what}: {which} the same value in all {len(raw.inputs)} training samples, which carries no information "
            f"and cannot be scaled; {advice}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = values.mean(axis=0), values.std(axis=0)  # (columns,)
    if not np.isfinite(std).all() or not (std > 0).all():
        bad = _column_name(raw, int(np.argmax(~np.isfinite(std) | (std <= 0))))
        raise DataError(f"{what}: the values of column {bad} are too large or too close to be scaled; rescale it first")
    return Scaling("columns", tuple(mean.tolist()), tuple(std.tolist()), raw.pixel_max)


def _column_name(raw: RawDataset, column: int) -> str:
    return repr(raw.columns[column]) if raw.columns else str(column)


def _listed(values: Sequence[object], most: int = _NAMED) -> str:
    rest = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + rest


def _moments(values: NDArray[Any]) -> tuple[float, float]:
    if values.dtype != np.uint8:
        with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses such data with a message
            return float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    # Bytes are counted: no float64 copy, and the same result for any order of the values.
    flat, counts = values.reshape(-1), np.zeros(256, dtype=np.int64)
    for start in range(0, len(flat), _CHUNK):
        counts += np.bincount(flat[start : start + _CHUNK], minlength=256)
    levels, shares = np.arange(256), counts / len(flat)  # (256,), (256,)
    mean = float(counts @ levels) / len(flat)
    return mean, float(np.sqrt(shares @ (levels - mean) ** 2))
