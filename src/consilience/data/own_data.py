"""Data that a program has at hand: arrays, torch data sets, or a list with one of them for each learner."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.arrays import GivenArrays, raw_from_arrays, read_given_inputs
from consilience.data.dataset import Dataset
from consilience.data.field_arrays import as_given
from consilience.data.readers.torch_dataset import read_samples
from consilience.data.readers.torch_samples import Samples, refuse_loader
from consilience.data.scaling import Scaling, ScalingChoice
from consilience.data.targets import KindChoice
from consilience.data.to_numpy import to_numpy
from consilience.errors import ConfigurationError, DataError
from consilience.input_fields import InputFields
from consilience.kinds.regression import in_users_unit

DataSource = Dataset | str | Path | tuple[Any, ...] | list[Any] | Samples
"""A name or path; a `Dataset`; arrays (inputs, labels) or (inputs, labels, test inputs, test labels); a torch data set,
or two, (training, test); or a list with one of these for each learner."""

ONE_PER_LEARNER = "one data set for each learner"
"""The source of a data set that was given as a list."""

Quarters = tuple[Any, Any, Any, Any]  # inputs, labels, test inputs, test labels


def to_dataset(data: DataSource | None) -> Dataset | str | None:
    """The data set of these data; a name or path stays one."""
    if data is None or isinstance(data, Dataset | str):
        return data
    if isinstance(data, Path):
        return os.fspath(data)
    if isinstance(data, list):
        return _one_per_learner(data)
    if isinstance(data, tuple) and len(data) == 2 and not any(map(_is_given, data)):
        return Dataset.from_torch(*data)
    if isinstance(data, tuple):
        return Dataset.from_arrays("arrays", *_quarters("data", data))
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not _is_array(data):
        return Dataset.from_torch(data)
    refuse_loader("data", data)
    raise ConfigurationError(
        f"data is of type {type(data).__name__}; give a name, a path, a Dataset, arrays (inputs, labels), a torch "
        f"data set, or a list with one of them for each learner"
    )


def _is_array(thing: Any) -> bool:
    return hasattr(thing, "shape") or isinstance(thing, list)


def _is_given(thing: Any) -> bool:
    """Whether these are inputs or labels: an array, or several as a dictionary or a tuple."""
    return _is_array(thing) or isinstance(thing, Mapping) or (isinstance(thing, tuple) and all(map(_is_array, thing)))


def _quarters(what: str, data: Any) -> Quarters:
    """Inputs and labels for training and tests; None where there are no tests."""
    if isinstance(data, Dataset):
        halves = (data.scaling.undo(half) * data.scaling.pixel_max for half in (data.inputs, data.test_inputs))
        inputs, tests = (as_given(half, data.fields) for half in halves)
        targets, test_targets = (in_users_unit(data.target, half) for half in (data.targets, data.test_targets))
        return inputs, targets, tests, test_targets
    if isinstance(data, tuple) and len(data) in (2, 4) and all(map(_is_given, data)):
        return (*data, None, None) if len(data) == 2 else data
    if isinstance(data, tuple) and len(data) == 2 and not any(map(_is_given, data)):
        return *read_samples(f"{what}, training", data[0]), *read_samples(f"{what}, test", data[1])
    if not isinstance(data, tuple | str | Path) and not _is_array(data):
        return *read_samples(what, data), None, None
    if isinstance(data, str | Path):
        raise DataError(f"{what} is the name or path {os.fspath(data)!r}; load it first: load({os.fspath(data)!r})")
    raise DataError(
        f"{what} must be arrays (inputs, labels) or (inputs, labels, test inputs, test labels), a Dataset or a torch "
        f"data set, got {type(data).__name__}{f' of length {len(data)}' if isinstance(data, tuple) else ''}"
    )


def _one_per_learner(items: Sequence[Any]) -> Dataset:
    """All learners' data as one data set, scaled once; each learner owns its samples."""
    if not items:
        raise DataError("data is an empty list; give one data set for each learner")
    quarters = [_quarters(f"the data of learner {who}", item) for who, item in enumerate(items)]
    tested = [each[2] is not None for each in quarters]
    if any(tested) and not all(tested):
        without = tested.index(False)
        raise DataError(
            f"learner {without} has no test samples, and others have; give them to all learners, or to none"
        )
    inputs, fields = _inputs_of_all([each[0] for each in quarters], "training")
    labels = [to_numpy(f"learner {who}: training labels", each[1]) for who, each in enumerate(quarters)]
    for who, (mine, targets) in enumerate(zip(inputs, labels, strict=True)):
        _check_alike(who, mine, inputs[0], targets)
    test_inputs, test_labels = None, None
    if all(tested):
        tests, _ = _inputs_of_all([each[2] for each in quarters], "test")
        test_inputs = as_given(np.concatenate(tests), fields)
        test_labels = np.concatenate([to_numpy(f"learner {w}: test labels", q[3]) for w, q in enumerate(quarters)])
    owners = np.repeat(np.arange(len(items)), [len(mine) for mine in inputs])
    given = GivenArrays(
        as_given(np.concatenate(inputs), fields),
        np.concatenate(labels),
        test_inputs,
        test_labels,
        _of_samples(items, inputs, "shareable", True),
        owners,
        _of_samples(items, inputs, "sample_epsilons", np.inf),
    )
    known = [item for item in items if isinstance(item, Dataset)]
    _check_same_task(items)
    kinds: set[KindChoice] = {item.kind for item in known}
    counts = [item.classes for item in known if item.kind == "single-label"]
    raw = raw_from_arrays(
        "data",
        given,
        kind=kinds.pop() if kinds else "auto",
        classes=max(counts, default=None),
        labels=known[0].labels if known else (),
        source=ONE_PER_LEARNER,
    )
    scales = {item.scaling.pixel_max if isinstance(item, Dataset) else raw.pixel_max for item in items}
    if len(scales) > 1:
        raise DataError(f"learners' inputs are divided by {', '.join(map(str, sorted(scales)))}; give all one type")
    raw = raw._replace(pixel_max=scales.pop(), owner_names=tuple(f"learner {who}" for who in range(len(items))))
    if not known:
        return Dataset.from_raw("learners", raw)
    raw = raw._replace(columns=known[0].columns, alphabet=known[0].alphabet)
    scaling = known[0].scaling
    by_field = {each.name: _choice(each.scaling) for each in scaling.fields}
    return Dataset.from_raw("learners", raw, by_field or scaling.kind)


def _choice(scaling: Scaling) -> ScalingChoice:
    """What to ask for in order to have the scaling of a field; a field has no fields."""
    return "none" if scaling.kind == "fields" else scaling.kind


def _inputs_of_all(given: Sequence[Any], half: str) -> tuple[list[NDArray[Any]], InputFields | None]:
    """The checked inputs of each learner, those of several fields as rows, and the fields, which all have alike."""
    read = [read_given_inputs(f"learner {who}: {half} inputs", each) for who, each in enumerate(given)]
    for who, (_, fields) in enumerate(read):
        if fields != read[0][1]:
            shown = ["one array" if each is None else each.describe() for each in (fields, read[0][1])]
            raise DataError(f"learner {who} has inputs of {shown[0]}, and learner 0 of {shown[1]}; give all the same")
    return [rows for rows, _ in read], read[0][1]


def _of_samples(
    items: Sequence[Any], inputs: Sequence[NDArray[Any]], name: str, default: bool | float
) -> NDArray[Any] | None:
    """What learners' data sets say of each training sample, (n,), with a default where one says nothing.

    None if no data set says anything.
    """
    given = [getattr(item, name) if isinstance(item, Dataset) else None for item in items]
    if all(each is None for each in given):
        return None
    pairs = zip(given, inputs, strict=True)
    return np.concatenate([np.full(len(mine), default) if each is None else each for each, mine in pairs])


def _check_same_task(items: Sequence[Any]) -> None:
    """Refuse data sets with other names of classes or columns, another alphabet, or another kind of scaling."""
    known = {who: item for who, item in enumerate(items) if isinstance(item, Dataset)}
    for what in ("kind", "labels", "columns", "alphabet"):
        values = {who: getattr(item, what) for who, item in known.items()}
        other = next((who for who, value in values.items() if value != values[min(values)]), None)
        if other is not None:
            raise DataError(
                f"learner {other} has the {what} {values[other]}, and learner {min(values)} {values[min(values)]}; "
                f"name and order them in the same way"
            )
    kinds = sorted({item.scaling.kind for item in known.values()})
    if len(kinds) > 1:
        raise DataError(f"learners' inputs are scaled by {' and by '.join(kinds)}; give all the same scaling")


def _check_alike(who: int, mine: NDArray[Any], first: NDArray[Any], targets: NDArray[Any]) -> None:
    """Refuse a learner whose inputs cannot be stacked with those of learner 0."""
    if mine.shape[1:] != first.shape[1:] or (mine.dtype == np.uint8) != (first.dtype == np.uint8):
        raise DataError(
            f"learner {who} has inputs of {mine.dtype} of the shape {mine.shape[1:]}, and learner 0 of {first.dtype} "
            f"of the shape {first.shape[1:]}; give all one shape and type"
        )
    if targets.shape[:1] != mine.shape[:1] or targets.ndim > 2:
        raise DataError(
            f"learner {who} has {len(mine)} inputs and labels of the shape {targets.shape}; give one whole number for "
            f"each input"
        )
