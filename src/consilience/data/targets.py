"""Targets as the user gives them, for each kind of task: which kind they are, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from consilience.data.to_numpy import to_numpy
from consilience.errors import DataError
from consilience.kinds.regression import measured_target
from consilience.task import Target, TaskKind
from consilience.validation import check_choice

KindChoice = Literal["auto", "single-label", "multi-label", "regression"]
"""A kind of task, or "auto" for the one that targets look like."""
KIND_CHOICES: tuple[str, ...] = get_args(KindChoice)

SEGMENTATION = (
    "segmentation is not supported, only one class, one set of labels or one number per sample; give one whole number "
    "for each input"
)
SAY_KIND = "say which it is: kind='single-label' for classes, kind='regression' for amounts"
_FEW = 0.1  # of fractions among whole numbers: then they look like mistakes


def infer_kind(what: str, targets: NDArray[Any], count: int, asked: KindChoice) -> TaskKind:
    """The kind of task that these targets are of; ambiguous ones are refused with a message that says what to do."""
    check_choice("kind", asked, KIND_CHOICES)
    if asked != "auto":
        return asked
    if targets.dtype.kind not in "biuf" or len(targets) != count:
        return "single-label"  # refused with what is wrong
    if targets.ndim == 2 and targets.shape[1] > 1 and np.isin(targets, (0, 1)).all():
        if (targets.sum(axis=1) == 1).all():
            raise DataError(
                f"{what} have the shape {targets.shape} with one 1 in each row: one class per sample, as one-hot rows, "
                f"or labels of which each sample happens to have one; take the argmax of one-hot rows, or say "
                f"kind='multi-label'"
            )
        return "multi-label"
    if targets.ndim == 2 and targets.shape[1] > 1 and targets.dtype.kind == "f":
        raise DataError(
            f"{what} have the shape {targets.shape}, {targets.shape[1]} numbers per sample, and one is learned: choose "
            f"one column; several labels are 0 or 1 for each, (n, labels)"
        )
    if targets.dtype.kind == "f" and targets.shape in ((count,), (count, 1)):
        return _of_numbers(what, targets.reshape(-1))
    return "single-label"


def _of_numbers(what: str, targets: NDArray[Any]) -> TaskKind:
    """The kind of floating-point numbers, (n,): amounts where they have fractions, classes where they are few."""
    finite = targets[np.isfinite(targets)]
    fractions = finite != np.floor(finite)
    if fractions.any() and fractions.mean() < _FEW:
        where = int(np.argmax(np.isfinite(targets) & (targets != np.floor(targets))))
        raise DataError(
            f"{what} are whole numbers but for {int(fractions.sum())} of {len(targets)}, the first of them "
            f"{targets[where]:g} of sample {where}; correct it, or {SAY_KIND}"
        )
    if fractions.any():
        return "regression"
    different = len(np.unique(finite))
    if len(finite) == len(targets) and different > max(2, len(targets) // 2):
        raise DataError(
            f"{what} are {different} different whole numbers in {len(targets)} samples, stored as {targets.dtype}: "
            f"numbers of classes, or amounts; {SAY_KIND}"
        )
    return "single-label"


def read_targets(what: str, thing: Any, count: int, kind: TaskKind, classes: int | None) -> NDArray[Any]:
    """Training targets of a kind, checked; classes: how many there are, where that is known."""
    return _TRAINING[kind](what, thing, count, classes)


def read_test_targets(what: str, thing: Any, count: int, kind: TaskKind, known: NDArray[Any]) -> NDArray[Any]:
    """Test targets of the same kind as the training targets, `known`."""
    return _TEST[kind](what, thing, count, known)


def target_of(what: str, kind: TaskKind, targets: NDArray[Any]) -> Target:
    """What is predicted, as these training targets in the user's unit say."""
    return measured_target(what, targets) if kind == "regression" else Target(kind)


def strata_of(what: str, kind: TaskKind, targets: NDArray[Any]) -> NDArray[np.int64]:
    """A number for each sample, (n,): a split for tests takes the same share of samples with the same number.

    Classes; bins of a number; of sets of labels all samples have one number, since most sets are rare.
    """
    if kind == "single-label":
        return targets
    if kind == "multi-label":
        return np.zeros(len(targets), dtype=np.int64)
    target = measured_target(what, targets)
    edges = np.array(target.edges) * target.std + target.mean
    bins: NDArray[np.int64] = (targets[:, None] > edges).sum(1).astype(np.int64)
    return bins


def check_labels(what: str, thing: Any, count: int) -> NDArray[Any]:
    """Labels (count,), whole and not negative, in the type they were given."""
    if thing is None:
        raise DataError(f"{what} are missing; give one whole number from 0 for each input")
    labels = to_numpy(what, thing)
    if labels.ndim >= 3 and len(labels) == count:
        raise DataError(f"{what} have the shape {labels.shape}, a label for each place of an input: {SEGMENTATION}")
    if labels.dtype.kind not in "biuf":
        raise DataError(
            f"{what} must be whole numbers from 0, got {labels.dtype}; number the classes, pass names as labels"
        )
    if labels.shape != (count,):
        raise DataError(
            f"{what} must have the shape ({count},), one for each input, got {labels.shape}; flatten them, or take the "
            f"argmax of one-hot rows; for several labels per sample give 0 or 1 for each, (n, labels)"
        )
    bad = labels < 0
    if labels.dtype.kind == "f":
        bad |= ~np.isfinite(labels) | (labels != np.floor(labels))
    if bad.any():
        where = int(np.argmax(bad))
        raise DataError(
            f"{what} must be whole numbers from 0, but label {where} is {labels[where]}; renumber them, and remove "
            f"samples without a label; for amounts say kind='regression'"
        )
    return labels


def _training_classes(what: str, thing: Any, count: int, classes: int | None) -> NDArray[np.int64]:
    labels = check_labels(what, thing, count)
    present = np.unique(labels)
    if len(present) < 2:
        raise DataError(f"{what} are all {present[0]}: one class cannot be learned; add another")
    if classes is None and present[-1] != len(present) - 1:
        gap = int(np.argmax(present != np.arange(len(present))))
        raise DataError(
            f"{what} must be 0, 1, 2, ... without gaps, but nothing is labeled {gap} and the highest label is "
            f"{present[-1]}; renumber them, or say how many classes there are if some have no samples; for amounts say "
            f"kind='regression'"
        )
    if classes is not None and present[-1] >= classes:
        where = int(np.argmax(labels >= classes))
        raise DataError(
            f"{what} must lie in 0..{classes - 1} for {classes} classes, but label {where} is {labels[where]}; "
            f"renumber them or name more classes"
        )
    return labels.astype(np.int64)


def _test_classes(what: str, thing: Any, count: int, known: NDArray[Any]) -> NDArray[np.int64]:
    labels = check_labels(what, thing, count)
    unseen = ~np.isin(labels, known)
    if unseen.any():
        where = int(np.argmax(unseen))
        raise DataError(
            f"{what}: label {where} is {labels[where]}, which no training sample has, so it cannot be learned; "
            f"add training samples of that class or remove it from the tests"
        )
    return labels.astype(np.int64)


def _label_sets(what: str, thing: Any, count: int) -> NDArray[np.int64]:
    """Sets of labels, (count, labels), 0 or 1 for each."""
    labels = to_numpy(what, thing) if thing is not None else np.zeros(0)
    if labels.ndim != 2 or labels.shape[0] != count or labels.shape[1] < 2 or labels.dtype.kind not in "biuf":
        raise DataError(
            f"{what} of a multi-label task have the shape ({count}, labels), 0 or 1 for each of 2 or more labels, got "
            f"{labels.dtype} of the shape {labels.shape}; for one class per sample say kind='single-label'"
        )
    if not (fine := np.isin(labels, (0, 1)).all(axis=1)).all():
        where = int(np.argmin(fine))
        wrong = labels[where][~np.isin(labels[where], (0, 1))][0]
        raise DataError(
            f"{what} of a multi-label task are 0 or 1 for each label, but sample {where} has {wrong}; write 1 where "
            f"the sample has the label, else 0, and remove samples without known labels"
        )
    return labels.astype(np.int64)


def _training_label_sets(what: str, thing: Any, count: int, classes: int | None) -> NDArray[np.int64]:
    labels = _label_sets(what, thing, count)
    if classes is not None and labels.shape[1] != classes:
        raise DataError(f"{what} have {labels.shape[1]} labels, and {classes} are named; name each label once")
    return labels


def refuse_constant_labels(what: str, labels: NDArray[Any], names: Sequence[str] = ()) -> None:
    """Refuse labels that all samples have, or none: they cannot be learned from these samples alone."""
    share = labels.mean(axis=0)
    if len(constant := np.flatnonzero((share == 0) | (share == 1))):
        where = int(constant[0])
        named = repr(names[where]) if names else where
        raise DataError(
            f"{what}: label {named} is {labels[0, where]:.0f} of every sample, so it cannot be learned; leave its "
            f"column out, or add samples; where other learners have it, say kind='multi-label'"
        )


def _test_label_sets(what: str, thing: Any, count: int, known: NDArray[Any]) -> NDArray[np.int64]:
    labels = _label_sets(what, thing, count)
    if labels.shape[1] != known.shape[1]:
        raise DataError(f"{what} have {labels.shape[1]} labels, training samples {known.shape[1]}; give all the same")
    return labels


def _numbers(what: str, thing: Any, count: int) -> NDArray[np.float64]:
    """Numbers, (count,)."""
    values = to_numpy(what, thing) if thing is not None else np.zeros(0)
    if values.shape == (count, 1):
        values = values[:, 0]
    if values.shape != (count,) or values.dtype.kind not in "biuf":
        several = values.ndim == 2 and len(values) == count
        raise DataError(
            f"{what} of a regression have the shape ({count},), one number for each input, got {values.dtype} of the "
            f"shape {values.shape}; {'choose one column: one target is learned' if several else 'give one number each'}"
        )
    numbers = values.astype(np.float64)
    if not (fine := np.isfinite(numbers)).all():
        raise DataError(
            f"{what} of a regression are finite numbers, but that of sample {int(np.argmin(fine))} is "
            f"{numbers[np.argmin(fine)]}; {int((~fine).sum())} are not: remove such samples, or fill in the values"
        )
    return numbers


def _training_numbers(what: str, thing: Any, count: int, classes: int | None) -> NDArray[np.float64]:
    numbers = _numbers(what, thing, count)
    measured_target(what, numbers)  # a constant is refused
    return numbers


def _test_numbers(what: str, thing: Any, count: int, known: NDArray[Any]) -> NDArray[np.float64]:
    return _numbers(what, thing, count)


_TRAINING: dict[TaskKind, Callable[[str, Any, int, int | None], NDArray[Any]]] = {
    "single-label": _training_classes,
    "multi-label": _training_label_sets,
    "regression": _training_numbers,
}
_TEST: dict[TaskKind, Callable[[str, Any, int, NDArray[Any]], NDArray[Any]]] = {
    "single-label": _test_classes,
    "multi-label": _test_label_sets,
    "regression": _test_numbers,
}
