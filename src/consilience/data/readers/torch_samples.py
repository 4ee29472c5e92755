"""One sample of a torch data set: its input, one array or several, and its label. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.data.to_numpy import to_numpy
from consilience.errors import DataError

LABEL_KEYS = ("label", "labels", "target")
"""Under one of these a sample that is a dictionary has its label, unless another key is given."""


class Samples(Protocol):
    """Anything with a length that gives (input, label) pairs by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class SampleForm:
    """What samples of a data set look like: as the first one."""

    label_key: str | None
    """Where a sample is a dictionary: the key of its label."""
    names: tuple[str, ...] | None
    """Names of an input's fields; None where it is one array."""
    named: bool
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]

    @classmethod
    def of_first(cls, what: str, samples: Samples, label_key: str | None = None) -> SampleForm:
        """The form of sample 0; refused where there is none, or it cannot be read by its number."""
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
            refuse_loader(what, samples)
            raise DataError(
                f"{what}: a data set with a length and numbered samples is needed, got {type(samples).__name__}; "
                f"read an iterable one into a list first, or index its samples: write a class with __len__ and "
                f"__getitem__"
            )
        try:
            count = len(samples)
        except TypeError as error:  # torch's IterableDataset has __getitem__, and no length
            raise DataError(
                f"{what}: {type(samples).__name__} has no length ({error}); read an iterable data set into a list "
                f"first, or index its samples: write a class with __len__ and __getitem__"
            ) from error
        if count == 0:
            raise DataError(f"{what}: the data set is empty")
        sample = get_sample(what, samples, 0)
        key = _label_key(what, sample, label_key) if isinstance(sample, Mapping) else None
        inputs, _ = _divided(what, 0, sample, key)
        names = _field_names(inputs)
        arrays = _arrays(f"{what}: sample 0", inputs)
        shapes, dtypes = tuple(each.shape for each in arrays), tuple(each.dtype for each in arrays)
        return cls(key, names, isinstance(inputs, Mapping), shapes, dtypes)

    def read(self, what: str, samples: Samples, index: int) -> tuple[tuple[NDArray[Any], ...], Any]:
        """The arrays of a sample's input, and its label; a sample unlike the first is refused by its number."""
        inputs, label = _divided(what, index, get_sample(what, samples, index), self.label_key)
        if _field_names(inputs) != self.names:
            shown = [", ".join(each) if each else "one array" for each in (_field_names(inputs), self.names)]
            raise DataError(
                f"{what}: sample {index} has {shown[0]}, but sample 0 has {shown[1]}; give all the same fields"
            )
        arrays = _arrays(f"{what}: sample {index}", inputs)
        for place, values in enumerate(arrays):
            if (values.shape, values.dtype) != (self.shapes[place], self.dtypes[place]):
                raise DataError(self._unlike_first(what, index, place, values))
        return arrays, label

    def describe(self) -> str:
        """What an input is, for people to read."""
        names = ["one array"] if self.names is None else self.names
        kinds = zip(names, self.shapes, self.dtypes, strict=True)
        return ", ".join(f"{name} ({dtype} of the shape {shape})" for name, shape, dtype in kinds)

    def together(self, arrays: list[NDArray[Any]]) -> Any:
        """Arrays of all samples as `Dataset.from_arrays` takes them: one, a dictionary or a tuple."""
        if self.names is None:
            return arrays[0]
        return dict(zip(self.names, arrays, strict=True)) if self.named else tuple(arrays)

    def _unlike_first(self, what: str, index: int, place: int, values: NDArray[Any]) -> str:
        shape, dtype = self.shapes[place], self.dtypes[place]
        field = "" if self.names is None else f", field {self.names[place]!r},"
        ragged = values.dtype == dtype and values.shape[1:] == shape[1:] and values.ndim == len(shape)
        how = "pad sequences to one length, as pad_sequences does" if ragged else "by a transform for instance"
        return (
            f"{what}: sample {index}{field} is {values.dtype} of the shape {values.shape}, but sample 0 is "
            f"{dtype} of the shape {shape}; give all one shape and type, {how}"
        )


def get_sample(what: str, samples: Samples, index: int) -> Any:
    """A sample; an error of the user's code names the sample's number."""
    try:
        return samples[index]
    except Exception as error:  # the user's code may raise anything
        raise DataError(f"{what}: sample {index} cannot be read: {type(error).__name__}: {error}") from error


def _label_key(what: str, sample: Mapping[str, Any], wanted: str | None) -> str:
    found = [key for key in (LABEL_KEYS if wanted is None else (wanted,)) if key in sample]
    if len(found) != 1:
        asked = f"no key {wanted!r}" if wanted is not None else f"{' and '.join(found) or 'no label'}"
        raise DataError(
            f"{what}: samples are dictionaries with {asked}, and keys {', '.join(map(str, sample))}; name the label's "
            f'key: label_key="{LABEL_KEYS[0]}"'
        )
    return found[0]


def _divided(what: str, index: int, sample: Any, label_key: str | None) -> tuple[Any, Any]:
    """The input and the label of a sample."""
    if isinstance(sample, Mapping) and label_key in sample:
        return {key: value for key, value in sample.items() if key != label_key}, sample[label_key]
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        many = isinstance(sample, tuple | list) and len(sample) > 2
        advice = "put the inputs together, ((a, b), label)" if many else "or a dictionary with a label"
        shown = f"{type(sample).__name__}{f' of {len(sample)}' if many else ''}"
        raise DataError(f"{what}: sample {index} must be a pair (input, label), got {shown}; {advice}")
    return sample[0], sample[1]


def _field_names(inputs: Any) -> tuple[str, ...] | None:
    if isinstance(inputs, Mapping):
        return tuple(inputs)
    return tuple(str(place) for place in range(len(inputs))) if isinstance(inputs, tuple) else None


def _arrays(what: str, inputs: Any) -> tuple[NDArray[Any], ...]:
    if isinstance(inputs, Mapping):
        return tuple(_array(f"{what}, field {key!r},", value) for key, value in inputs.items())
    if isinstance(inputs, tuple):
        return tuple(_array(f"{what}, field {str(place)!r},", value) for place, value in enumerate(inputs))
    return (_array(what, inputs),)


def _array(what: str, value: Any) -> NDArray[Any]:
    """One input as an array; a Pillow image with its channels first."""
    if not hasattr(value, "getbands"):
        return to_numpy(what, value)
    pixels = to_numpy(what, value.convert("RGB") if value.mode == "P" else value)  # P: indices into a palette
    return np.moveaxis(pixels, -1, 0) if pixels.ndim == 3 else pixels


def refuse_loader(what: str, given: object) -> None:
    """Refuse a DataLoader, which yields batches of samples that are numbered elsewhere."""
    if hasattr(given, "dataset") and hasattr(given, "batch_size"):
        raise DataError(
            f"{what}: a {type(given).__name__} yields batches, and a run makes each learner's batches itself; give the "
            f"samples, loader.dataset, and batch_size as a setting; Dataset.streamed leaves them where they are"
        )
