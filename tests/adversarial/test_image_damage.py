"""Damaged and forged image data: CIFAR-10, .npz and image files are refused by name; none exhausts the memory."""

from __future__ import annotations

import io
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from consilience.data import load
from consilience.data.readers import cifar10
from consilience.data.readers.cifar10 import decode_batch, read_cifar10
from consilience.data.readers.images import decode_all
from consilience.data.readers.npz import LARGEST, read_archive, read_arrays
from consilience.errors import DataError

HERE = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BATCH = bytes([3]) + bytes(3072) + bytes([9]) + bytes(3072)  # two records
TEN = np.arange(10) % 2


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CIFAR-10 files of two records, and a cache of its own."""
    monkeypatch.setattr(cifar10, "RECORDS", 2)
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path / "cache"))


# --- CIFAR-10


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "2 records of 3073 bytes expected, 6146 in all, 0 received"),
        (BATCH[:-1], "6145 received"),
        (BATCH + b"\0", "more received"),
        (BATCH[:3073], "3073 received"),
        (bytes([10]) + BATCH[1:], r"labels must lie in 0\.\.9, but label 0 is 10"),
        (BATCH[:3073] + b"\xff" + BATCH[3074:], "label 1 is 255"),
    ],
)
def test_damaged_cifar10_batches_are_refused(tmp_path: Path, body: bytes, says: str) -> None:
    for name in (*cifar10.TRAIN, cifar10.TEST):
        (tmp_path / name).write_bytes(BATCH)
    assert len(read_cifar10(tmp_path, False).inputs) == 10
    (tmp_path / "data_batch_3.bin").write_bytes(body)
    with pytest.raises(DataError, match=says) as caught:
        read_cifar10(tmp_path, False)
    assert str(caught.value).startswith(str(tmp_path / "data_batch_3.bin"))


@given(st.binary(max_size=7000))
@HERE
def test_only_complete_cifar10_batches_with_valid_labels_are_read(body: bytes) -> None:
    try:
        images, labels = decode_batch("here", body)
    except DataError:
        assert len(body) != 6146 or body[0] > 9 or body[3073] > 9
    else:
        assert images.shape == (2, 3, 32, 32) and labels.tolist() == [body[0], body[3073]]


def tar(**changes: bytes | None) -> bytes:
    """The archive of six files, some of them changed, or left out where None."""
    files = {name: BATCH for name in (*cifar10.TRAIN, cifar10.TEST)} | {f"{k}.bin": v for k, v in changes.items()}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for name, body in files.items():
            if body is not None:
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                member.size = len(body)
                archive.addfile(member, io.BytesIO(body))
    return out.getvalue()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (tar(test_batch=None), r"test_batch\.bin missing in it"),
        (tar(data_batch_2=BATCH[:-1]), r"data_batch_2\.bin: .* 6145 received"),
        (tar(data_batch_2=BATCH * 2), r"data_batch_2\.bin: .* more received"),
        (tar(data_batch_5=b"\x0b" + BATCH[1:]), r"data_batch_5\.bin: labels.* is 11"),
        (tar()[:-200], "not a valid .tar.gz file"),
        (tar()[:20], "not a valid .tar.gz file"),
        (b"", "not a valid .tar.gz file"),
        (b"<html>404 Not Found</html>", "not a valid .tar.gz file"),
    ],
    ids=range(8),  # gzip stores a timestamp, so bytes differ between runs
)
def test_damaged_cifar10_archives_are_refused(tmp_path: Path, body: bytes, says: str) -> None:
    path = tmp_path / cifar10.ARCHIVE
    path.write_bytes(tar())
    assert read_cifar10(tmp_path, False).targets.tolist() == [3, 9] * 5
    path.write_bytes(body)
    with pytest.raises(DataError, match=says) as caught:
        read_cifar10(tmp_path, False)
    assert str(path) in str(caught.value)


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in (*cifar10.TRAIN, cifar10.TEST):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(member)
    (tmp_path / cifar10.ARCHIVE).write_bytes(out.getvalue())
    with pytest.raises(DataError, match="missing in it"):
        read_cifar10(tmp_path, False)


def test_archive_bomb_is_not_decompressed(tmp_path: Path) -> None:
    (tmp_path / cifar10.ARCHIVE).write_bytes(tar(data_batch_1=bytes(30_000_000)))
    tracemalloc.start()
    with pytest.raises(DataError, match="more received"):
        read_cifar10(tmp_path, False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000


@given(st.integers(0, 10**6), st.integers(1, 255))
@HERE
def test_archive_with_flipped_byte_is_refused_or_read(tmp_path: Path, where: int, flip: int) -> None:
    body = bytearray(tar())
    body[where % len(body)] ^= flip
    (tmp_path / cifar10.ARCHIVE).write_bytes(body)
    try:
        assert read_cifar10(tmp_path, False).inputs.shape == (10, 3, 32, 32)
    except DataError as error:
        assert str(tmp_path) in str(error)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"labels": TEN}, "'images' must be uint8.*got none"),
        ({"images": np.zeros((10, 32, 32, 3)), "labels": TEN}, "got float64"),
        ({"images": np.zeros((10, 3, 32, 32), np.uint8), "labels": TEN}, r"got uint8 of the shape \(10, 3, 32, 32\)"),
        ({"images": np.zeros((0, 32, 32, 3), np.uint8), "labels": TEN[:0]}, r"shape \(0, 32, 32, 3\)"),
        ({"images": np.zeros((10, 32, 32, 3), np.uint8)}, "'labels' must be.*got none"),
        ({"images": np.zeros((10, 32, 32, 3), np.uint8), "labels": TEN[:9]}, r"shape \(10,\), got int64 of"),
        ({"images": np.zeros((10, 32, 32, 3), np.uint8), "labels": TEN - 1}, "label 0 is -1"),
        ({"images": np.zeros((10, 32, 32, 3), np.uint8), "labels": TEN + 9}, "label 1 is 10"),
    ],
)
def test_npz_files_that_are_not_cifar10_are_refused(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "train.npz", **arrays)
    with pytest.raises(DataError, match=f"train.npz: .*{says}"):
        read_cifar10(tmp_path, False)


def test_incomplete_cifar10_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_batch.bin").write_bytes(BATCH)
    with pytest.raises(DataError, match=r"data_batch_1\.bin, .*data_batch_5\.bin missing"):
        read_cifar10(tmp_path, False)
    (tmp_path / "test_batch.bin").unlink()
    np.savez(tmp_path / "train.npz", images=np.zeros((10, 32, 32, 3), np.uint8), labels=TEN)
    with pytest.raises(DataError, match=r"one file test\*\.npz is needed, found none"):
        read_cifar10(tmp_path, False)
    np.savez(tmp_path / "train-2.npz", images=np.zeros((1, 32, 32, 3), np.uint8), labels=TEN[:1])
    with pytest.raises(DataError, match=r"found train-2\.npz, train\.npz; keep exactly one"):
        read_cifar10(tmp_path, False)


# --- .npz files


def npz(compressed: bool = False, **arrays: Any) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **arrays)
    return out.getvalue()


def npz_with_header(header: str, body: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """A zip whose `x.npy` has this header and this body, which need not match."""
    text = header.encode().ljust(118) + b"\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY" + bytes(version) + struct.pack("<H", len(text)) + text + body)
        archive.writestr("y.npy", b"")
    return out.getvalue()


HUGE = "{'descr': '|u1', 'fortran_order': False, 'shape': (10, 1000000000), }"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "cannot be read as an .npz file"),
        (b"PK\x03\x04", "cannot be read as an .npz file"),
        (b"<html>404 Not Found</html>", "cannot be read as an .npz file"),
        (npz(x=np.eye(10), y=TEN)[:-30], "cannot be read as an .npz file"),
        (npz(a=1, b=2), "no array is called 'images' or 'x'; it holds 'a', 'b'. Save images"),
        (npz(x=np.eye(10)), "no array is called 'labels' or 'y'; it holds 'x'"),
        (npz(), "it holds nothing"),
        (npz(x=np.eye(10), images=np.eye(10), y=TEN), "both 'images' and 'x'"),
        (npz(x=np.array([{}], dtype=object), y=TEN), "array 'x' holds Python objects, which may run code"),
        (npz(x=np.zeros(10, dtype=[("a", object)]), y=TEN), "holds Python objects"),
        (npz(x=np.zeros(10, dtype=[("a", int)]), y=TEN), "real numbers"),
        (npz(x=np.eye(10), y=TEN[:9]), r"training labels must have the shape \(10,\)"),
        (npz(x=np.full((10, 2), np.inf), y=TEN), "20 values are not"),
        (npz(x=np.eye(10), y=TEN, test_x=np.eye(10)), "test labels are missing"),
        (npz(x=np.eye(10), y=TEN, classes=np.array([1, 2])), "array 'classes' must be text"),
        (npz(x=np.eye(10), y=TEN, classes=np.array("ab")), "array 'classes' must be text"),
        (
            npz(x=np.eye(10), y=TEN, classes=np.array([0xD800, 65], np.uint32).view("<U1")),
            "array 'classes' is not text",
        ),
        (npz(x=np.eye(10), y=TEN, classes=np.full(2, 2**31, np.uint32).view("<U1")), "array 'classes' is not text"),
        (npz(x=np.eye(10), y=TEN, shareable=TEN[:3]), "shareable must be 10 values"),
        (npz_with_header(HUGE), rf"claims to be uint8 .*10000000000 bytes; at most {LARGEST}"),
        (
            npz_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (10, 4), }"),
            "40 bytes expected, 0 received",
        ),
        (
            npz_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 4), }", b"12345"),
            "4 bytes expected, more",
        ),
        (npz_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 4), }", b"1"), r"shape \(-1, 4\)"),
        (npz_with_header("{'descr': '<U0', 'fortran_order': False, 'shape': (9999999999,), }"), "claims to be"),
        (npz_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }", b"1234", (9, 9)), "9, 9"),
        (npz_with_header("__import__('os').system('true')"), "cannot be read as an .npz file"),
    ],
)
def test_damaged_npz_files_are_refused(tmp_path: Path, body: bytes, says: str) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(body)
    with pytest.raises(DataError, match=says) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"{path}: ")


def test_huge_shape_in_npz_header_allocates_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    for header in (HUGE, HUGE.replace("10, 1000000000", "4, 1000000000")):  # above the limit, and just below
        path.write_bytes(npz_with_header(header))
        tracemalloc.start()
        with pytest.raises(DataError):
            read_arrays(path, ["x"])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2_000_000


def test_npz_bomb_with_small_declared_shape_is_not_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(npz_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2), }", bytes(50_000_000)))
    tracemalloc.start()
    with pytest.raises(DataError, match="more received"):
        read_arrays(path, ["x"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@given(st.integers(0, 10**6), st.integers(1, 255), st.booleans())
@HERE
def test_npz_with_flipped_byte_is_refused_or_read(tmp_path: Path, where: int, flip: int, compressed: bool) -> None:
    body = bytearray(npz(compressed, images=np.arange(40, dtype=np.uint8).reshape(10, 2, 2), labels=TEN))
    body[where % len(body)] ^= flip
    path = tmp_path / "mine.npz"
    path.write_bytes(body)
    try:
        assert read_archive(path, 0.2).classes == 2
    except DataError as error:
        assert str(path) in str(error)


@given(st.integers(1, 10**6))
@HERE
def test_every_truncated_npz_is_refused(tmp_path: Path, cut: int) -> None:
    body = npz(images=np.arange(40, dtype=np.uint8).reshape(10, 2, 2), labels=TEN)
    path = tmp_path / "mine.npz"
    path.write_bytes(body[: cut % len(body)])
    with pytest.raises(DataError, match=r"mine\.npz"):
        read_archive(path, 0.2)


# --- image files


def picture(suffix: str) -> bytes:
    out = io.BytesIO()
    values = np.arange(12 * 12 * 3, dtype=np.uint8).reshape(12, 12, 3)
    Image.fromarray(values).save(out, {"jpg": "jpeg", "tif": "tiff"}.get(suffix, suffix))
    return out.getvalue()


def bomb() -> bytes:
    """A PNG of 100,000 x 100,000 pixels in a hundred bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


def warned_bomb() -> bytes:
    """A PNG of 10,000 x 10,000 pixels, for which Pillow only warns."""
    return bomb().replace(struct.pack(">II", 100_000, 100_000), struct.pack(">II", 10_000, 10_000))


@pytest.mark.parametrize(
    ("suffix", "body"),
    [
        ("png", b""),
        ("png", b"not an image"),
        ("png", picture("png")[:-40]),
        ("png", bomb()),
        ("jpg", picture("jpg")[:-200]),
        ("bmp", picture("bmp")[:-200]),
        ("gif", picture("gif")[:30]),
        ("tif", picture("tif")[:60]),
        ("webp", picture("webp")[:-30]),
        ("ppm", b"P6 12 12 255\n123"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_damaged_image_files_are_refused_by_name(tmp_path: Path, suffix: str, body: bytes) -> None:
    for name in ("a/1", "a/2", "b/1"):
        path = tmp_path / f"{name}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture(suffix))
    path.write_bytes(body)
    with pytest.raises(DataError, match=rf"b/1\.{suffix}: cannot be read as an image") as caught:
        load(str(tmp_path), test_share=0.5, image_size=8, image_mode="gray")
    assert str(caught.value).count(str(path)) == 1


def test_image_for_which_pillow_only_warns_is_refused(tmp_path: Path) -> None:
    body = warned_bomb()
    start = body.index(b"IHDR")
    body = body[: start + 17] + struct.pack(">I", zlib.crc32(body[start : start + 17])) + body[start + 21 :]
    path = tmp_path / "large.png"
    path.write_bytes(body)
    with pytest.raises(DataError, match=r"large\.png: cannot be read as an image \(Image size \(100000000 pixels\)"):
        decode_all([path], 8, None, lambda: None)


def test_image_above_pixel_limit_is_refused_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "small.png"
    path.write_bytes(picture("png"))
    with pytest.raises(DataError, match=r"array of the shape \(1, 3, 90000, 90000\).*smaller image_size"):
        decode_all([path], 90_000, None, lambda: None)


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp", "tif", "webp"])
@given(where=st.integers(0, 10**6), flip=st.integers(1, 255))
@settings(HERE, max_examples=40)
def test_image_file_with_flipped_byte_is_refused_or_read(tmp_path: Path, suffix: str, where: int, flip: int) -> None:
    body = bytearray(picture(suffix))
    body[where % len(body)] ^= flip
    path = tmp_path / f"one.{suffix}"
    path.write_bytes(body)
    try:
        assert decode_all([path], 8, "color", lambda: None).shape == (1, 3, 8, 8)
    except DataError as error:
        assert str(path) in str(error)
