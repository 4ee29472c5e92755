"""Arrays of the user in one form: channels first, targets of one kind, some samples held out for tests.

Images may come with channels last (n, height, width, channels), first (n, channels, height, width) or, when gray,
without any (n, height, width); two axes are a table (n, features). Four axes mean channels last where the last is 1, 3
or 4 long and the second is not; where both could be channels, the second is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.data.field_arrays import IMAGE_AXES, check_same_fields, field_names, has_fields, pack_fields
from consilience.data.owners import number_owners, spread_over_owners
from consilience.data.raw_dataset import RawDataset
from consilience.data.targets import (
    KindChoice,
    infer_kind,
    read_targets,
    read_test_targets,
    refuse_constant_labels,
    strata_of,
)
from consilience.data.to_numpy import to_numpy
from consilience.errors import ConfigurationError, DataError
from consilience.input_fields import InputFields
from consilience.kinds import kind_named
from consilience.task import TaskKind
from consilience.validation import check_integer

CHANNELS = (1, 3, 4)
SEED = 20
TEST_SHARE = 0.2


GivenInputs = ArrayLike | Mapping[str, ArrayLike] | tuple[ArrayLike, ...]
"""One array, or several: a dictionary or a tuple, as the model's forward takes them."""


class GivenArrays(NamedTuple):
    """Arrays as the user gives them, not checked yet."""

    inputs: GivenInputs
    targets: ArrayLike
    test_inputs: GivenInputs | None = None
    test_targets: ArrayLike | None = None
    shareable: ArrayLike | None = None
    owners: ArrayLike | None = None
    sample_epsilons: ArrayLike | None = None


def raw_from_arrays(
    what: str,
    given: GivenArrays,
    *,
    test_share: float = TEST_SHARE,
    classes: int | None = None,
    labels: tuple[str, ...] = (),
    source: str = "",
    kind: KindChoice = "auto",
) -> RawDataset:
    """The checked data set of these arrays, not scaled yet; `what` names it in error messages."""
    check_test_share(test_share)
    if classes is not None:
        check_integer("classes", classes, 2)
    train, fields = read_given_inputs(f"{what}: training inputs", given.inputs)
    known = classes if classes is not None else len(labels) or None
    named = f"{what}: training labels"
    known_kind: KindChoice = "single-label" if given.targets is None and kind == "auto" else kind
    found = infer_kind(named, to_numpy(named, given.targets), len(train), known_kind)
    y = read_targets(named, given.targets, len(train), found, known)
    if kind == "auto" and found == "multi-label":
        refuse_constant_labels(named, y, labels)
    shareable = _shareable_flags(f"{what}: shareable", given.shareable, len(train))
    owners, owner_names = _owners(f"{what}: owners", given.owners, len(train))
    epsilons = _sample_epsilons(f"{what}: sample_epsilons", given.sample_epsilons, len(train))
    if given.test_inputs is None and given.test_targets is None:
        held = held_out_samples(what, strata_of(named, found, y), test_share, owners, kind_named(found).several)  # (n,)
        held = _without_untrained(held, y) if found == "multi-label" else held
        test, test_y, train, y = train[held], y[held], train[~held], y[~held]
        shareable = None if shareable is None else shareable[~held]
        owners = None if owners is None else owners[~held]
        epsilons = None if epsilons is None else epsilons[~held]
    elif given.test_inputs is None or given.test_targets is None:
        missing = "test inputs" if given.test_inputs is None else "test labels"
        raise DataError(f"{what}: {missing} are missing; give both test inputs and test labels, or neither")
    else:
        test, test_fields = read_given_inputs(f"{what}: test inputs", given.test_inputs)
        check_same_fields(what, fields, test_fields)
        test_y = read_test_targets(f"{what}: test labels", given.test_targets, len(test), found, y)
        if (train.dtype == np.uint8) != (test.dtype == np.uint8):
            raise DataError(
                f"{what}: training inputs are {train.dtype}, test inputs {test.dtype}; bytes are divided by 255 "
                f"and other numbers are not; convert both to one type"
            )
    count = _outputs(found, y, known)
    pixel_max = 255 if train.dtype == np.uint8 else 1
    halves = (train, y, test, test_y)
    raw = RawDataset(*halves, count, pixel_max, labels, shareable, source, owners, owner_names)
    return raw._replace(sample_epsilons=epsilons, kind=found, fields=fields)


def _outputs(kind: TaskKind, targets: NDArray[Any], known: int | None) -> int:
    """How many outputs a model has: one for each class or label, or one number."""
    if kind == "regression":
        return 1
    if kind == "multi-label":
        return int(targets.shape[1])
    return known if known is not None else int(targets.max()) + 1


def check_test_share(test_share: float) -> None:
    """Refuse a share that leaves no samples for training or none for tests."""
    if isinstance(test_share, bool) or not isinstance(test_share, int | float) or not 0 < test_share < 1:
        raise ConfigurationError(
            f"test_share is {test_share!r}; it must lie between 0 and 1, both excluded: 0.2 keeps every fifth sample"
        )


def held_out_samples(
    what: str,
    targets: NDArray[np.int64],
    test_share: float,
    owners: NDArray[np.int64] | None = None,
    groups: str = "classes",
) -> NDArray[np.bool_]:
    """Which samples are held out for tests, (n,): a share of each class, the same ones every time.

    Every class keeps at least one training sample, so what is tested can be learned. Where samples have owners, each
    owner's share of a class is held out, and an owner keeps two samples or more. groups: what classes are called in an
    error.
    """
    held = np.zeros(len(targets), dtype=np.bool_)
    # RandomState, since its stream is frozen for good; that of a newer Generator may change with NumPy's version.
    order = np.random.RandomState(SEED).permutation(len(targets))  # (n,)
    if owners is not None:
        held = spread_over_owners(targets, owners, order, test_share)
    for label in np.unique(targets) if owners is None else ():
        mine = order[targets[order] == label]
        held[mine[: min(len(mine) - 1, int(test_share * len(mine) + 0.5))]] = True
    if not held.any():
        different = len(np.unique(targets))
        raise DataError(
            f"{what}: test_share {test_share} of {len(targets)} samples{f' in {different} {groups}' * (different > 1)} "
            f"leaves none for tests; raise test_share, add samples, or give test samples"
        )
    return held


def _without_untrained(held: NDArray[np.bool_], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Held-out samples, (n,), without one of each label that all other samples lack, so that it can be learned."""
    kept = held.copy()
    for label in labels.T == 1:  # (n,)
        if label.any() and not (label & ~kept).any():
            kept[np.argmax(label)] = False
    return kept


def read_given_inputs(what: str, thing: Any) -> tuple[NDArray[Any], InputFields | None]:
    """Checked inputs (n, *shape): one array, or the fields of several packed into rows."""
    if not has_fields(thing):
        return check_inputs(what, thing), None
    names = field_names(what, thing)
    values = thing.values() if isinstance(thing, Mapping) else thing
    arrays = [_check_field(f"{what}: field {name!r}", each) for name, each in zip(names, values, strict=True)]
    return pack_fields(what, thing, arrays)


def _check_field(what: str, thing: Any) -> NDArray[Any]:
    """One field, (n, *shape), of any shape; images have their channels first."""
    values = _finite_numbers(what, thing)
    if values.ndim < 1 or values.size == 0:
        raise DataError(
            f"{what} must have the shape (n, ...), one entry for each sample, and not be empty, got the shape "
            f"{values.shape}; a tuple or a dictionary holds the arrays of several fields, and a list the samples of one"
        )
    return channels_first(values) if values.ndim == IMAGE_AXES else values


def check_inputs(what: str, thing: Any) -> NDArray[Any]:
    """Inputs (n, *shape) with channels first; refused where empty or not finite real numbers."""
    values = _finite_numbers(what, thing)
    if values.ndim < 2 or values.size == 0:
        raise DataError(
            f"{what} must have the shape (n, features), (n, height, width) or (n, channels, height, width) "
            f"and not be empty, got the shape {values.shape}; reshape them first"
        )
    return channels_first(values)


def _finite_numbers(what: str, thing: Any) -> NDArray[Any]:
    """An array of real numbers; refused where values are others, or not finite."""
    refuse_ragged(what, thing)
    values = to_numpy(what, thing)
    if values.dtype.kind not in "biuf":
        advice = "number its tokens first" if values.dtype.kind in "USO" else "convert them first"
        raise DataError(f"{what} must be real numbers, got {_kind(values.dtype)}; {advice}")
    if values.dtype.kind == "f" and values.ndim and not (fine := np.isfinite(values)).all():
        where = int(np.argmin(fine.reshape(len(values), -1).all(axis=1)))
        raise DataError(
            f"{what} must be finite, but {np.sum(~fine)} values are not, the first of them in sample {where}; "
            f"remove such samples or fill in the values"
        )
    return values


def _kind(dtype: np.dtype[Any]) -> str:
    return "text" if dtype.kind in "US" else "Python objects" if dtype.kind == "O" else str(dtype)


def refuse_ragged(what: str, thing: Any) -> None:
    """Refuse a list of sequences of different lengths, and say how to pad them."""
    listed = isinstance(thing, list) or getattr(getattr(thing, "dtype", None), "kind", "") == "O"
    if (
        not listed
        or not len(thing)
        or not all(hasattr(each, "__len__") and not isinstance(each, str) for each in thing)
    ):
        return
    lengths = [len(each) for each in thing]
    if min(lengths) < max(lengths):
        raise DataError(
            f"{what} are sequences of different lengths, {min(lengths)} to {max(lengths)}; pad them to one length: "
            f"pad_sequences(sequences) does it, and gives a mask too"
        )


def channels_first(values: NDArray[Any]) -> NDArray[Any]:
    """Images with their channels on the second axis, by the rule at the top of this file; a table as it is."""
    if values.ndim == 3:
        return values[:, np.newaxis]  # (n, 1, height, width)
    if values.ndim == 4 and values.shape[-1] in CHANNELS and values.shape[1] not in CHANNELS:
        return np.ascontiguousarray(np.moveaxis(values, -1, 1))  # (n, channels, height, width)
    return values


def _owners(what: str, thing: Any, count: int) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    return (None, ()) if thing is None else number_owners(what, to_numpy(what, thing), count)


def _shareable_flags(what: str, thing: Any, count: int) -> NDArray[np.bool_] | None:
    if thing is None:
        return None
    flags = to_numpy(what, thing)
    if flags.shape != (count,) or flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all():
        raise DataError(
            f"{what} must be {count} values of 0 (never share this sample) or 1, one for each training input, "
            f"got {flags.dtype} of the shape {flags.shape}"
        )
    return flags.astype(np.bool_)


def _sample_epsilons(what: str, thing: Any, count: int) -> NDArray[np.float64] | None:
    if thing is None:
        return None
    values = to_numpy(what, thing)
    if values.shape != (count,) or values.dtype.kind not in "iuf":
        raise DataError(
            f"{what} must be {count} numbers, the epsilon of each training input, or inf where a sample has none of "
            f"its own, got {values.dtype} of the shape {values.shape}"
        )
    if len(wrong := np.flatnonzero(~(values >= 0))):
        raise DataError(
            f"{what}: sample {wrong[0]} has {values[wrong[0]]}; an epsilon is 0 (never drawn) or more, and inf where a "
            f"sample has none of its own"
        )
    return values.astype(np.float64)
