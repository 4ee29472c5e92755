"""What is predicted of the rows of a table: a class, a number, or 0 and 1 for each of several labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.readers.columns import EMPTY, Columns, column_numbers, refuse_missing
from consilience.data.targets import KindChoice, refuse_constant_labels
from consilience.errors import DataError, UnknownName

_SHOWN = 12  # classes that an error lists
_FEW = 0.1  # of fractions among whole numbers: then they look like mistakes
_ADVICE = "for amounts say --kind regression"


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class TableTargets:
    """The targets of a table's rows, of one kind; classes: how many, where they need no names, which are `names`."""

    columns: tuple[str, ...]
    kind: KindChoice
    targets: NDArray[Any]
    classes: int | None = None
    names: tuple[str, ...] = ()
    known: tuple[Any, ...] = ()
    """The classes in the order of their numbers, as the table writes them."""

    def of_tests(self, what: str, tests: Columns) -> NDArray[Any]:
        """The targets of a table of test samples with the same columns."""
        for name in self.columns:
            if name not in tests:
                raise UnknownName("column", name, tests, of=what)
        if self.kind == "single-label":
            return _test_classes(what, self.columns[0], tests, self.known)
        if self.kind == "multi-label":
            return _label_columns(what, tests, self.columns)
        return column_numbers(what, self.columns[0], tests[self.columns[0]], "")


def read_table_targets(what: str, columns: Columns, names: tuple[str, ...], kind: KindChoice) -> TableTargets:
    """The targets in some columns: several are labels, one is a class or a number."""
    if len(names) > 1:
        if kind not in ("auto", "multi-label"):
            raise DataError(
                f"{what}: {len(names)} columns are named as labels, and kind is {kind!r}, which takes one; name one, "
                f"or leave kind out for 0 or 1 for each label"
            )
        labels = _label_columns(what, columns, names)
        if kind == "auto":
            refuse_constant_labels(what, labels, names)
        return TableTargets(names, "multi-label", labels, names=names)
    name = names[0]
    if kind == "multi-label":
        raise DataError(
            f"{what}: kind is 'multi-label', and one column, {name!r}, is named; name the column of each label, "
            f"separated by commas: --label 'a,b,c', with 0 or 1 in each row"
        )
    if kind == "regression" or (kind == "auto" and _has_fractions(columns[name])):
        return TableTargets(names, "regression", column_numbers(what, name, columns[name], ""), names=(name,))
    targets, known = _number_classes(what, name, columns[name], limited=kind == "auto")
    classes = tuple(map(str, known))
    plain = classes == tuple(map(str, range(len(classes))))
    return TableTargets(
        names, "single-label", targets, len(known) if plain else None, () if plain else classes, tuple(known)
    )


def _label_columns(what: str, columns: Columns, names: Sequence[str]) -> NDArray[np.float64]:
    """0 or 1 for each label of each row, (rows, labels); a column of other numbers is refused."""
    labels = np.stack([column_numbers(what, name, columns[name], "") for name in names], axis=1)
    if (wrong := ~np.isin(labels, (0, 1))).any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(
            f"{what}: column {names[column]!r}, row {row + 1} is {labels[row, column]:g}, and several columns are "
            f"labels, 0 or 1 in each row; correct it, or name one column for a class or a number"
        )
    return labels


def _has_fractions(values: NDArray[Any]) -> bool:
    """Whether a column is of numbers many of which are not whole."""
    if values.ndim != 1:
        return False
    try:
        numbers = np.array([str(value).strip() for value in values]).astype(np.float64)
    except ValueError:
        return False
    return bool(np.isfinite(numbers).all() and (numbers != np.floor(numbers)).mean() >= _FEW)


def _number_classes(what: str, name: str, values: NDArray[Any], limited: bool) -> tuple[NDArray[np.int64], list[Any]]:
    """The class of each row, and the classes in sorted order: whole numbers, or names."""
    numbers = _class_values(what, name, values)
    classes, targets = np.unique(numbers, return_inverse=True)
    if len(classes) == 1:
        raise DataError(f"{what}: column {name!r} is {classes.item()!r} in every row: one class cannot be learned")
    if limited and len(classes) > max(2, len(values) // 2):
        raise DataError(
            f"{what}: column {name!r} has {len(classes)} different values in {len(values)} rows, too many for classes; "
            f"{_ADVICE}, for classes --kind single-label, or name another column with --label"
        )
    return targets.astype(np.int64).reshape(-1), classes.tolist()


def _class_values(what: str, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Labels as whole numbers where all are, else as text; a missing one or a fraction is refused."""
    if values.ndim != 1:
        raise DataError(
            f"{what}: column {name!r} has several values in each row, and a label is one; for several labels save "
            f"each as a column of 0 and 1, and name them: --label 'a,b,c'"
        )
    text = np.array([str(value).strip() for value in values])
    missing = np.isin(np.char.lower(text), [each for each in EMPTY if each not in ("none", "-", "?")])
    if missing.any():
        refuse_missing(what, name, text, missing, "fill in the labels, or remove the rows")
    try:
        numbers = text.astype(np.float64)
    except ValueError:
        return text
    if (fractions := ~np.isfinite(numbers) | (numbers != np.floor(numbers))).any():
        row = int(np.argmax(fractions))
        raise DataError(f"{what}: the label {name!r} of row {row + 1} is {numbers[row]}, not a class; {_ADVICE}")
    return numbers.astype(np.int64)


def _test_classes(what: str, label: str, tests: Columns, classes: Sequence[Any]) -> NDArray[np.int64]:
    """Classes of test samples, with the numbers of the training table."""
    labels = _class_values(what, label, tests[label])
    known = {str(each): number for number, each in enumerate(classes)}
    unknown = [row for row, value in enumerate(labels) if str(value) not in known]
    if unknown:
        raise DataError(
            f"{what}: row {unknown[0] + 1} has the label {str(labels[unknown[0]])!r}, which no training sample has, so "
            f"it cannot be learned; training has {', '.join(list(known)[:_SHOWN])}"
        )
    return np.array([known[str(value)] for value in labels], dtype=np.int64)
