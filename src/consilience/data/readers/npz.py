"""Reading data sets from .npz files, without ever unpickling: a file cannot run code.

| array | meaning |
|---|---|
| `images` or `x` | training inputs: images in any layout, or a table |
| `labels` or `y` | the class of each, 0, 1, 2, ...; or 0 or 1 for each label, (n, labels); or a number to predict |
| `test_images` or `test_x`, `test_labels` or `test_y` | the same for tests; without them some samples are held out |
| `shareable` | 0 for training samples that must never be shared, else 1 |
| `sample_epsilons` | the privacy budget of each training sample, inf where it has none of its own |
| `x.NAME`, `test_x.NAME` | inputs of several fields, one array for each, by the name that the model's forward has |
| `classes` | names of the classes or labels |
| `owners` | the owner of each training sample, a name or a number; for partition `owners` |
"""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from consilience.data.arrays import GivenArrays, raw_from_arrays
from consilience.data.raw_dataset import RawDataset
from consilience.data.targets import KindChoice
from consilience.errors import DataError, first_sentence

LARGEST = 4 << 30
"""The most bytes an array may claim to hold."""

INPUTS, TARGETS = ("images", "x"), ("labels", "y")
TEST_INPUTS, TEST_TARGETS = ("test_images", "test_x"), ("test_labels", "test_y")
OTHERS = ("shareable", "classes", "owners", "sample_epsilons")

Arrays = Mapping[str, NDArray[Any]]


def read_archive(path: Path, test_share: float, kind: KindChoice = "auto") -> RawDataset:
    """The data set in one .npz file, by the names at the top of this module."""
    arrays = read_arrays(path, [*INPUTS, *TARGETS, *TEST_INPUTS, *TEST_TARGETS, *OTHERS])
    inputs, targets = pick_inputs(path, arrays, INPUTS), _pick(path, arrays, TARGETS)
    if inputs is None or targets is None:
        missing = INPUTS if inputs is None else TARGETS
        raise DataError(
            f"{path}: no array is called {missing[0]!r} or {missing[1]!r}; it holds {_listed(path)}. Save images "
            f"(or x, or x.NAME for each of several fields) and labels (or y); test_images, test_labels, shareable, "
            f"sample_epsilons, classes and owners are optional"
        )
    return raw_from_arrays(
        str(path),
        GivenArrays(
            inputs,
            targets,
            pick_inputs(path, arrays, TEST_INPUTS),
            _pick(path, arrays, TEST_TARGETS),
            arrays.get("shareable"),
            arrays.get("owners"),
            arrays.get("sample_epsilons"),
        ),
        test_share=test_share,
        labels=_class_names(path, arrays),
        source=str(path),
        kind=kind,
    )


def read_arrays(path: Path, wanted: Collection[str]) -> dict[str, NDArray[Any]]:
    """Those of the wanted arrays that an .npz file holds, and their fields, "x.NAME", where "x" is wanted.

    Headers are checked before anything is decompressed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            there = set(archive.namelist())
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            fields = [name for name in names if any(name.startswith(f"{of}.") for of in wanted)]
            return {name: _read(archive, name) for name in [*wanted, *fields] if f"{name}.npy" in there}
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged file can make the zip and npy parsers raise nearly anything
        said = first_sentence(error) or type(error).__name__
        raise DataError(f"{path}: cannot be read as an .npz file ({said}); write or fetch it again") from error


def _read(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as file:
        shape, fortran, dtype = _header(file)
        if dtype.hasobject:
            raise DataError(
                f"array {name!r} holds Python objects, which may run code; save plain numbers or text instead"
            )
        size = math.prod(shape) * dtype.itemsize
        if size > LARGEST or min((0, *shape)) < 0 or dtype.itemsize == 0:
            raise DataError(
                f"array {name!r} claims to be {dtype} of the shape {shape}, {size} bytes; "
                f"at most {LARGEST} are read: use fewer or smaller samples"
            )
        # One byte more than there should be: it shows an array that is too long, without decompressing all of it.
        body = file.read(size + 1)
    if len(body) != size:
        received = "more" if len(body) > size else str(len(body))
        raise DataError(f"array {name!r}: {size} bytes expected, {received} received; write or fetch the file again")
    return np.ndarray(shape, dtype, body, order="F" if fortran else "C")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type, from an array's header."""
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(file)
    if version not in readers:
        raise DataError(f"an array is written in the format {version}; save plain numbers or text with numpy.savez")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers of very old versions, which can be read
        shape, fortran, dtype = readers[version](file)
    return shape, fortran, dtype


def _pick(path: Path, arrays: Arrays, names: tuple[str, str]) -> NDArray[Any] | None:
    """The array under either name, or None."""
    found = [name for name in names if name in arrays]
    if len(found) == 2:
        raise DataError(f"{path}: it holds both {names[0]!r} and {names[1]!r}, which mean the same; keep one of them")
    return arrays[found[0]] if found else None


def pick_inputs(path: Path, arrays: Arrays, names: tuple[str, str]) -> NDArray[Any] | dict[str, NDArray[Any]] | None:
    """The inputs under either name: one array, or the fields whose names come after it and a point; None without."""
    single, prefixes = _pick(path, arrays, names), tuple(f"{name}." for name in names)
    fields = {name.partition(".")[2]: values for name, values in arrays.items() if name.startswith(prefixes)}
    if single is not None and fields:
        raise DataError(
            f"{path}: it holds inputs as one array and as the fields {', '.join(fields)}; keep one of the two"
        )
    return single if single is not None else fields or None


def _class_names(path: Path, arrays: Arrays) -> tuple[str, ...]:
    if "classes" not in arrays:
        return ()
    names = arrays["classes"]
    if names.ndim != 1 or names.dtype.kind != "U" or not names.size:
        raise DataError(
            f"{path}: array 'classes' must be text of the shape (classes,), "
            f"got {names.dtype} of the shape {names.shape}; save numpy.array(['cat', 'dog'])"
        )
    try:
        words = tuple(map(str, names))
        "".join(words).encode()  # lone surrogates fail only when printed; refuse them here
        return words
    except (SystemError, ValueError) as error:  # numbers that are no code points
        raise DataError(f"{path}: array 'classes' is not text ({error}); write or fetch the file again") from error


def _listed(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        names = sorted(name.removesuffix(".npy") for name in archive.namelist())
    return ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if names[10:] else "") or "nothing"
