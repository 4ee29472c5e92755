"""Damaged and forged idx files: each is refused with its name and the fault, and none exhausts the memory."""

from __future__ import annotations

import gzip
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consilience.data import load
from consilience.data.readers.idx import LARGEST, read_images, read_labels, read_pair
from consilience.errors import DataError

PIXELS = bytes(range(24))
IMAGES = struct.pack(">4I", 2051, 6, 2, 2) + PIXELS
LABELS = struct.pack(">2I", 2049, 6) + bytes([0, 1, 2, 3, 4, 9])
HERE = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_file(folder: Path, name: str, body: bytes) -> Path:
    path = folder / name
    path.write_bytes(body)
    return path


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_valid_idx_files_are_read(tmp_path: Path, name: str) -> None:
    packed = name.endswith(".gz")
    images = write_file(tmp_path, name, gzip.compress(IMAGES) if packed else IMAGES)
    labels = write_file(tmp_path, "labels.gz", gzip.compress(LABELS))
    pixels, targets = read_pair(images, labels, classes=10)
    assert pixels.tolist() == np.arange(24).reshape(6, 2, 2).tolist() and pixels.dtype == np.uint8
    assert targets.tolist() == [0, 1, 2, 3, 4, 9] and targets.dtype == np.int64


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "header of 16 bytes expected, 0 received"),
        (IMAGES[:15], "header of 16 bytes expected, 15 received"),
        (IMAGES[:16], "24 bytes expected after the header, 0 received"),
        (IMAGES[:-1], "24 bytes expected after the header, 23 received"),
        (IMAGES + b"\0", "24 bytes expected after the header, more received"),
        (IMAGES + IMAGES, "24 bytes expected after the header, more received"),
        (LABELS + bytes(8), r"magic number 2051 \(an image file\) expected, 2049 \(a label file\) received"),
        (struct.pack("<4I", 2051, 6, 2, 2) + PIXELS, r"50855936 \(not an idx file of bytes\) received"),
        (struct.pack(">4I", 2051, 0, 2, 2), r"sizes \(0, 2, 2\); each must be at least 1"),
        (struct.pack(">4I", 2051, 6, 0, 2), r"sizes \(6, 0, 2\)"),
        (struct.pack(">4I", 2051, 6, 2, 3) + PIXELS, "36 bytes expected after the header, 24 received"),
        (struct.pack(">4I", 2051, 5, 2, 2) + PIXELS, "20 bytes expected after the header, more received"),
        (struct.pack(">4I", 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1), f"at most {LARGEST} bytes"),
        (struct.pack(">4I", 2051, 2**31, 2**31, 4), f"at most {LARGEST} bytes"),  # 0 in 64-bit arithmetic
    ],
)
def test_damaged_images_are_refused(tmp_path: Path, body: bytes, says: str, packed: bool) -> None:
    name = "images.gz" if packed else "images"
    path = write_file(tmp_path, name, gzip.compress(body) if packed else body)
    with pytest.raises(DataError, match=says) as caught:
        read_images(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (IMAGES, "magic number 2049"),
        (LABELS[:-1], "6 bytes expected after the header, 5 received"),
        (LABELS[:-1] + bytes([10]), r"0\.\.9, but label 5 is 10"),
        (LABELS[:8] + bytes([255]) + LABELS[9:], r"0\.\.9, but label 0 is 255"),
    ],
)
def test_damaged_labels_are_refused(tmp_path: Path, body: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_labels(write_file(tmp_path, "labels.gz", gzip.compress(body)), classes=10)


def broken_checksum() -> bytes:
    packed = bytearray(gzip.compress(IMAGES))
    packed[-8] ^= 1
    return bytes(packed)


def broken_stream() -> bytes:
    packed = bytearray(gzip.compress(os.urandom(16) + IMAGES * 50))
    packed[10] |= 0b110  # a deflate block type that does not exist
    return bytes(packed)


@pytest.mark.parametrize(
    ("packed", "says"),
    [
        (b"", "header of 16 bytes"),
        (IMAGES, "not a valid gzip file"),
        (b"<html>404 Not Found</html>", "not a valid gzip file"),
        (gzip.compress(IMAGES)[:5], "ends too early"),
        (gzip.compress(IMAGES)[:-9], "ends too early"),
        (gzip.compress(IMAGES)[:-3], "ends too early"),
        (broken_checksum(), "not a valid gzip file"),
        (broken_stream(), "not a valid gzip file"),
        (gzip.compress(IMAGES) + b"rubbish", "not a valid gzip file"),
    ],
    ids=range(9),  # gzip stores a timestamp, so bytes differ between runs
)
def test_damaged_compression_is_refused(tmp_path: Path, packed: bytes, says: str) -> None:
    path = write_file(tmp_path, "images.gz", packed)
    with pytest.raises(DataError, match=says) as caught:
        read_images(path)
    assert str(path) in str(caught.value)


def test_different_counts_of_images_and_labels_are_refused(tmp_path: Path) -> None:
    images = write_file(tmp_path, "images", IMAGES)
    labels = write_file(tmp_path, "labels", struct.pack(">2I", 2049, 5) + bytes(5))
    with pytest.raises(DataError, match=r"6 images .* 5 labels") as caught:
        read_pair(images, labels, classes=10)
    assert str(images) in str(caught.value) and str(labels) in str(caught.value)


def test_missing_idx_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "not-there", tmp_path / "not-there.gz"):
        with pytest.raises(DataError, match="cannot be read"):
            read_images(path)


def test_folder_named_like_a_data_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").mkdir()
    with pytest.raises(DataError, match="is at none of"):
        load("mnist", directory=tmp_path)


def test_gzip_bomb_is_not_decompressed(tmp_path: Path) -> None:
    bomb = write_file(tmp_path, "images.gz", gzip.compress(IMAGES + bytes(50_000_000)))
    tracemalloc.start()
    with pytest.raises(DataError, match="more received"):
        read_images(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_huge_sizes_in_idx_header_allocate_no_memory(tmp_path: Path) -> None:
    path = write_file(tmp_path, "images", struct.pack(">4I", 2051, LARGEST, 1, 2) + PIXELS)
    tracemalloc.start()
    with pytest.raises(DataError, match=f"at most {LARGEST}"):
        read_images(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@HERE
@given(data=st.data())
def test_any_flipped_byte_is_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    """One flipped byte anywhere in either form: a DataError or valid pixels; never another error."""
    packed = data.draw(st.booleans())
    body = bytearray(gzip.compress(IMAGES, mtime=0) if packed else IMAGES)
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        pixels = read_images(write_file(tmp_path, "images.gz" if packed else "images", bytes(body)))
    except DataError:
        return
    assert pixels.size == 24
    assert not packed or pixels.tobytes() == PIXELS  # a checksum covers compressed data


@HERE
@given(st.binary(max_size=64), st.sampled_from(["images", "images.gz"]))
def test_random_bytes_raise_data_error(tmp_path: Path, body: bytes, name: str) -> None:
    with pytest.raises(DataError):
        read_images(write_file(tmp_path, name, body))


@HERE
@given(cut=st.integers(0, 10_000))
def test_every_truncated_idx_file_is_refused(tmp_path: Path, cut: int) -> None:
    packed = gzip.compress(IMAGES, mtime=0)
    with pytest.raises(DataError):
        read_images(write_file(tmp_path, "images.gz", packed[: cut % len(packed)]))
