"""Reading idx files, the format of MNIST and similar data sets; damaged files are refused.

A file is a big-endian header (a magic number, then the size of each axis) and unsigned bytes; `.gz` means compressed.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from consilience.data.readers.compression import open_data_file
from consilience.errors import DataError

IMAGES = 2051  # magic: unsigned bytes, three axes
LABELS = 2049  # magic: unsigned bytes, one axis
LARGEST = 1 << 28
"""The most bytes a file may claim to hold: five times MNIST, and small enough to be allocated on any machine."""


def read_pair(images: Path, labels: Path, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, height, width) and the label (n,) of each, from two files that must agree."""
    pixels, targets = read_images(images), read_labels(labels, classes)
    if len(pixels) != len(targets):
        raise DataError(
            f"{images} holds {len(pixels)} images but {labels} holds {len(targets)} labels; "
            f"the numbers must be equal: download both files again from the same source"
        )
    return pixels, targets


def read_images(path: Path) -> NDArray[np.uint8]:
    """The images of one file, (n, height, width)."""
    return _read(path, IMAGES, axes=3)


def read_labels(path: Path, classes: int) -> NDArray[np.int64]:
    """The labels of one file, (n,), each in 0..classes - 1."""
    labels = _read(path, LABELS, axes=1)
    if labels.max() >= classes:
        where = int(np.argmax(labels >= classes))
        raise DataError(f"{path}: labels must lie in 0..{classes - 1}, but label {where} is {labels[where]}")
    return labels.astype(np.int64)


def _read(path: Path, magic: int, axes: int) -> NDArray[np.uint8]:
    with open_data_file(path) as file:
        sizes = _sizes(path, file.read(4 + 4 * axes), magic, axes)
        length = math.prod(sizes)
        # One byte more than there should be: it shows a file that is too long, without unpacking all of it.
        body = file.read(length + 1)
    if len(body) != length:
        received = "more" if len(body) > length else str(len(body))
        raise DataError(f"{path}: {length} bytes expected after the header, {received} received; fetch it again")
    return np.frombuffer(body, dtype=np.uint8).reshape(sizes)


def _sizes(path: Path, header: bytes, magic: int, axes: int) -> tuple[int, ...]:
    """The size of each axis, checked before memory is allocated for it."""
    if len(header) != 4 + 4 * axes:
        raise DataError(f"{path}: a header of {4 + 4 * axes} bytes expected, {len(header)} received; fetch it again")
    found, *sizes = struct.unpack(f">{1 + axes}I", header)
    if found != magic:
        kinds = {IMAGES: "an image file", LABELS: "a label file"}
        raise DataError(
            f"{path}: magic number {magic} ({kinds[magic]}) expected, "
            f"{found} ({kinds.get(found, 'not an idx file of bytes')}) received; is it the right file?"
        )
    if min(sizes) < 1 or math.prod(sizes) > LARGEST:
        raise DataError(
            f"{path}: the header claims the sizes {tuple(sizes)}; each must be at least 1 "
            f"and all together at most {LARGEST} bytes; fetch it again"
        )
    return tuple(sizes)
