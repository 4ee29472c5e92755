"""Samples to predict: images, arrays, a table or a named data set, scaled as a model's card says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.arrays import read_given_inputs
from consilience.data.paths import SUFFIXES as FILE_SUFFIXES
from consilience.data.paths import read_table
from consilience.data.readers.columns import column_numbers
from consilience.data.readers.image_folder import SUFFIXES
from consilience.data.readers.images import MODES, decode_all
from consilience.data.readers.npz import INPUTS, TARGETS, TEST_INPUTS, TEST_TARGETS, pick_inputs, read_arrays
from consilience.data.readers.table import TableOptions, read_inputs
from consilience.data.registry import DATASETS
from consilience.data.scaling import Scaling
from consilience.data.targets import read_test_targets
from consilience.errors import DataError, UnknownName
from consilience.export.card import InputDescription

_BYTE, _ARRAYS = 255, ".npz"


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class NamedSamples:
    """Inputs ready for the model, with a name for each and its label where it is known."""

    names: Sequence[str]
    inputs: NDArray[np.float32]  # (n, *shape)
    labels: Sequence[str] = ()  # names of classes, "" where unknown; empty where no label is known
    targets: NDArray[Any] | None = None  # where samples have no class each: what is predicted, in the user's unit


def read_new_samples(
    data: str,
    inputs: InputDescription,
    directory: str | None = None,
    label: str | None = None,
    usual_label: str | None = None,
) -> NamedSamples:
    """The samples of a folder of images, an .npz file or a table, or the test part of a named data set.

    directory: with the files of a named data set; label: the column of a table with the class; by default
    usual_label, where the table has a column of that name.
    """
    if data in DATASETS:
        raw = DATASETS[data](None if directory is None else Path(directory), False)
        names = [str(number) for number in range(len(raw.test_inputs))]
        return _samples(data, names, raw.test_inputs, raw.test_targets, inputs)
    path = Path(os.path.expanduser(data))
    if path.is_dir():
        return _images(path, inputs)
    if path.is_file() and path.suffix == _ARRAYS:
        return _arrays(path, inputs)
    if path.is_file() and path.suffix in FILE_SUFFIXES:
        return _table(path, inputs, label, usual_label)
    said = "cannot be read as samples" if path.exists() else "there is no such file or folder"
    raise DataError(
        f"{path}: {said}; DATA is a folder of images, a file that ends in {', '.join(FILE_SUFFIXES)}, or the name of a "
        f"data set: {', '.join(DATASETS)}"
    )


def _images(folder: Path, inputs: InputDescription) -> NamedSamples:
    """All images below a folder; the name of the folder an image is in is its label, where it names a class."""
    if inputs.kind != "image":
        raise DataError(
            f"{folder} is a folder of images, and the model takes inputs of the kind {inputs.kind!r}; give a file that "
            f"ends in {', '.join(FILE_SUFFIXES)}"
        )
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )
    if not found:
        raise DataError(f"{folder}: no image in it or in a folder below (images end in {', '.join(SUFFIXES)})")
    channels, height, width = inputs.shape
    mode = next((name for name, count in MODES.items() if count == channels), None)
    pixels = decode_all(found, height if height == width else None, mode, done=lambda: None)
    known = set(inputs.class_names)
    labels = [path.parent.name if path.parent.name in known else "" for path in found]
    names = [path.relative_to(folder).as_posix() for path in found]
    return NamedSamples(names, _scaled(str(folder), pixels, inputs), labels if any(labels) else ())


def _arrays(path: Path, inputs: InputDescription) -> NamedSamples:
    """The samples of an .npz file; its test samples where it has no others."""
    arrays = read_arrays(path, [*INPUTS, *TARGETS, *TEST_INPUTS, *TEST_TARGETS])
    for wanted, labeled in ((INPUTS, TARGETS), (TEST_INPUTS, TEST_TARGETS)):
        values = pick_inputs(path, arrays, wanted)
        if values is not None:
            checked, fields = read_given_inputs(f"{path}: inputs", values)
            if fields != inputs.input_fields:
                given = [each.describe() if each else "one array" for each in (fields, inputs.input_fields)]
                raise DataError(f"{path}: inputs are {given[0]}, and the model takes {given[1]}; save these")
            targets = next((arrays[name] for name in labeled if name in arrays), None)
            names = [str(number) for number in range(len(checked))]
            return _samples(str(path), names, checked, targets, inputs)
    raise DataError(f"{path}: no array is called {INPUTS[0]!r} or {INPUTS[1]!r}; save the inputs under one of the two")


def _table(path: Path, inputs: InputDescription, label: str | None, usual_label: str | None) -> NamedSamples:
    """The rows of a table: columns by the names that the model was trained with; further ones are not used."""
    if inputs.kind != "table":
        raise DataError(
            f"{path} is a table, and the model takes inputs of the kind {inputs.kind!r}; give what it was trained on, "
            f"such as an .npz file, or a folder of images"
        )
    columns = read_table(path)
    options = TableOptions.make(label or usual_label, None, None)
    predicted = options.labels(columns)
    for name in predicted if label is not None else ():
        if name not in columns:
            raise UnknownName("column", name, columns, of=str(path))
    if any(name not in columns for name in predicted):  # the usual ones, which a table without labels has not
        predicted = ()
    names = inputs.columns or [name for name in columns if name not in predicted]
    values = read_inputs(str(path), columns, names, may_drop=False)
    if inputs.target.kind != "single-label":
        known_targets = [column_numbers(str(path), name, columns[name], "") for name in predicted]
        several = inputs.target.kind == "multi-label"
        targets = (np.stack(known_targets, axis=1) if several else known_targets[0]) if predicted else None
        numbers = [str(number) for number in range(len(values))]
        return NamedSamples(numbers, _scaled(str(path), values, inputs), (), _checked(str(path), targets, inputs))
    label = predicted[0] if predicted else None
    labels = [] if label is None else [_class_name(value) for value in columns[label]]
    known = set(inputs.class_names)
    return NamedSamples(
        [str(number) for number in range(len(values))],
        _scaled(str(path), values, inputs),
        [each if each in known else "" for each in labels],
    )


def _class_name(value: object) -> str:
    """A label of a table as the classes of a table are named: whole numbers without a point."""
    text = str(value).strip()
    try:
        return str(int(float(text))) if float(text) == int(float(text)) else text
    except (ValueError, OverflowError):
        return text


def _samples(
    what: str,
    names: Sequence[str],
    values: NDArray[Any],
    targets: NDArray[Any] | None,
    inputs: InputDescription,
) -> NamedSamples:
    if inputs.target.kind != "single-label":
        return NamedSamples(names, _scaled(what, values, inputs), (), _checked(what, targets, inputs))
    return NamedSamples(names, _scaled(what, values, inputs), _labels(what, targets, len(values), inputs))


def _checked(what: str, targets: NDArray[Any] | None, inputs: InputDescription) -> NDArray[Any] | None:
    """Known targets of samples that have no class each; refused where they are of another kind."""
    if targets is None:
        return None
    kind = inputs.target.kind
    known = np.zeros((0, inputs.classes), dtype=np.int64)
    return read_test_targets(f"{what}: targets", targets, len(targets), kind, known)


def _labels(what: str, targets: NDArray[Any] | None, count: int, inputs: InputDescription) -> list[str]:
    if targets is None:
        return []
    known = inputs.class_names
    if targets.shape != (count,) or targets.dtype.kind not in "biu":
        raise DataError(
            f"{what}: labels must be whole numbers of the shape ({count},), got {targets.dtype} of the shape "
            f"{targets.shape}; leave them out to predict without labels"
        )
    return [known[number] if 0 <= number < len(known) else "" for number in targets.tolist()]


def _scaled(what: str, values: NDArray[Any], inputs: InputDescription) -> NDArray[np.float32]:
    """Inputs as the model takes them; inputs of another shape are refused."""
    if values.shape[1:] != tuple(inputs.shape):
        raise DataError(
            f"{what}: inputs have the shape {values.shape[1:]}, and the model takes {tuple(inputs.shape)}; bring them "
            f"into that shape first"
        )
    scaling = Scaling.from_record(inputs.scaling)
    if scaling.pixel_max == _BYTE and values.dtype != np.uint8:
        raise DataError(
            f"{what}: inputs are {values.dtype}, and the model was trained on images of bytes, 0 to 255; save them as "
            f"uint8"
        )
    if scaling.pixel_max > 1 and (largest := values.max(initial=0)) > scaling.pixel_max:
        raise DataError(
            f"{what}: inputs go up to {largest}, and the model was trained on values from 0 to {scaling.pixel_max}; "
            f"rescale them first"
        )
    return scaling.apply(values)
