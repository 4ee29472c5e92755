"""A data set as its files hold it, and how it is cut to fewer samples and scaled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.errors import ConfigurationError, DataError

_CHUNK = 1 << 22  # bytes counted at once, so that little memory is used


class RawDataset(NamedTuple):
    """A data set before anything is left out or scaled: any real numbers, images with their channels first."""

    inputs: NDArray[Any]  # (n, *shape)
    targets: NDArray[np.int64]  # (n,)
    test_inputs: NDArray[Any]  # (m, *shape)
    test_targets: NDArray[np.int64]  # (m,)
    classes: int
    pixel_max: int = 1  # the value scaled to 1.0: 255 for images of bytes, 1 for other inputs
    labels: tuple[str, ...] = ()  # names of the classes
    shareable: NDArray[np.bool_] | None = None  # (n,) False where a sample must never be shared
    source: str = ""
    owners: NDArray[np.int64] | None = None  # (n,) the owner of each training sample, 0..k-1
    owner_names: tuple[str, ...] = ()
    alphabet: str = ""  # where inputs are codes of characters: all characters, in the order of their codes

    def first(self, what: str, train: int | None, test: int | None) -> RawDataset:
        """Use only the first `train` training and `test` test samples; None: all.

        Samples with owners are ordered by owner, so the first N would be those of the first owners alone: N samples
        spread evenly over all are used instead.
        """
        kept = first_samples(
            _count(what, "training", train, len(self.inputs)), len(self.inputs), self.owners is not None
        )
        tested = first_samples(
            _count(what, "test", test, len(self.test_inputs)), len(self.test_inputs), self.owners is not None
        )
        return self._replace(
            inputs=self.inputs[kept],
            targets=self.targets[kept],
            test_inputs=self.test_inputs[tested],
            test_targets=self.test_targets[tested],
            shareable=None if self.shareable is None else self.shareable[kept],
            owners=None if self.owners is None else self.owners[kept],
        )


def first_samples(asked: int | None, available: int, spread: bool) -> slice | NDArray[np.int64]:
    """The samples to use: the first `asked`, or as many spread evenly over all; None: all.

    >>> first_samples(3, 10, spread=True)
    array([0, 3, 6])
    """
    if asked is None or asked >= available or not spread:
        return slice(asked)
    return np.arange(asked, dtype=np.int64) * available // asked  # (asked,)


def _count(what: str, half: str, asked: int | None, available: int) -> int:
    if asked is None:
        return available
    if not 1 <= asked <= available:
        raise ConfigurationError(
            f"{what} has {available} {half} samples, and {asked} are to be used; "
            f"use 1 to {available}, or leave the number out to use all"
        )
    return asked


def mean_and_std(what: str, raw: RawDataset) -> tuple[float, float]:
    """Mean and standard deviation over all values of the training inputs, divided by pixel_max."""
    mean, std = _moments(raw.inputs)
    # Equal floats may deviate from their rounded mean, so equality is checked as well.
    if std == 0 or raw.inputs.min() == raw.inputs.max():
        raise DataError(
            f"{what}: all values of its first {len(raw.inputs)} training samples are the same, "
            f"so they cannot be scaled; use more samples or check the source"
        )
    if not np.isfinite(std):
        raise DataError(f"{what}: the training inputs are too large to be scaled; divide them by a constant first")
    return mean / raw.pixel_max, std / raw.pixel_max


def _moments(values: NDArray[Any]) -> tuple[float, float]:
    if values.dtype != np.uint8:
        with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses such data with a message
            return float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    # Bytes are counted: no float64 copy, and the same result for any order of the values.
    flat, counts = values.reshape(-1), np.zeros(256, dtype=np.int64)
    for start in range(0, len(flat), _CHUNK):
        counts += np.bincount(flat[start : start + _CHUNK], minlength=256)
    levels, shares = np.arange(256), counts / len(flat)  # (256,), (256,)
    mean = float(counts @ levels) / len(flat)
    return mean, float(np.sqrt(shares @ (levels - mean) ** 2))


def scale(values: NDArray[Any], pixel_max: int, mean: float, std: float) -> NDArray[np.float32]:
    """(value / brightest - mean) / std, of the same shape."""
    # Bytes fit into float32; other numbers may be large compared to their spread, so they are centered in float64.
    kind = np.float32 if values.dtype == np.uint8 else np.float64
    result: NDArray[Any] = values.astype(kind, order="C")
    result /= pixel_max
    result -= mean
    result /= std
    with np.errstate(over="ignore"):  # Dataset refuses infinite inputs
        return result.astype(np.float32, copy=False)
