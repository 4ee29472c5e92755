"""CIFAR-10: 32x32 color photographs of ten classes, from the original binary files or .npz copies of them.

A binary file is 10,000 records of 3,073 bytes: the label, then the red, the green and the blue plane. The version of
pickled Python objects is never read: unpickling runs code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.download import FOLDER_VARIABLE, chosen_folder, download
from consilience.data.raw_dataset import RawDataset
from consilience.data.readers.binary_files import read_bounded, read_tar_members
from consilience.data.readers.npz import read_arrays
from consilience.errors import DataError

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
ARCHIVE = "cifar-10-binary.tar.gz"
PICKLED = ("cifar-10-python.tar.gz", "cifar-10-batches-py")
SHAPE = (3, 32, 32)
RECORDS = 10_000
RECORD = 1 + 3 * 32 * 32

Half = tuple[NDArray[np.uint8], NDArray[np.int64]]


def read_cifar10(directory: Path | None, progress: bool) -> RawDataset:
    """The whole data set from `directory`, else the folder in CONSILIENCE_DATA, else by download."""
    folder = chosen_folder(directory)
    if folder is None:
        return _from_archive(download("cifar10", ARCHIVE, progress))
    for place in (folder / "cifar10", folder):
        for inside in (place, place / "cifar-10-batches-bin"):
            if any((inside / file).is_file() for file in (*TRAIN, TEST)):
                return _from_files(inside)
        if (place / ARCHIVE).is_file():
            return _from_archive(place / ARCHIVE)
        if sorted(place.glob("train*.npz")):
            return _from_npz(place)
    raise _missing(folder)


def _missing(folder: Path) -> DataError:
    places = (folder / "cifar10", folder)
    pickled = next((place / each for place in places for each in PICKLED if (place / each).exists()), None)
    if pickled is not None:
        return DataError(
            f"{pickled} is the version of CIFAR-10 made of pickled Python objects, which are code and are not read; "
            f"download the binary version, {ARCHIVE}, from the same page and put it there"
        )
    return DataError(
        f"data set 'cifar10' needs {TRAIN[0]} to {TRAIN[-1]} and {TEST}, or {ARCHIVE}, or train*.npz and test*.npz; "
        f"none is in {places[0]} or {places[1]}. Point --data-dir or {FOLDER_VARIABLE} to a folder that has them, "
        f"or leave both out to download them"
    )


def _from_files(folder: Path) -> RawDataset:
    missing = [file for file in (*TRAIN, TEST) if not (folder / file).is_file()]
    if missing:
        raise DataError(f"{folder}: {', '.join(missing)} missing; all six files of CIFAR-10 are needed")

    def read(file: str) -> Half:
        return decode_batch(f"{folder / file}", read_bounded(folder / file, RECORDS * RECORD))

    return _concatenated(read, f"binary files in {folder}")


def _from_archive(path: Path) -> RawDataset:
    """The six files out of the tar archive, read by name; nothing is written anywhere."""
    bodies = read_tar_members(path, dict.fromkeys((*TRAIN, TEST), RECORDS * RECORD))
    halves = {file: decode_batch(f"{path}, {file}", body) for file, body in bodies.items()}
    missing = [file for file in (*TRAIN, TEST) if file not in halves]
    if missing:
        raise DataError(f"{path}: {', '.join(missing)} missing in it; is it the binary version of CIFAR-10?")
    return _concatenated(halves.__getitem__, str(path))


def decode_batch(where: str, body: bytes) -> Half:
    """Images (n, 3, 32, 32) and labels (n,) of one binary file's content."""
    if len(body) != RECORDS * RECORD:
        received = "more" if len(body) > RECORDS * RECORD else str(len(body))
        raise DataError(
            f"{where}: {RECORDS} records of {RECORD} bytes expected, {RECORDS * RECORD} in all, {received} received; "
            f"fetch it again"
        )
    records = np.frombuffer(body, dtype=np.uint8).reshape(RECORDS, RECORD)
    return records[:, 1:].reshape(RECORDS, *SHAPE), _labels(where, records[:, 0])


def _labels(where: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    bad = (labels < 0) | (labels >= len(NAMES))
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(f"{where}: labels must lie in 0..9, but label {at} is {labels[at]}; fetch it again")
    return labels.astype(np.int64)


def _concatenated(half: Callable[[str], Half], source: str) -> RawDataset:
    images, labels = zip(*map(half, TRAIN), strict=True)
    test_images, test_labels = half(TEST)
    return _raw(np.concatenate(images), np.concatenate(labels), test_images, test_labels, source)


def _raw(images: Any, labels: Any, test_images: Any, test_labels: Any, source: str) -> RawDataset:
    return RawDataset(images, labels, test_images, test_labels, len(NAMES), pixel_max=255, labels=NAMES, source=source)


def _from_npz(folder: Path) -> RawDataset:
    return _raw(*_npz(folder, "train"), *_npz(folder, "test"), f".npz files in {folder}")


def _npz(folder: Path, half: str) -> Half:
    found = sorted(folder.glob(f"{half}*.npz"))
    if len(found) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise DataError(f"{folder}: one file {half}*.npz is needed, found {listed}; keep exactly one")
    (path,) = found
    arrays = read_arrays(path, ["images", "labels"])
    images, labels = arrays.get("images"), arrays.get("labels")
    if images is None or images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or not len(images):
        got = "none" if images is None else f"{images.dtype} of the shape {images.shape}"
        raise DataError(f"{path}: array 'images' must be uint8 of the shape (n, 32, 32, 3), got {got}")
    if labels is None or labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        got = "none" if labels is None else f"{labels.dtype} of the shape {labels.shape}"
        raise DataError(f"{path}: array 'labels' must be whole numbers of the shape ({len(images)},), got {got}")
    return np.ascontiguousarray(np.moveaxis(images, -1, 1)), _labels(str(path), labels)  # (n, 3, 32, 32)
