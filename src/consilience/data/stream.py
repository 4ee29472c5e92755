"""Samples that stay in the user's torch data sets, and are read by their numbers whenever they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.data.arrays import GivenArrays, channels_first, read_given_inputs
from consilience.data.field_arrays import IMAGE_AXES, check_integers
from consilience.data.readers.torch_dataset import read_label
from consilience.data.readers.torch_samples import SampleForm, Samples
from consilience.errors import DataError
from consilience.input_fields import LARGEST_INTEGER, InputFields
from consilience.validation import check_integer


@dataclass(frozen=True, eq=False)  # samples need not be comparable
class SampleStream:
    """The samples of a training set and of a test set, read one by one.

    Sample n is the training set's; those of the test set are numbered on. workers: processes that read ahead.
    """

    train: Samples
    test: Samples | None
    what: str
    """The data set in error messages."""
    form: SampleForm
    shape: tuple[int, ...]
    """Of one input; of several fields the length of their row."""
    fields: InputFields | None
    workers: int

    def read(self, number: int) -> NDArray[np.float32]:
        """One input, (*shape), as a data set in memory would have it, not scaled."""
        inside = number - len(self.train)
        half, samples, index = "training", self.train, number
        if self.test is not None and inside >= 0:
            half, samples, index = "test", self.test, inside
        what = f"{self.what}, {half}"
        arrays, _ = self.form.read(what, samples, index)
        for place, values in enumerate(arrays):
            named = f"{what}: sample {index}"
            if self.fields is not None:
                named += f", field {self.fields.names[place]!r}"
                check_integers(named, values)
            with np.errstate(over="ignore"):
                fine = np.isfinite(values.astype(np.float32))
            if not fine.all():
                raise DataError(
                    f"{named} has {np.sum(~fine)} values that are not finite; leave such samples out, or fill in the "
                    f"values in its transform"
                )
        if self.fields is None:
            return np.asarray(channels_first(arrays[0][None])[0], dtype=np.float32)
        first = [channels_first(each[None]) if each.ndim == IMAGE_AXES - 1 else each[None] for each in arrays]
        row: NDArray[np.float32] = self.fields.pack(first, np.float32)[0]
        return row


def open_stream(what: str, train: Samples, test: Samples | None, workers: int, label_key: str | None) -> SampleStream:
    """The stream of two data sets, whose first samples say what all look like."""
    check_integer("workers", workers, 0)
    form = SampleForm.of_first(f"{what}, training", train, label_key)
    (arrays, _) = form.read(f"{what}, training", train, 0)
    given = form.together([each[None] for each in arrays])
    inputs, fields = read_given_inputs(f"{what}: the input of sample 0 of training", given)
    kinds = {each.kind for each in fields.fields} if fields is not None else set()
    if "bytes" in kinds or (fields is None and inputs.dtype == np.uint8):
        raise DataError(
            f"{what}: samples are images of bytes, and streamed samples are not scaled; turn them into floats in the "
            f"data set's transform, such as torchvision's ToTensor() and Normalize(...)"
        )
    if test is not None:
        other = SampleForm.of_first(f"{what}, test", test, label_key)
        if (other.names, other.shapes, other.dtypes) != (form.names, form.shapes, form.dtypes):
            raise DataError(
                f"{what}: training inputs are {form.describe()}, test inputs {other.describe()}; give both one form"
            )
    samples = len(train) + (0 if test is None else len(test))
    if samples > LARGEST_INTEGER:
        raise DataError(f"{what}: {samples:,} samples are streamed, and at most {LARGEST_INTEGER:,} can be; use fewer")
    return SampleStream(train, test, what, form, inputs.shape[1:], fields, workers)


def numbered_samples(stream: SampleStream, targets: Any) -> GivenArrays:
    """The numbers of samples in the place of inputs, with their targets: as given, or read in one pass.

    targets: of the training set, or a pair, of the training set and of the test set; None: read.
    """
    what, halves = stream.what, [("training", stream.train)]
    halves += [] if stream.test is None else [("test", stream.test)]
    if targets is None:
        given = [_read_targets(stream.form, f"{what}, {half}", samples) for half, samples in halves]
    else:
        given = _given_targets(what, targets, len(halves))
    numbers = np.arange(sum(len(samples) for _, samples in halves))[:, None]  # (samples, 1)
    count = len(stream.train)
    if stream.test is None:
        return GivenArrays(numbers, given[0])
    return GivenArrays(numbers[:count], given[0], numbers[count:], given[1])


def _read_targets(form: SampleForm, what: str, samples: Samples) -> ArrayLike:
    """The targets of all samples, without keeping their inputs."""
    labels: list[NDArray[Any]] = []
    for index in range(len(samples)):
        _, label = form.read(what, samples, index)
        labels.append(read_label(what, index, label, labels[0] if labels else None))
    return np.array(labels)


def _given_targets(what: str, targets: Any, halves: int) -> list[Any]:
    given = list(targets) if isinstance(targets, tuple) else [targets]
    if len(given) != halves:
        wanted = "a pair, (training, test)" if halves > 1 else "those of the training samples alone"
        raise DataError(f"{what}: targets must be {wanted}, got {len(given)} of them; leave them out to read them")
    return given
