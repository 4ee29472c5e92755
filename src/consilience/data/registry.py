"""Data sets by name or by path, cut to their first N samples and scaled."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from consilience.data.arrays import TEST_SHARE, check_test_share
from consilience.data.dataset import Dataset
from consilience.data.download import locate_file
from consilience.data.paths import SUFFIXES, FileOptions, name_of_path, read_path, refuse_file_options
from consilience.data.raw_dataset import RawDataset
from consilience.data.readers.cifar10 import read_cifar10
from consilience.data.readers.cifar100 import read_cifar100
from consilience.data.readers.diabetes import read_diabetes
from consilience.data.readers.digit_pairs import read_digit_pairs
from consilience.data.readers.digits import read_digits
from consilience.data.readers.idx import read_pair
from consilience.data.readers.image_folder import MODES
from consilience.data.readers.shakespeare import read_shakespeare
from consilience.data.readers.table import TableOptions
from consilience.data.readers.tiny_imagenet import read_tiny_imagenet
from consilience.data.scaling import SCALINGS, Scaling, ScalingChoice
from consilience.data.targets import KIND_CHOICES, KindChoice
from consilience.errors import DataError, UnknownName
from consilience.task import Target, TaskKind
from consilience.validation import check_choice, check_integer

Reader = Callable[[Path | None, bool], RawDataset]
"""Reads a whole data set, given a folder to look in (or None) and whether to show progress."""

CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def load(
    name: str | Path,
    *,
    directory: str | Path | None = None,
    train: int | None = None,
    test: int | None = None,
    progress: bool = False,
    test_share: float = TEST_SHARE,
    image_size: int | None = None,
    image_mode: str | None = None,
    label: str | None = None,
    owners: str | None = None,
    drop: str | Sequence[str] | None = None,
    kind: KindChoice = "auto",
    test_data: str | Path | None = None,
    scaling: Scaling | ScalingChoice = "auto",
    classes: int | None = None,
    target: Target | None = None,
) -> Dataset:
    """The data set `name`; train, test: use only the first N training and test samples.

    classes: use only the samples of the first N classes, and of those the first N training and test samples.

    `name` is a known name, or a path: a table (CSV, Parquet), an .npz file, a folder with a folder of images for
    each class, or a folder that Hugging Face's `save_to_disk` wrote.
    Inputs are scaled by those training samples: images by one mean and standard deviation, tables by column, text not
    at all; scaling: "pixels", "columns" or "none" instead, or a `Scaling` to use. The files of a known name are looked
    for in `directory`, else in the folder that CONSILIENCE_DATA names, else they are downloaded once, but for
    "shakespeare", which is never. Where samples have owners, N samples spread evenly over all are used instead of the
    first N, so that no owner is left out.

    A path without test samples keeps `test_share` of each class for tests. image_size, image_mode: images of a folder
    are resized to `image_size` x `image_size` pixels, and converted to "gray" or "color". label, owners, drop: of a
    table, the column with the class, the column with the owner of each row, and the columns to leave out, separated by
    commas; several label columns, of 0 and 1, are labels that a sample may have together. kind: of task, for a table or
    an .npz file where it is not plain: single-label, multi-label or regression. test_data: a second table, with the
    test samples. target: how targets are standardized and divided into bins, where others have decided it.
    """
    check_test_share(test_share)
    if image_size is not None:
        check_integer("image_size", image_size)
    if image_mode is not None:
        check_choice("image_mode", image_mode, MODES)
    if isinstance(scaling, str):
        check_choice("scaling", scaling, SCALINGS)
    name = os.fspath(name)
    path = _path_of(name)
    check_choice("kind", kind, KIND_CHOICES)
    table = TableOptions.make(label, owners, drop, kind)
    other = None if test_data is None else os.fspath(test_data)
    options = FileOptions(test_share, image_size, image_mode, table, other)
    if path is not None:
        raw, called = read_path(path, options, progress), name_of_path(path)
    else:
        refuse_file_options(name, options)
        raw, called = DATASETS[name](None if directory is None else Path(directory), progress), name
    refuse_other_kind(called, raw.kind, kind)
    chosen = None if scaling == "auto" else scaling
    what = f"data set {called!r}"
    return Dataset.from_raw(called, raw.first_classes(what, classes).first(what, train, test), chosen, target)


def refuse_other_kind(name: str, kind: TaskKind, asked: KindChoice) -> None:
    """Refuse a kind of task that is asked for where the data has another."""
    if asked not in ("auto", kind):
        raise DataError(f"kind is {asked!r}, and data set {name!r} is for {kind}; leave kind out, or use other data")


def is_dataset_path(name: str) -> bool:
    """Whether `load` reads `name` as a path of a file or folder; a known name never is one."""
    if name in DATASETS:
        return False
    separators = [each for each in (os.sep, os.altsep) if each]
    return (
        name.endswith(SUFFIXES) or any(each in name for each in separators) or os.path.exists(os.path.expanduser(name))
    )


def _path_of(name: str) -> Path | None:
    """The path of a folder or .npz file, None for a known name; anything else is refused."""
    if name in DATASETS:
        return None
    if not is_dataset_path(name):
        raise UnknownName(
            "data set",
            name,
            DATASETS,
            also="a path to a table (CSV, Parquet), an .npz file or a folder of images works too",
        )
    path = os.path.expanduser(name)  # os.path returns False for impossible names, where Path raises
    if not os.path.exists(path):
        raise DataError(f"{path}: there is no such file or folder; data is a path or one of {', '.join(DATASETS)}")
    if not os.path.isdir(path) and not (os.path.isfile(path) and path.endswith(SUFFIXES)):
        raise DataError(
            f"{path}: not a file that can be read; data is a file that ends in {', '.join(SUFFIXES)}, or a folder of "
            f"images"
        )
    return Path(path)


def _read_digits(directory: Path | None, progress: bool) -> RawDataset:
    return read_digits()  # they come with scikit-learn, so no folder or download is needed


def _read_digit_pairs(directory: Path | None, progress: bool) -> RawDataset:
    return read_digit_pairs()


def _read_diabetes(directory: Path | None, progress: bool) -> RawDataset:
    return read_diabetes()


def _read_idx(name: str, labels: tuple[str, ...], directory: Path | None, progress: bool) -> RawDataset:
    def half(prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.int64], Path]:
        images = locate_file(name, f"{prefix}-images-idx3-ubyte.gz", directory, progress)
        label_file = locate_file(name, f"{prefix}-labels-idx1-ubyte.gz", directory, progress)
        pixels, targets = read_pair(images, label_file, classes=10)
        return pixels[:, np.newaxis], targets, images.parent  # (n, 1, height, width), (n,)

    inputs, targets, folder = half("train")
    test_inputs, test_targets, _ = half("t10k")
    source = f"idx files in {folder}"
    return RawDataset(
        inputs, targets, test_inputs, test_targets, classes=10, pixel_max=255, labels=labels, source=source
    )


DATASETS: dict[str, Reader] = {
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "cifar100-coarse": partial(read_cifar100, coarse=True),
    "diabetes": _read_diabetes,
    "digit-pairs": _read_digit_pairs,
    "digits": _read_digits,
    "fashion-mnist": partial(_read_idx, "fashion-mnist", CLOTHES),
    "mnist": partial(_read_idx, "mnist", ()),
    "shakespeare": read_shakespeare,
    "tiny-imagenet": read_tiny_imagenet,
}
"""Every data set that `load` knows, by name."""
