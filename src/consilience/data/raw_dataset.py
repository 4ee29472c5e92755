"""A data set as its files hold it, and how it is cut to fewer samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.errors import ConfigurationError
from consilience.input_fields import InputFields
from consilience.task import TaskKind
from consilience.validation import is_integer

Selection = slice | NDArray[np.int64]
"""Which samples are used: a range, or their positions."""


class RawDataset(NamedTuple):
    """A data set before anything is left out or scaled: any real numbers, images with their channels first."""

    inputs: NDArray[Any]  # (n, *shape)
    targets: NDArray[Any]  # (n,), or (n, labels)
    test_inputs: NDArray[Any]  # (m, *shape)
    test_targets: NDArray[Any]  # (m,), or (m, labels)
    classes: int
    pixel_max: int = 1  # the value scaled to 1.0: 255 for images of bytes, 1 for other inputs
    labels: tuple[str, ...] = ()  # names of the classes
    shareable: NDArray[np.bool_] | None = None  # (n,) False where a sample must never be shared
    source: str = ""
    owners: NDArray[np.int64] | None = None  # (n,) the owner of each training sample, 0..k-1
    owner_names: tuple[str, ...] = ()
    alphabet: str = ""  # where inputs are codes of characters: all characters, in the order of their codes
    columns: tuple[str, ...] = ()  # names of a table's columns
    sample_epsilons: NDArray[np.float64] | None = None  # (n,) privacy budgets of single samples, inf where none
    fields: InputFields | None = None  # where an input is several arrays: what its row of numbers is packed of
    kind: TaskKind = "single-label"  # of the targets: (n,) classes, (n, labels) of 0 and 1, (n,) numbers in their unit

    def first(self, what: str, train: int | None, test: int | None) -> RawDataset:
        """Use only the first `train` training and `test` test samples; None: all.

        Samples with owners are ordered by owner, so the first N would be those of the first owners alone: N samples
        spread evenly over all are used instead.
        """
        kept = _count(what, "training", train, len(self.inputs))
        tested = _count(what, "test", test, len(self.test_inputs))
        spread = self.owners is not None
        return self._select(
            first_samples(kept, len(self.inputs), spread), first_samples(tested, len(self.test_inputs), spread)
        )

    def first_classes(self, what: str, count: int | None) -> RawDataset:
        """Use only the samples of the first `count` classes; None: of all."""
        check_class_count(what, count, self.classes, self.kind, text=bool(self.alphabet))
        if count is None:
            return self
        train, test = (np.flatnonzero(targets < count) for targets in (self.targets, self.test_targets))
        return self._select(train, test)._replace(classes=count, labels=self.labels[:count])

    def balanced(self, seed: int) -> RawDataset:
        """The same samples in an order in which classes alternate, so that any first N are balanced.

        Where samples do not have one class each, they are only shuffled.
        """
        halves = (
            t if self.kind == "single-label" else np.zeros(len(t), int) for t in (self.targets, self.test_targets)
        )
        return self._select(*(balanced_order(half, seed) for half in halves))

    def _select(self, train: Selection, test: Selection) -> RawDataset:
        """Some of the samples, in the order in which they are named."""
        return self._replace(
            inputs=self.inputs[train],
            targets=self.targets[train],
            test_inputs=self.test_inputs[test],
            test_targets=self.test_targets[test],
            shareable=None if self.shareable is None else self.shareable[train],
            owners=None if self.owners is None else self.owners[train],
            sample_epsilons=None if self.sample_epsilons is None else self.sample_epsilons[train],
        )


def first_samples(asked: int | None, available: int, spread: bool) -> Selection:
    """The samples to use: the first `asked`, or as many spread evenly over all; None: all.

    >>> first_samples(3, 10, spread=True)
    array([0, 3, 6])
    """
    if asked is None or asked >= available or not spread:
        return slice(asked)
    return np.arange(asked, dtype=np.int64) * available // asked  # (asked,)


def check_class_count(what: str, asked: int | None, available: int, kind: TaskKind, text: bool) -> None:
    """Refuse more classes than there are, and to leave out characters of a text."""
    if asked is None:
        return
    if kind != "single-label":
        raise ConfigurationError(
            f"classes is {asked}, and {what} is for {kind}, where samples do not have one class each; leave it out"
        )
    if text:
        raise ConfigurationError(
            f"classes is {asked}, and {what} is text, whose classes are its characters; leave it out"
        )
    if not is_integer(asked) or not 2 <= asked <= available:
        raise ConfigurationError(f"classes is {asked}, and {what} has {available} classes; use 2 to {available}")


def _count(what: str, half: str, asked: int | None, available: int) -> int:
    if asked is None:
        return available
    if not is_integer(asked) or not 1 <= asked <= available:
        raise ConfigurationError(
            f"{what} has {available} {half} samples, and {asked} are to be used; "
            f"use 1 to {available}, or leave the number out to use all"
        )
    return asked


def balanced_order(targets: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """A fixed shuffle in which classes alternate: the first sample of every class, then the second, and so on."""
    # RandomState, since its stream is frozen for good; that of a newer Generator may change with NumPy's version.
    order = np.random.RandomState(seed).permutation(len(targets)).astype(np.int64)  # (n,)
    turn = np.empty_like(order)  # (n,) how many samples of the same class come before
    for label in np.unique(targets):
        mine = targets[order] == label
        turn[mine] = np.arange(mine.sum())
    return order[np.argsort(turn, kind="stable")]
