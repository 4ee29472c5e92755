"""Tiny-ImageNet from small archives and folders in the original layout, whole and damaged."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
from PIL import Image

from consilience.data import load
from consilience.data.readers import images, tiny_imagenet
from consilience.data.readers.tiny_imagenet import ARCHIVE, read_tiny_imagenet
from consilience.errors import DataError
from consilience.models import model_factory
from consilience.presentation.method_table import catalog

Command = Callable[..., tuple[int, str, str]]
WNIDS = ("n02124075", "n01443537", "n07734744")  # not in the order of their names, as in the original
GRAYS = {"n02124075": 40, "n01443537": 120, "n07734744": 200}  # the gray that all images of a class have
TRAIN, VAL = 4, 2  # images of a class


def jpeg(value: int, mode: str = "RGB", side: int = 64) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (side, side), value if mode == "L" else (value,) * 3).save(out, "JPEG")
    return out.getvalue()


def files() -> dict[str, bytes]:
    """The content of every file; the first image of each class is stored in gray."""
    found = {
        "wnids.txt": "".join(f"{wnid}\n" for wnid in WNIDS).encode(),
        "words.txt": b"n01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\nn07734744\tgoldfish, again\n",
        "test/images/test_0.JPEG": jpeg(0),
    }
    lines = []
    for number, wnid in enumerate(WNIDS):
        found[f"train/{wnid}/{wnid}_boxes.txt"] = b"n_0.JPEG\t0\t0\t63\t63\n"
        for i in range(TRAIN):
            found[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(GRAYS[wnid], "L" if i == 0 else "RGB")
        for i in range(VAL):
            name = f"val_{VAL * number + i}.JPEG"
            found[f"val/images/{name}"] = jpeg(GRAYS[wnid])
            lines.append(f"{name}\t{wnid}\t0\t32\t44\t62\n")
    return found | {"val/val_annotations.txt": "".join(lines).encode()}


def archive(content: dict[str, bytes], root: str = "tiny-imagenet-200/") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as written:
        for name, body in content.items():
            written.writestr(f"{root}{name}", body)
    return out.getvalue()


def write(folder: Path, form: str, content: dict[str, bytes] | None = None) -> None:
    content = files() if content is None else content
    if form in ("archive", "flat archive"):
        content = {ARCHIVE: archive(content, "" if form == "flat archive" else "tiny-imagenet-200/")}
    for name, body in content.items():
        path = folder / ("tiny-imagenet-200" if form == "inside" else "") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONSILIENCE_DATA", raising=False)


@pytest.mark.parametrize("place", ["", "tiny-imagenet"])
@pytest.mark.parametrize("form", ["folder", "inside", "archive", "flat archive"])
def test_every_form_gives_the_same_samples(tmp_path: Path, form: str, place: str) -> None:
    write(tmp_path / "data" / place, form)
    data = load("tiny-imagenet", directory=tmp_path / "data")
    assert data.shape == (3, 64, 64) and data.classes == 3
    assert data.labels == ("Egyptian cat", "goldfish (n01443537)", "goldfish (n07734744)")  # in the order of wnids.txt
    assert len(data.targets) == 12 and len(data.test_targets) == 6
    pixels = np.rint(data.scaling.undo(data.inputs.astype(np.float64)) * 255)  # (12, 3, 64, 64)
    assert (pixels == np.array([GRAYS[WNIDS[t]] for t in data.targets])[:, None, None, None]).all()
    for targets in (data.targets, data.test_targets):
        assert all(sorted(targets[i : i + 3]) == [0, 1, 2] for i in range(0, len(targets), 3)), (
            "any first N is balanced"
        )


def test_images_are_decoded_once_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    original = images.decode_all

    def decode_all(paths: Any, *others: Any, **more: Any) -> Any:
        decoded.append(len(paths))
        return original(paths, *others, **more)

    monkeypatch.setattr(tiny_imagenet, "decode_all", decode_all)
    write(tmp_path / "data", "folder")
    first = read_tiny_imagenet(tmp_path / "data", False)
    again = read_tiny_imagenet(tmp_path / "data", False)
    assert decoded == [18] and np.array_equal(first.inputs, again.inputs)
    changed = tmp_path / "data" / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_3.JPEG"
    changed.write_bytes(jpeg(250))
    os.utime(changed, ns=(1, 1))
    assert (read_tiny_imagenet(tmp_path / "data", False).inputs == 250).any() and decoded == [18, 18]
    write(tmp_path / "zip", "archive")
    read_tiny_imagenet(tmp_path / "zip", False)
    write(tmp_path / "copy", "archive")
    read_tiny_imagenet(tmp_path / "copy", False)
    assert decoded == [18, 18, 18], "copies of an archive share a cache entry"


def test_without_words_classes_have_their_numbers(tmp_path: Path) -> None:
    content = files()
    del content["words.txt"]
    write(tmp_path, "archive", content)
    assert read_tiny_imagenet(tmp_path, False).labels == WNIDS


def test_it_is_downloaded_with_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "archive")

    def retrieve(url: str, known_hash: str, fname: str, path: Path, progressbar: Any) -> str:
        assert url == "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
        assert known_hash == "md5:90528d7ca1a48142e341f4ef8d21d0de" and path == tmp_path / "cache" / "tiny-imagenet"
        return str(tmp_path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert len(load("tiny-imagenet").targets) == 12


# --- damage

_NOTES = "val/val_annotations.txt"
_IMAGE = f"train/{WNIDS[1]}/images/{WNIDS[1]}_2.JPEG"
DAMAGE: list[tuple[dict[str, bytes | None], str]] = [
    ({"wnids.txt": b"n02124075\n"}, r"wnids\.txt: two or more different classes expected"),
    ({"wnids.txt": WNIDS[0].encode() + b"\n" + WNIDS[1].encode()}, r"n07734744 is not a class of wnids\.txt"),
    ({"wnids.txt": files()["wnids.txt"] + b"n09999999"}, "1 of 4 classes have no training image, such as n09999999"),
    ({_NOTES: None}, r"val/val_annotations\.txt missing"),
    ({_NOTES: b"val_0.JPEG\tn00000000\n"}, r"line 1: .*'n00000000' is not a class of wnids\.txt"),
    ({_NOTES: b"val_0.JPEG n02124075\n"}, "line 1: an image and its class, separated by a tab"),
    ({_NOTES: b"\xff\xfe\n"}, "not UTF-8 text"),
    ({_NOTES: b"val_0.JPEG\tn02124075\n"}, r"names 1 images and val/images holds 6, .*such as val/images/val_1\.JPEG"),
    ({_NOTES: b""}, "names 0 images and val/images holds 6"),
    ({"val/images/val_3.JPEG": None}, r"names 6 images and val/images holds 5.*val_3\.JPEG"),
    ({_IMAGE: jpeg(9)[:300]}, rf"{_IMAGE}: cannot be read as an image"),
    ({_IMAGE: b"<html>"}, rf"{_IMAGE}: cannot be read as an image"),
    ({_IMAGE: jpeg(9, side=32)}, rf"{_IMAGE}: an image of 64 x 64 pixels expected, it has 32 x 32"),
]


@pytest.mark.parametrize(("change", "says"), DAMAGE, ids=range(len(DAMAGE)))
@pytest.mark.parametrize("form", ["folder", "archive"])
def test_damaged_data_is_refused_by_name(tmp_path: Path, form: str, change: dict[str, bytes | None], says: str) -> None:
    content = {name: body for name, body in (files() | change).items() if body is not None}
    write(tmp_path, form, content)
    with pytest.raises(DataError, match=says) as caught:
        read_tiny_imagenet(tmp_path, False)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../evil.txt", "/etc/evil.txt", "tiny-imagenet-200/train/../../../evil", "a\\..\\..\\b"]
)
def test_an_archive_with_names_outside_of_it_is_refused(tmp_path: Path, name: str) -> None:
    out = io.BytesIO(archive(files()))
    with zipfile.ZipFile(out, "a") as written:
        written.writestr(name, b"evil")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ARCHIVE).write_bytes(out.getvalue())
    with pytest.raises(DataError, match="a file outside of its own folder"):
        read_tiny_imagenet(tmp_path / "data", False)
    assert not list(tmp_path.rglob("evil*"))


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    whole, path = archive(files()), tmp_path / ARCHIVE
    at = whole.index(b"JFIF", whole.index(_IMAGE.encode()))
    flipped = whole[:at] + b"X" + whole[at + 1 :]  # the checksum of the image is then wrong
    for body, says in (
        (whole[: len(whole) // 2], "not a valid .zip file"),
        (b"", "not a valid .zip file"),
        (flipped, "not a valid .zip file .*Bad CRC-32"),
        (archive({"README": b"hello"}), r"wnids\.txt missing in it; is it the original archive"),
        (archive(files() | {"train/n02124075/images/n02124075_0.JPEG": bytes(2 << 20)}), "at most 1048576 bytes"),
    ):
        path.write_bytes(body)
        with pytest.raises(DataError, match=says) as caught:
            read_tiny_imagenet(tmp_path, False)
        assert str(path) in str(caught.value)


def test_missing_data_is_named_with_the_places(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tiny-imagenet-200\.zip, or the folder.*--data-dir") as caught:
        load("tiny-imagenet", directory=tmp_path)
    assert str(tmp_path / "tiny-imagenet") in str(caught.value)


# --- use


@pytest.mark.parametrize(("shape", "classes"), [((3, 64, 64), 200), ((3, 32, 32), 100)])
@pytest.mark.parametrize(("name", "width"), [("encoder18", 512), ("encoder50", 2048), ("resnet18", 256)])
def test_models_take_its_images_and_classes(name: str, width: int, shape: tuple[int, ...], classes: int) -> None:
    import torch

    model = model_factory(name, shape, classes)()
    features = model.features(torch.zeros(2, *shape))
    assert features.shape == (2, width) and model.classifier(features).shape == (2, classes)


def test_commands_describe_it_and_run_flesd_on_it(tmp_path: Path, command: Command) -> None:
    write(tmp_path / "files", "archive")
    where = ("--data-dir", str(tmp_path / "files"))
    code, out, err = command("data", "tiny-imagenet", *where, "--json")
    assert code == 0, err
    said = json.loads(out)
    assert (said["samples"], said["test_samples"], said["classes"], said["shape"]) == (12, 6, 3, [3, 64, 64])
    small = ("--learners", "3", "--rounds", "1", "--model", "lenet5", "--workers", "0", "--out", "ran", "--json")
    flesd = ("--method", "flesd:distill_epochs=1:queue=2", "--batch-size", "2", "--probe", "knn")
    code, out, err = command("run", "--data", "tiny-imagenet", *where, *small, *flesd)
    assert code == 0, err
    assert json.loads(out)["data"] == "tiny-imagenet"


def test_method_table_counts_bytes_without_its_files() -> None:
    (entry,) = catalog("tiny-imagenet", "encoder18", ["fedavg"])
    assert entry["message_bytes"]["up"] > 4 * (11_168_832 + 512 * 200 + 200)  # of the encoder and of 200 classes
