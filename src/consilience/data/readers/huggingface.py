"""Hugging Face data sets on disk: the folders that `save_to_disk` writes, read with pyarrow alone.

    birds/dataset_info.json, state.json, data-00000-of-00001.arrow       one data set
    birds/dataset_dict.json, train/..., test/...                         a DatasetDict

Tests are the split `test`, or `validation` where there is none. Inputs are the column of images, else the one column of
lists, else all columns of numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.data.arrays import GivenArrays, raw_from_arrays
from consilience.data.raw_dataset import RawDataset
from consilience.data.readers.images import StoredImage, decode_all
from consilience.data.readers.parquet import arrow_columns, import_arrow
from consilience.data.readers.table import TableOptions, owner_of_rows, raw_from_table
from consilience.errors import DataError, UnknownName, first_sentence

_TESTS = ("test", "validation", "valid", "val")


class ImageOptions(NamedTuple):
    """Size and mode that images are converted to; None: as they are."""

    size: int | None = None
    mode: str | None = None


class _Split(NamedTuple):
    """One part of a saved data set: an Arrow table, and what its columns mean."""

    place: Path
    table: Any
    features: Mapping[str, Any]


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    whole = (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    return whole or (folder / "dataset_dict.json").is_file()


def read_saved_dataset(folder: Path, table: TableOptions, images: ImageOptions, test_share: float) -> RawDataset:
    """The data set in a folder that `save_to_disk` wrote, not scaled yet."""
    train, test = _splits(folder)
    kinds = {name: _kind(feature) for name, feature in train.features.items()}
    options = TableOptions(table.label or _label(kinds), table.owners, table.drop)
    for name in (options.label, options.owners, *options.drop):
        if name and name not in kinds:
            raise UnknownName("column", name, kinds, of=str(folder))
    inputs = [n for n in kinds if n not in (options.label, options.owners, *options.drop)]
    source = f"data set saved in {folder}"
    pictures = [n for n in inputs if kinds[n] == "Image"]
    lists = [n for n in inputs if kinds[n] == "list"]
    if not pictures and not lists:
        tests = None if test is None else arrow_columns(test.table)
        return raw_from_table(str(folder), arrow_columns(train.table), tests, options, test_share, source)
    if len(pictures or lists) > 1:
        raise DataError(
            f"{folder}: inputs may be one of the columns {', '.join(map(repr, pictures or lists))}; leave the others "
            f"out with --drop"
        )
    column, label = (pictures or lists)[0], str(options.label)
    splits = [split for split in (train, test) if split is not None]
    halves = [(_inputs(split, column, bool(pictures), images), _values(split, label)) for split in splits]
    owners = None
    if options.owners:
        owners = owner_of_rows(str(folder), options.owners, _values(train, options.owners))
    given = GivenArrays(*halves[0], owners=owners)
    if test is not None:
        given = given._replace(test_inputs=halves[1][0], test_targets=halves[1][1])
    names = tuple(train.features[label].get("names", ())) if isinstance(train.features[label], Mapping) else ()
    return raw_from_arrays(str(folder), given, test_share=test_share, labels=names, source=source)


def _splits(folder: Path) -> tuple[_Split, _Split | None]:
    """The training part, and the test part where there is one."""
    if not (folder / "dataset_dict.json").is_file():
        return _read_split(folder), None
    names = _json(folder / "dataset_dict.json").get("splits", [])
    if "train" not in names:
        raise DataError(f"{folder}: no split is called 'train'; it has {', '.join(map(repr, names)) or 'none'}")
    test = next((name for name in _TESTS if name in names), None)
    return _read_split(folder / "train"), None if test is None else _read_split(folder / test)


def _read_split(place: Path) -> _Split:
    arrow = import_arrow("data sets of Hugging Face")
    files = [each["filename"] for each in _json(place / "state.json").get("_data_files", [])]
    if not files:
        raise DataError(f"{place / 'state.json'}: it names no data files; save the data set again")
    tables = []
    for name in files:
        file = place / Path(name).name
        try:
            with arrow.memory_map(str(file)) as mapped:
                tables.append(arrow.ipc.open_stream(mapped).read_all())
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{file}: cannot be read ({first_sentence(error)}); save the data set again") from error
    return _Split(place, arrow.concat_tables(tables), _json(place / "dataset_info.json").get("features", {}))


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read ({first_sentence(error)}); save the data set again") from error
    if not isinstance(found, dict):
        raise DataError(f"{file}: it must hold a JSON object; save the data set again")
    return found


def _kind(feature: Any) -> str:
    """ "Image", "ClassLabel", "Value", or "list" for sequences and arrays."""
    kind = feature.get("_type", "") if isinstance(feature, Mapping) else "list"
    return kind if kind in ("Image", "ClassLabel", "Value") else "list"


def _label(kinds: Mapping[str, str]) -> str | None:
    """The column with the classes: the only one of type ClassLabel, else one named "label"; None if there is none."""
    found = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    return found[0] if len(found) == 1 else next((name for name in ("label", "labels") if name in kinds), None)


def _values(split: _Split, column: str) -> NDArray[Any]:
    return arrow_columns(split.table.select([column]))[column]


def _inputs(split: _Split, column: str, pictures: bool, images: ImageOptions) -> NDArray[Any]:
    """The inputs of a split: decoded images, (n, channels, height, width), or lists as arrays."""
    if pictures:
        return decode_all(_stored_images(split, column), images.size, images.mode, done=lambda: None)
    values = split.table.column(column).combine_chunks()
    return np.array(getattr(values, "storage", values).to_pylist())


def _stored_images(split: _Split, column: str) -> list[StoredImage]:
    found = []
    for row, cell in enumerate(split.table.column(column).to_pylist()):
        content = cell.get("bytes") if isinstance(cell, Mapping) else None
        if not content:
            raise DataError(
                f"{split.place}: column {column!r}, row {row + 1} holds no image; save the data set with the images in "
                f"it, not with their paths"
            )
        found.append(StoredImage(f"{split.place}, row {row + 1}", content))
    return found
