"""What a data set is: training and test arrays that agree with each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.errors import DataError


class Pixels(NamedTuple):
    """A grey-image data set as its files hold it, before anything is left out or scaled."""

    inputs: NDArray[np.uint8]  # (n, height, width)
    targets: NDArray[np.int64]  # (n,)
    test_inputs: NDArray[np.uint8]  # (m, height, width)
    test_targets: NDArray[np.int64]  # (m,)
    brightest: int  # the pixel value that stands for 1.0
    classes: int


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class Dataset:
    """Inputs ready to train on: (pixel in [0, 1] - mean) / std, the same mean and std for training and test.

    Contradictory arrays are refused with a DataError when the data set is made.
    """

    name: str
    inputs: NDArray[np.float32]  # (n, channels, height, width)
    targets: NDArray[np.int64]  # (n,)
    test_inputs: NDArray[np.float32]  # (m, channels, height, width)
    test_targets: NDArray[np.int64]  # (m,)
    classes: int
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise DataError(f"data set {self.name!r}: classes must be at least 1, got {self.classes}")
        if not math.isfinite(self.mean) or not 0 < self.std < math.inf:
            raise DataError(
                f"data set {self.name!r}: mean must be finite and std above 0, got mean {self.mean}, std {self.std}"
            )
        _check_half(f"data set {self.name!r}, training", self.inputs, self.targets, self.classes)
        _check_half(f"data set {self.name!r}, test", self.test_inputs, self.test_targets, self.classes)
        if self.inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise DataError(
                f"data set {self.name!r}: training inputs have the shape {self.shape}, "
                f"test inputs {self.test_inputs.shape[1:]}; one model cannot take both"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one input: (channels, height, width)."""
        _, channels, height, width = self.inputs.shape
        return channels, height, width


def _check_half(what: str, inputs: NDArray[np.float32], targets: NDArray[np.int64], classes: int) -> None:
    """Refuse inputs and targets that no learner could be trained or tested on."""
    if inputs.ndim != 4 or inputs.size == 0 or inputs.dtype != np.float32:
        raise DataError(
            f"{what} inputs must be float32 of the shape (n, channels, height, width) and not empty, "
            f"got {inputs.dtype} of the shape {inputs.shape}; reshape and convert them first"
        )
    if targets.shape != inputs.shape[:1] or targets.dtype != np.int64:
        raise DataError(
            f"{what} targets must be int64 of the shape ({len(inputs)},), one for each input, "
            f"got {targets.dtype} of the shape {targets.shape}"
        )
    if targets.min() < 0 or targets.max() >= classes:
        raise DataError(
            f"{what} targets must lie in 0..{classes - 1}, got {targets.min()}..{targets.max()}; "
            f"renumber them or raise classes"
        )
    if not np.isfinite(inputs).all():
        raise DataError(f"{what} inputs must be finite, got {np.sum(~np.isfinite(inputs))} values that are not")
