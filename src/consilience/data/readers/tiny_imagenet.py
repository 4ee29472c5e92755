"""Tiny-ImageNet: 64x64 color photographs of 200 classes, from the original archive or the folder extracted from it.

    wnids.txt                          the classes, one WordNet number per line, in the order of their labels
    words.txt                          their names (may be missing)
    train/WNID/images/*.JPEG           training images
    val/val_annotations.txt, images/   test images: the original test images have no published labels

Some images are gray and become RGB. Samples are ordered so that classes alternate, so any first N are balanced. Decoded
pixels are cached.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.data.cache import cache_key, load_cached, save_cached
from consilience.data.download import FOLDER_VARIABLE, ProgressLine, chosen_folder, download
from consilience.data.raw_dataset import RawDataset, balanced_order
from consilience.data.readers.digits import SEED
from consilience.data.readers.file_tree import FileTree, FolderTree, ZipTree
from consilience.data.readers.images import decode_all
from consilience.errors import DataError

ARCHIVE, FOLDER = "tiny-imagenet-200.zip", "tiny-imagenet-200"
CLASSES, WORDS, ANNOTATIONS = "wnids.txt", "words.txt", "val/val_annotations.txt"
SIDE = 64
_SUFFIX = ".JPEG"
_VERSION = 1  # of the decoder: a new number makes older cache entries unused
_LARGEST_TEXT, _LARGEST_IMAGE = 64 << 20, 1 << 20  # bytes


class _Half(NamedTuple):
    """The images of a half of the data set by name, and the class of each."""

    files: list[str]
    targets: NDArray[np.int64]  # (n,)

    def ordered(self) -> _Half:
        """In an order in which classes alternate."""
        order = balanced_order(self.targets, SEED)
        return _Half([self.files[i] for i in order], self.targets[order])


def read_tiny_imagenet(directory: Path | None, progress: bool) -> RawDataset:
    """The whole data set from `directory`, else the folder in CONSILIENCE_DATA, else by download."""
    folder = chosen_folder(directory)
    if folder is None:
        return _from_archive(download("tiny-imagenet", ARCHIVE, progress), progress)
    for place in (folder / "tiny-imagenet", folder):
        for inside in (place, place / FOLDER):
            if (inside / CLASSES).is_file():
                return _read(FolderTree(inside), progress)
        if (place / ARCHIVE).is_file():
            return _from_archive(place / ARCHIVE, progress)
    raise DataError(
        f"data set 'tiny-imagenet' needs {ARCHIVE}, or the folder {FOLDER} with {CLASSES}, train and val; neither is "
        f"in {folder / 'tiny-imagenet'} or {folder}. Point --data-dir or {FOLDER_VARIABLE} to a folder that has one, "
        f"or leave both out to download it"
    )


def _from_archive(path: Path, progress: bool) -> RawDataset:
    with ZipTree(path) as tree:
        inside = next((root for root in (f"{FOLDER}/", "") if f"{root}{CLASSES}" in tree.names), None)
        if inside is None:
            raise DataError(f"{path}: {CLASSES} missing in it; is it the original archive, {ARCHIVE}?")
        return _read(tree.below(inside), progress)


def _read(tree: FileTree, progress: bool) -> RawDataset:
    wnids = [line.strip() for line in _lines(tree, CLASSES) if line.strip()]
    if len(set(wnids)) != len(wnids) or len(wnids) < 2:
        raise DataError(f"{tree}, {CLASSES}: two or more different classes expected, one per line; fetch it again")
    numbers = {wnid: number for number, wnid in enumerate(wnids)}
    train, test = _train_images(tree, numbers).ordered(), _test_images(tree, numbers).ordered()
    pixels = _pixels(tree, [*train.files, *test.files], progress)  # (n + m, 3, 64, 64)
    inputs, test_inputs = pixels[: len(train.files)], pixels[len(train.files) :]
    names = _names(tree, wnids)
    halves = (inputs, train.targets, test_inputs, test.targets)
    return RawDataset(*halves, len(wnids), pixel_max=255, labels=names, source=str(tree))


def _lines(tree: FileTree, name: str) -> list[str]:
    if name not in tree.names:
        raise DataError(f"{tree}: {name} missing; the files of {ARCHIVE} are needed, fetch or extract it again")
    try:
        return tree.read(name, _LARGEST_TEXT).decode().splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{tree}, {name}: it is not UTF-8 text ({error.reason}); fetch it again") from error


def _train_images(tree: FileTree, numbers: dict[str, int]) -> _Half:
    files, classes = [], []
    for name in sorted(tree.names):
        match name.split("/"):
            case ["train", wnid, "images", file] if file.endswith(_SUFFIX) and not file.startswith("."):
                if wnid not in numbers:
                    raise DataError(f"{tree}, {name}: {wnid} is not a class of {CLASSES}; fetch or extract it again")
                files.append(name)
                classes.append(numbers[wnid])
    there = set(classes)
    if empty := [wnid for wnid, number in numbers.items() if number not in there]:
        raise DataError(
            f"{tree}: {len(empty)} of {len(numbers)} classes have no training image, such as {empty[0]}: none is in "
            f"train/{empty[0]}/images; fetch or extract {ARCHIVE} again"
        )
    return _Half(files, np.array(classes, dtype=np.int64))


def _test_images(tree: FileTree, numbers: dict[str, int]) -> _Half:
    files, classes = [], []
    for number, line in enumerate(_lines(tree, ANNOTATIONS), start=1):
        if not line.strip():
            continue
        file, wnid, *_ = (*line.split("\t"), "")
        if wnid not in numbers:
            raise DataError(
                f"{tree}, {ANNOTATIONS}, line {number}: an image and its class, separated by a tab, expected, and "
                f"{wnid!r} is not a class of {CLASSES}; fetch or extract it again"
            )
        files.append(f"val/images/{file}")
        classes.append(numbers[wnid])
    there = {name for name in tree.names if name.startswith("val/images/") and name.endswith(_SUFFIX)}
    if not files or len(set(files)) != len(files) or set(files) != there:
        odd = sorted(set(files) ^ there)
        such = f", such as {odd[0]}" if odd else ""
        raise DataError(
            f"{tree}: {ANNOTATIONS} names {len(files)} images and val/images holds {len(there)}, and each must be "
            f"named once{such}; fetch or extract {ARCHIVE} again"
        )
    return _Half(files, np.array(classes, dtype=np.int64))


def _names(tree: FileTree, wnids: list[str]) -> tuple[str, ...]:
    """The first name of each class in words.txt; its number where there is none, and beside a name of two classes."""
    words: dict[str, str] = {}
    if WORDS in tree.names:
        for line in _lines(tree, WORDS):
            wnid, _, said = line.partition("\t")
            words[wnid] = said.split(",")[0].strip()
    found = [words.get(wnid) or wnid for wnid in wnids]
    return tuple(
        name if found.count(name) == 1 else f"{name} ({wnid})" for name, wnid in zip(found, wnids, strict=True)
    )


def _pixels(tree: FileTree, files: list[str], progress: bool) -> NDArray[np.uint8]:
    """The decoded images, from the cache where nothing has changed since they were decoded."""
    import PIL

    key = cache_key(_VERSION, PIL.__version__, "tiny-imagenet", tree.fingerprint(files), files)
    cached = load_cached(key)
    if cached is not None and cached.dtype == np.uint8 and cached.shape == (len(files), 3, SIDE, SIDE):
        return cached
    bar = ProgressLine(FOLDER, len(files)) if progress else None
    stored = [tree.image(name, _LARGEST_IMAGE) for name in files]
    pixels = decode_all(stored, None, "color", lambda: None if bar is None else bar.update(1), side=SIDE)
    if bar is not None:
        bar.close()
    save_cached(key, pixels)
    return pixels
