"""CIFAR-100 from small files in the original layout: either kind of labels, every place, every kind of damage."""

from __future__ import annotations

import io
import json
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest

from consilience.data import load
from consilience.data.readers import cifar100
from consilience.data.readers.cifar100 import COARSE, FINE, read_cifar100
from consilience.errors import DataError

Command = Callable[..., tuple[int, str, str]]
CLASSES = ((4, 0), (1, 1), (14, 2), (8, 3), (13, 99))  # (coarse, fine) of some classes: apple is a fruit, ...


def records(count: int) -> bytes:
    """Records of the five classes in turn: red is the fine label, green 100, and blue counts up."""
    planes = bytes([100]) * 1024 + bytes(range(256)) * 4
    chosen = [CLASSES[i % len(CLASSES)] for i in range(count)]
    return b"".join(bytes([coarse, fine]) + bytes([fine]) * 1024 + planes for coarse, fine in chosen)


FILES = {"train.bin": records(20), "test.bin": records(10)}


def tar(files: dict[str, bytes] = FILES) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for name, body in {"fine_label_names.txt": b"apple\n", **files}.items():
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return out.getvalue()


def write(folder: Path, form: str) -> None:
    folder = folder / "cifar-100-binary" if form == "inside" else folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in ({cifar100.ARCHIVE: tar()} if form == "archive" else FILES).items():
        (folder / name).write_bytes(body)


@pytest.mark.parametrize("place", ["", "cifar100"])
@pytest.mark.parametrize("form", ["files", "inside", "archive"])
def test_every_form_gives_the_same_samples(tmp_path: Path, form: str, place: str) -> None:
    write(tmp_path / place, form)
    data = load("cifar100", directory=tmp_path)
    assert data.shape == (3, 32, 32) and data.classes == 100
    assert data.targets.tolist() == [0, 1, 2, 3, 99] * 4 and data.test_targets.tolist() == [0, 1, 2, 3, 99] * 2
    assert [data.labels[i] for i in (0, 1, 2, 3, 99)] == ["apple", "aquarium_fish", "baby", "bear", "worm"]
    pixels = np.rint(data.scaling.undo(data.inputs.astype(np.float64)) * 255)  # (20, 3, 32, 32)
    assert (pixels[:, 0].reshape(20, -1) == data.targets[:, None]).all()
    assert (pixels[:, 1] == 100).all() and pixels[7, 2, 3].tolist() == list(range(96, 128))


def test_coarse_labels_are_the_groups_of_the_same_images(tmp_path: Path) -> None:
    write(tmp_path, "archive")
    coarse, fine = load("cifar100-coarse", directory=tmp_path), load("cifar100", directory=tmp_path)
    assert coarse.classes == 20 and coarse.targets.tolist() == [4, 1, 14, 8, 13] * 4
    assert [coarse.labels[i] for i in (4, 1, 14)] == ["fruit_and_vegetables", "fish", "people"]
    assert np.array_equal(coarse.inputs, fine.inputs)


def test_names_are_the_published_ones_in_order() -> None:
    assert (len(COARSE), len(FINE)) == (20, 100)  # both lists are published in the order of the alphabet
    assert list(COARSE) == sorted(COARSE) and list(FINE) == sorted(FINE) and not set(COARSE) & set(FINE)


@pytest.mark.parametrize("name", ["cifar100", "cifar100-coarse"])
def test_it_is_downloaded_with_its_published_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write(tmp_path, "archive")

    def retrieve(url: str, known_hash: str, fname: str, path: Path, progressbar: Any) -> str:
        assert url == "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
        assert known_hash == "md5:03b5dce01913d631647c71ecec9e9cb8" and path == tmp_path / "cache" / "cifar100"
        return str(tmp_path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    monkeypatch.delenv("CONSILIENCE_DATA", raising=False)
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path / "cache"))
    assert len(load(name).targets) == 20


@pytest.mark.parametrize("pickled", ["cifar-100-python.tar.gz", "cifar-100-python/train"])
def test_the_pickled_version_is_refused(tmp_path: Path, pickled: str) -> None:
    (tmp_path / pickled).parent.mkdir(exist_ok=True)
    (tmp_path / pickled).write_bytes(b"cos\nsystem\n")
    with pytest.raises(DataError, match=r"pickled Python objects.*the binary version, cifar-100-binary\.tar\.gz"):
        load("cifar100", directory=tmp_path)


def test_missing_files_are_named_with_the_places(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"train\.bin and test\.bin, or cifar-100-binary\.tar\.gz.*--data-dir"
    ) as caught:
        load("cifar100", directory=tmp_path)
    assert str(tmp_path / "cifar100") in str(caught.value)
    (tmp_path / "train.bin").write_bytes(records(5))
    with pytest.raises(DataError, match=r"test\.bin missing; both files"):
        load("cifar100", directory=tmp_path)


DAMAGE = [
    (b"", "1 to 50000 whole records of 3074 bytes expected, 0 bytes received"),
    (records(5)[:-1], "15369 bytes received"),
    (records(5)[: 3073 * 5], "15365 bytes received"),  # as long as five records of CIFAR-10
    (b"\x14" + records(5)[1:], r"coarse labels must lie in 0\.\.19, but that of record 0 is 20"),
    (records(1) + b"\x00\x64" + records(1)[2:], r"fine labels must lie in 0\.\.99, but that of record 1 is 100"),
]


@pytest.mark.parametrize(("body", "says"), DAMAGE)
@pytest.mark.parametrize("form", ["files", "archive"])
def test_damaged_files_are_refused_by_name(tmp_path: Path, form: str, body: bytes, says: str) -> None:
    write(tmp_path, form)
    if form == "archive":
        (tmp_path / cifar100.ARCHIVE).write_bytes(tar({**FILES, "train.bin": body}))
    else:
        (tmp_path / "train.bin").write_bytes(body)
    with pytest.raises(DataError, match=f"train.bin: .*{says}"):
        read_cifar100(tmp_path, False)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (tar({"train.bin": records(5)}), r"test\.bin missing in it; is it the binary version of CIFAR-100\?"),
        (tar()[:-200], "not a valid .tar.gz file"),
        (b"<html>404 Not Found</html>", "not a valid .tar.gz file"),
    ],
    ids=range(3),  # gzip stores a timestamp, so bytes differ between runs
)
def test_damaged_archives_are_refused(tmp_path: Path, body: bytes, says: str) -> None:
    (tmp_path / cifar100.ARCHIVE).write_bytes(body)
    with pytest.raises(DataError, match=says) as caught:
        read_cifar100(tmp_path, False)
    assert str(tmp_path / cifar100.ARCHIVE) in str(caught.value)


def test_an_archive_that_is_too_large_is_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar100, "RECORDS", {"train.bin": 20, "test.bin": 10})
    (tmp_path / cifar100.ARCHIVE).write_bytes(tar({**FILES, "train.bin": bytes(30_000_000)}))
    tracemalloc.start()
    with pytest.raises(DataError, match="more than 61480 bytes received"):
        read_cifar100(tmp_path, False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000


@pytest.mark.parametrize(("name", "classes"), [("cifar100", 100), ("cifar100-coarse", 20)])
def test_commands_describe_it_and_run_on_it(tmp_path: Path, command: Command, name: str, classes: int) -> None:
    write(tmp_path / "files", "archive")
    where = ("--data-dir", str(tmp_path / "files"))
    code, out, err = command("data", name, *where, "--json")
    assert code == 0, err
    said = json.loads(out)
    assert (said["name"], said["samples"], said["test_samples"], said["classes"]) == (name, 20, 10, classes)
    small = ("--learners", "2", "--rounds", "1", "--model", "lenet5", "--workers", "0", "--out", "ran", "--json")
    code, out, err = command("run", "--data", name, *where, *small, "--method", "independent")
    assert code == 0, err
    assert json.loads(out)["data"] == name
