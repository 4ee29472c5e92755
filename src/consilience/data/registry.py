"""Data sets by name, cut to the first samples asked for and scaled by what is left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from consilience.data.dataset import Dataset, Pixels
from consilience.data.digits import read_digits
from consilience.data.download import locate
from consilience.data.idx import read_pair
from consilience.errors import ConfigurationError, DataError, UnknownName

Reader = Callable[[Path | None, bool], Pixels]
"""Reads a whole data set, given a folder to look in (or None) and whether to show progress."""


def load(
    name: str,
    *,
    directory: str | Path | None = None,
    train: int | None = None,
    test: int | None = None,
    progress: bool = False,
) -> Dataset:
    """The data set `name`: its first `train` training samples and first `test` test samples, or all of them.

    Everything is scaled by the mean and standard deviation of those training samples, over all pixels. Files are
    looked for in `directory`, else in the folder that CONSILIENCE_DATA names, else they are downloaded once.
    """
    if name not in DATASETS:
        raise UnknownName("data set", name, DATASETS)
    pixels = DATASETS[name](None if directory is None else Path(directory), progress)
    kept = _count(name, "training", train, len(pixels.inputs))
    tested = _count(name, "test", test, len(pixels.test_inputs))
    return _scaled(
        name,
        pixels._replace(
            inputs=pixels.inputs[:kept],
            targets=pixels.targets[:kept],
            test_inputs=pixels.test_inputs[:tested],
            test_targets=pixels.test_targets[:tested],
        ),
    )


def _count(name: str, half: str, asked: int | None, available: int) -> int:
    if asked is None:
        return available
    if not 1 <= asked <= available:
        raise ConfigurationError(
            f"data set {name!r} has {available} {half} samples, {asked} were asked for; "
            f"ask for 1 to {available}, or leave the number out for all of them"
        )
    return asked


def _scaled(name: str, pixels: Pixels) -> Dataset:
    mean = float(pixels.inputs.mean(dtype=np.float64)) / pixels.brightest
    std = float(pixels.inputs.std(dtype=np.float64)) / pixels.brightest
    if std == 0:
        raise DataError(
            f"data set {name!r}: all pixels of its first {len(pixels.inputs)} training samples are the same, "
            f"so they cannot be scaled; take more samples or fetch the files again"
        )

    def scale(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        values = images[:, np.newaxis].astype(np.float32)  # (n, 1, height, width)
        values /= np.float32(pixels.brightest)
        values -= np.float32(mean)
        values /= np.float32(std)
        return values

    inputs, tests = scale(pixels.inputs), scale(pixels.test_inputs)
    return Dataset(name, inputs, pixels.targets, tests, pixels.test_targets, pixels.classes, mean, std)


def _read_digits(directory: Path | None, progress: bool) -> Pixels:
    return read_digits()  # they come with scikit-learn: nothing to look for, nothing to wait for


def _read_idx(name: str, directory: Path | None, progress: bool) -> Pixels:
    def half(prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        images = locate(name, f"{prefix}-images-idx3-ubyte.gz", directory, progress)
        labels = locate(name, f"{prefix}-labels-idx1-ubyte.gz", directory, progress)
        return read_pair(images, labels, classes=10)

    return Pixels(*half("train"), *half("t10k"), brightest=255, classes=10)


DATASETS: dict[str, Reader] = {
    "digits": _read_digits,
    "fashion-mnist": partial(_read_idx, "fashion-mnist"),
    "mnist": partial(_read_idx, "mnist"),
}
"""Every data set that `load` knows, by name."""
