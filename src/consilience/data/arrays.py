"""Arrays of any owner, brought into one form: channels first, labels 0, 1, 2, ..., a part kept for tests.

Images may come with channels last (n, height, width, channels), first (n, channels, height, width) or, when gray,
without any (n, height, width); two axes are a table (n, features). Four axes mean channels last where the last is 1, 3
or 4 long and the second is not; where both could be channels, they are taken to come first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.data.scaling import RawDataset
from consilience.errors import ConfigurationError, DataError
from consilience.validation import check_integer

CHANNELS = (1, 3, 4)
SEED = 20
TEST_SHARE = 0.2


def raw_from_arrays(
    what: str,
    inputs: ArrayLike,
    targets: ArrayLike,
    test_inputs: ArrayLike | None = None,
    test_targets: ArrayLike | None = None,
    *,
    test_share: float = TEST_SHARE,
    classes: int | None = None,
    labels: tuple[str, ...] = (),
    share: ArrayLike | None = None,
    source: str = "",
) -> RawDataset:
    """The data set these arrays make; `what` is what errors call it. Nothing is scaled yet."""
    check_test_share(test_share)
    if classes is not None:
        check_integer("classes", classes, 2)
    train = numbers(f"{what}: training inputs", inputs)
    known = classes if classes is not None else len(labels) or None
    y = _training_targets(f"{what}: training labels", targets, len(train), known)
    may = None if share is None else _marks(f"{what}: share", share, len(train))
    if test_inputs is None and test_targets is None:
        kept = held_out_samples(what, y, test_share)  # (n,)
        test, test_y, train, y = train[kept], y[kept], train[~kept], y[~kept]
        may = None if may is None else may[~kept]
    elif test_inputs is None or test_targets is None:
        lacking = "test inputs" if test_inputs is None else "test labels"
        raise DataError(f"{what}: {lacking} are missing; give both test inputs and test labels, or neither")
    else:
        test = numbers(f"{what}: test inputs", test_inputs)
        test_y = _test_targets(f"{what}: test labels", test_targets, len(test), y)
        if (train.dtype == np.uint8) != (test.dtype == np.uint8):
            raise DataError(
                f"{what}: training inputs are {train.dtype}, test inputs {test.dtype}; bytes are divided by 255 "
                f"and other numbers are not, so bring both to one type"
            )
    found = known if known is not None else int(y.max()) + 1
    pixel_max = 255 if train.dtype == np.uint8 else 1
    return RawDataset(train, y, test, test_y, found, pixel_max, labels, may, source)


def check_test_share(test_share: float) -> None:
    """Refuse a share that would leave nothing to train or nothing to test on."""
    if isinstance(test_share, bool) or not isinstance(test_share, int | float) or not 0 < test_share < 1:
        raise ConfigurationError(
            f"test_share is {test_share!r}; it must lie between 0 and 1, both excluded: 0.2 keeps every fifth sample"
        )


def held_out_samples(what: str, targets: NDArray[np.int64], test_share: float) -> NDArray[np.bool_]:
    """Which samples are kept for tests, (n,): that share of each class, the same ones every time.

    A class never gives its last sample away, so what is tested can always be learned.
    """
    kept = np.zeros(len(targets), dtype=np.bool_)
    # RandomState, since its stream is frozen for good; that of a newer Generator may change with NumPy's version.
    order = np.random.RandomState(SEED).permutation(len(targets))  # (n,)
    for label in np.unique(targets):
        mine = order[targets[order] == label]
        kept[mine[: min(len(mine) - 1, int(test_share * len(mine) + 0.5))]] = True
    if not kept.any():
        raise DataError(
            f"{what}: test_share {test_share} of {len(targets)} samples in {len(np.unique(targets))} classes "
            f"leaves none for tests; raise test_share, add samples, or bring test samples of your own"
        )
    return kept


def to_numpy(what: str, thing: Any) -> NDArray[Any]:
    """Any array, tensor or image as a NumPy array, without importing what it comes from."""
    for step in ("detach", "cpu"):  # what a tensor needs before NumPy may see it
        thing = getattr(thing, step)() if hasattr(thing, step) else thing
    try:
        return np.asarray(thing)
    except (TypeError, ValueError) as error:  # lists of unequal length; bfloat16
        raise DataError(f"{what} cannot be read as an array ({error}); bring them to one shape and type") from error


def numbers(what: str, thing: Any) -> NDArray[Any]:
    """Inputs (n, *shape) with channels first, refused where there are none or they are no finite numbers."""
    values = to_numpy(what, thing)
    if values.dtype.kind not in "biuf":
        raise DataError(f"{what} must be real numbers, got {values.dtype}; convert them first")
    if values.ndim < 2 or values.size == 0:
        raise DataError(
            f"{what} must have the shape (n, features), (n, height, width) or (n, channels, height, width) "
            f"and not be empty, got the shape {values.shape}; reshape them first"
        )
    if values.dtype.kind == "f" and not (fine := np.isfinite(values)).all():
        where = int(np.argmin(fine.reshape(len(values), -1).all(axis=1)))
        raise DataError(
            f"{what} must be finite, but {np.sum(~fine)} values are not, the first of them in sample {where}; "
            f"leave such samples out or fill the gaps"
        )
    return channels_first(values)


def channels_first(values: NDArray[Any]) -> NDArray[Any]:
    """Images with their channels on the second axis, by the rule at the top of this file; a table as it is."""
    if values.ndim == 3:
        return values[:, np.newaxis]  # (n, 1, height, width)
    if values.ndim == 4 and values.shape[-1] in CHANNELS and values.shape[1] not in CHANNELS:
        return np.ascontiguousarray(np.moveaxis(values, -1, 1))  # (n, channels, height, width)
    return values


def check_labels(what: str, thing: Any, count: int) -> NDArray[Any]:
    """Labels (count,) that are whole and not negative, of whatever type they came in."""
    if thing is None:
        raise DataError(f"{what} are missing; give one whole number from 0 for each input")
    labels = to_numpy(what, thing)
    if labels.dtype.kind not in "biuf":
        raise DataError(f"{what} must be whole numbers from 0, got {labels.dtype}; number the classes, name them apart")
    if labels.shape != (count,):
        raise DataError(
            f"{what} must have the shape ({count},), one for each input, got {labels.shape}; "
            f"flatten them, or take the argmax of one-hot rows"
        )
    bad = labels < 0
    if labels.dtype.kind == "f":
        bad |= ~np.isfinite(labels) | (labels != np.floor(labels))
    if bad.any():
        where = int(np.argmax(bad))
        raise DataError(
            f"{what} must be whole numbers from 0, but label {where} is {labels[where]}; "
            f"renumber them, and leave out samples without a label"
        )
    return labels


def _training_targets(what: str, thing: Any, count: int, classes: int | None) -> NDArray[np.int64]:
    labels = check_labels(what, thing, count)
    present = np.unique(labels)
    if len(present) < 2:
        raise DataError(f"{what} are all {present[0]}: with one class there is nothing to tell apart; add another")
    if classes is None and present[-1] != len(present) - 1:
        gap = int(np.argmax(present != np.arange(len(present))))
        raise DataError(
            f"{what} must be 0, 1, 2, ... without gaps, but nothing is labeled {gap} and the highest label is "
            f"{present[-1]}; renumber them, or say how many classes there are if some have no samples"
        )
    if classes is not None and present[-1] >= classes:
        where = int(np.argmax(labels >= classes))
        raise DataError(
            f"{what} must lie in 0..{classes - 1} for {classes} classes, but label {where} is {labels[where]}; "
            f"renumber them or name more classes"
        )
    return labels.astype(np.int64)


def _test_targets(what: str, thing: Any, count: int, known: NDArray[np.int64]) -> NDArray[np.int64]:
    labels = check_labels(what, thing, count)
    unseen = ~np.isin(labels, known)
    if unseen.any():
        where = int(np.argmax(unseen))
        raise DataError(
            f"{what}: label {where} is {labels[where]}, which no training sample has, so nobody could learn it; "
            f"add training samples of that class or leave it out of the tests"
        )
    return labels.astype(np.int64)


def _marks(what: str, thing: Any, count: int) -> NDArray[np.bool_]:
    marks = to_numpy(what, thing)
    if marks.shape != (count,) or marks.dtype.kind not in "biuf" or not np.isin(marks, (0, 1)).all():
        raise DataError(
            f"{what} must be {count} values of 0 (never share this sample) or 1, one for each training input, "
            f"got {marks.dtype} of the shape {marks.shape}"
        )
    return marks.astype(np.bool_)
