"""Map-style data sets of torch read into arrays, sample by sample. Nothing here needs torch."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.data.targets import SEGMENTATION
from consilience.data.to_numpy import to_numpy
from consilience.errors import DataError

_LONGEST = 60  # characters of a label that an error shows


class Samples(Protocol):
    """Anything with a length that gives (input, label) pairs by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def read_samples(what: str, samples: Samples) -> tuple[NDArray[Any], NDArray[Any]]:
    """All inputs (n, *shape) and labels (n,) or (n, labels), in order; one of another shape or type is refused."""
    if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
        raise DataError(
            f"{what}: a data set with a length and numbered samples is needed, got {type(samples).__name__}; "
            f"read an iterable one into a list first"
        )
    if len(samples) == 0:
        raise DataError(f"{what}: the data set is empty")
    first, first_label = _pair(what, samples, 0)
    inputs = np.empty((len(samples), *first.shape), dtype=first.dtype)  # (n, *shape)
    labels = []
    for index in range(len(samples)):
        value, label = _pair(what, samples, index)
        if (value.shape, value.dtype) != (first.shape, first.dtype):
            raise DataError(
                f"{what}: sample {index} is {value.dtype} of the shape {value.shape}, but sample 0 is {first.dtype} "
                f"of the shape {first.shape}; give all one shape and type, by a transform for instance"
            )
        if label.shape != first_label.shape:
            raise DataError(
                f"{what}: the label of sample {index} has the shape {label.shape}, and that of sample 0 "
                f"{first_label.shape}; give all one number, or all 0 or 1 for each of the same labels"
            )
        inputs[index] = value
        labels.append(label)
    return inputs, np.array(labels)


def _pair(what: str, samples: Samples, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        sample = samples[index]
    except Exception as error:  # the user's code may raise anything
        raise DataError(f"{what}: sample {index} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise DataError(f"{what}: sample {index} must be a pair (input, label), got {type(sample).__name__}")
    value, label = sample
    number = to_numpy(f"{what}: label {index}", label)
    if number.ndim > 1 or number.dtype.kind not in "biuf" or not np.isfinite(number).all():
        shown = f"{label!r}" if number.size == 1 else f"{_shortened(label)} of the shape {number.shape}"
        raise DataError(
            f"{what}: the label of sample {index} must be a whole number, 0 or 1 for each of several labels, or a "
            f"number to predict, got {shown}; {SEGMENTATION if number.ndim > 1 else 'number the classes'}"
        )
    return _input(f"{what}: sample {index}", value), number


def _shortened(label: Any) -> str:
    text = " ".join(repr(label).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _input(what: str, value: Any) -> NDArray[Any]:
    """One input as an array; a Pillow image with its channels first."""
    if not hasattr(value, "getbands"):
        return to_numpy(what, value)
    pixels = to_numpy(what, value.convert("RGB") if value.mode == "P" else value)  # P: indices into a palette
    return np.moveaxis(pixels, -1, 0) if pixels.ndim == 3 else pixels
