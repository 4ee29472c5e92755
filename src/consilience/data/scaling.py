"""A data set as its files hold it, and how it is cut and scaled before anybody learns from it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.errors import ConfigurationError, DataError

_AT_ONCE = 1 << 22  # bytes counted in one go: enough to be quick, little enough to stay out of the way


class RawDataset(NamedTuple):
    """A data set before anything is left out or scaled: any real numbers, images with their channels first."""

    inputs: NDArray[Any]  # (n, *shape)
    targets: NDArray[np.int64]  # (n,)
    test_inputs: NDArray[Any]  # (m, *shape)
    test_targets: NDArray[np.int64]  # (m,)
    classes: int
    pixel_max: int = 1  # the value that stands for 1.0: 255 for images of bytes
    labels: tuple[str, ...] = ()  # what classes are called
    share: NDArray[np.bool_] | None = None  # (n,) False where a sample is never to be shared
    source: str = ""
    owners: NDArray[np.int64] | None = None  # (n,) whose each training sample is, 0..k-1; None where nobody's
    owner_names: tuple[str, ...] = ()  # what owners are called
    alphabet: str = ""  # where inputs are codes of characters: all of them, by their codes

    def first(self, what: str, train: int | None, test: int | None) -> RawDataset:
        """The first `train` training and `test` test samples, None meaning all; so many of all, where they have owners.

        Samples with owners lie owner by owner, so the first ones would be those of the first owners alone: every so
        many is taken instead.
        """
        kept = some(_count(what, "training", train, len(self.inputs)), len(self.inputs), self.owners is not None)
        tested = some(_count(what, "test", test, len(self.test_inputs)), len(self.test_inputs), self.owners is not None)
        return self._replace(
            inputs=self.inputs[kept],
            targets=self.targets[kept],
            test_inputs=self.test_inputs[tested],
            test_targets=self.test_targets[tested],
            share=None if self.share is None else self.share[kept],
            owners=None if self.owners is None else self.owners[kept],
        )


def some(asked: int | None, available: int, spread: bool) -> slice | NDArray[np.int64]:
    """Which samples are kept where so many are asked for: the first ones, or spread evenly over all; None means all.

    >>> some(3, 10, spread=True)
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
            f"{what} has {available} {half} samples, {asked} were asked for; "
            f"ask for 1 to {available}, or leave the number out for all of them"
        )
    return asked


def measure(what: str, raw: RawDataset) -> tuple[float, float]:
    """Mean and standard deviation of the training inputs over all their values, the brightest counting as 1.0."""
    mean, std = _moments(raw.inputs)
    # Equal floats may deviate from their rounded mean, so equality is asked for by itself.
    if std == 0 or raw.inputs.min() == raw.inputs.max():
        raise DataError(
            f"{what}: all values of its first {len(raw.inputs)} training samples are the same, "
            f"so they cannot be scaled; take more samples or look at the source again"
        )
    if not np.isfinite(std):
        raise DataError(f"{what}: the training inputs are too large to be scaled; divide them by a constant first")
    return mean / raw.pixel_max, std / raw.pixel_max


def _moments(values: NDArray[Any]) -> tuple[float, float]:
    if values.dtype != np.uint8:
        with np.errstate(over="ignore", invalid="ignore"):  # told by the caller, in words
            return float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    # Bytes are counted: no copy eight times as large, and the same bits in whatever order the values lie.
    flat, counts = values.reshape(-1), np.zeros(256, dtype=np.int64)
    for start in range(0, len(flat), _AT_ONCE):
        counts += np.bincount(flat[start : start + _AT_ONCE], minlength=256)
    levels, shares = np.arange(256), counts / len(flat)  # (256,), (256,)
    mean = float(counts @ levels) / len(flat)
    return mean, float(np.sqrt(shares @ (levels - mean) ** 2))


def scaled(values: NDArray[Any], pixel_max: int, mean: float, std: float) -> NDArray[np.float32]:
    """(value / brightest - mean) / std, of the same shape."""
    # Bytes fit into float32; other numbers may be large beside their spread, so they are moved before they are rounded.
    kind = np.float32 if values.dtype == np.uint8 else np.float64
    result: NDArray[Any] = values.astype(kind, order="C")
    result /= pixel_max
    result -= mean
    result /= std
    with np.errstate(over="ignore"):  # infinities are refused, by name, when the data set is made
        return result.astype(np.float32, copy=False)
