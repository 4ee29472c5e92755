"""Map-style data sets of torch read into arrays, sample by sample. Nothing here needs torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.readers.torch_samples import SampleForm, Samples
from consilience.data.targets import SEGMENTATION
from consilience.data.to_numpy import to_numpy
from consilience.errors import DataError

_LONGEST = 60  # characters of a label that an error shows


def read_samples(what: str, samples: Samples, label_key: str | None = None) -> tuple[Any, NDArray[Any]]:
    """All inputs (n, *shape), of several fields as a dictionary or a tuple, and labels (n,), in order.

    label_key: of samples that are dictionaries, the key of the label. A sample of another shape or type is refused.
    """
    form = SampleForm.of_first(what, samples, label_key)
    kinds = zip(form.shapes, form.dtypes, strict=True)
    inputs = [np.empty((len(samples), *shape), dtype=dtype) for shape, dtype in kinds]  # (n, *shape) each
    labels: list[NDArray[Any]] = []
    for index in range(len(samples)):
        arrays, label = form.read(what, samples, index)
        for into, values in zip(inputs, arrays, strict=True):
            into[index] = values
        labels.append(read_label(what, index, label, labels[0] if labels else None))
    return form.together(inputs), np.array(labels)


def read_label(what: str, index: int, label: Any, first: NDArray[Any] | None) -> NDArray[Any]:
    """The label of a sample as a number, or as several; first: that of sample 0, which has the same shape."""
    number = to_numpy(f"{what}: label {index}", label)
    if number.ndim > 1 or number.dtype.kind not in "biuf" or not np.isfinite(number).all():
        shown = f"{label!r}" if number.size == 1 else f"{_shortened(label)} of the shape {number.shape}"
        raise DataError(
            f"{what}: the label of sample {index} must be a whole number, 0 or 1 for each of several labels, or a "
            f"number to predict, got {shown}; {SEGMENTATION if number.ndim > 1 else 'number the classes'}"
        )
    if first is not None and number.shape != first.shape:
        raise DataError(
            f"{what}: the label of sample {index} has the shape {number.shape}, and that of sample 0 {first.shape}; "
            f"give all one number, or all 0 or 1 for each of the same labels"
        )
    return number


def _shortened(label: Any) -> str:
    text = " ".join(repr(label).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
