"""Map-style data sets of torch read into arrays, sample by sample. Nothing here needs torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.arrays import MULTI_LABEL, REGRESSION, SEGMENTATION, to_numpy
from consilience.data.readers.torch_samples import SampleForm, Samples
from consilience.errors import DataError

_LONGEST = 60  # characters of a label that an error shows


def read_samples(what: str, samples: Samples, label_key: str | None = None) -> tuple[Any, NDArray[Any]]:
    """All inputs (n, *shape), of several fields as a dictionary or a tuple, and labels (n,), in order.

    label_key: of samples that are dictionaries, the key of the label. A sample of another shape or type is refused.
    """
    form = SampleForm.of_first(what, samples, label_key)
    kinds = zip(form.shapes, form.dtypes, strict=True)
    inputs = [np.empty((len(samples), *shape), dtype=dtype) for shape, dtype in kinds]  # (n, *shape) each
    labels = []
    for index in range(len(samples)):
        arrays, label = form.read(what, samples, index)
        for into, values in zip(inputs, arrays, strict=True):
            into[index] = values
        labels.append(read_label(what, index, label))
    return form.together(inputs), np.array(labels)


def read_label(what: str, index: int, label: Any) -> int:
    """The label of a sample as a number."""
    number = to_numpy(f"{what}: label {index}", label)
    if number.shape != () or number.dtype.kind not in "biuf" or not np.isfinite(number) or number != np.floor(number):
        shown = f"{label!r}" if number.size == 1 else f"{_shortened(label)} of the shape {number.shape}"
        raise DataError(f"{what}: the label of sample {index} must be a whole number, got {shown}; {_advice(number)}")
    return int(number)


def _shortened(label: Any) -> str:
    text = " ".join(repr(label).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _advice(label: NDArray[Any]) -> str:
    """What is supported, by the task that such a label belongs to."""
    if label.ndim:
        return MULTI_LABEL if label.ndim == 1 else SEGMENTATION
    return REGRESSION if label.dtype.kind == "f" and np.isfinite(label) else "number the classes"
