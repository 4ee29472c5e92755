"""A table with named columns as a data set: one column is the class, one may be the owner, the others are inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from consilience.data.arrays import REGRESSION, GivenArrays, raw_from_arrays
from consilience.data.raw_dataset import RawDataset
from consilience.errors import DataError, UnknownName

Columns = Mapping[str, NDArray[Any]]
"""The columns of a table by name, each (rows,): numbers, or text with "" where a cell is empty."""

EMPTY = ("", "na", "n/a", "nan", "null", "none", "?", "-")
"""How files write a missing value, in lower case."""
_TRUTH = {"true": "1", "false": "0"}
_SEED = 20
_SHOWN = 12  # columns that an error lists


@dataclass(frozen=True)
class TableOptions:
    """What the columns of a table mean: the class, the owner of a row, and those that are left out."""

    label: str | None = None
    owners: str | None = None
    drop: tuple[str, ...] = ()

    @classmethod
    def make(cls, label: str | None, owners: str | None, drop: str | Sequence[str] | None) -> TableOptions:
        """The options; several dropped columns are separated by commas, or listed."""
        names = drop.split(",") if isinstance(drop, str) else drop or ()
        return cls(label, owners, tuple(name.strip() for name in names if name.strip()))

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the options that are used."""
        return tuple(key for key in ("label", "owners", "drop") if getattr(self, key))


def raw_from_table(
    what: str, columns: Columns, tests: Columns | None, options: TableOptions, test_share: float, source: str
) -> RawDataset:
    """The data set of a table, or of one for training and one for tests; not scaled yet."""
    _check_columns(what, columns, options)
    assert options.label is not None
    inputs = input_columns(columns, options)
    labels, names = _number_classes(what, options.label, columns[options.label])
    test_inputs, test_targets = None, None
    if tests is not None:
        test_inputs, test_targets = _test_half(f"test samples of {what}", tests, inputs, options.label, names)
    given = GivenArrays(
        read_inputs(what, columns, inputs),
        labels,
        test_inputs,
        test_targets,
        owners=None if options.owners is None else owner_of_rows(what, options.owners, columns[options.owners]),
    )
    classes = tuple(map(str, names))
    plain = classes == tuple(map(str, range(len(classes))))
    raw = raw_from_arrays(
        what,
        given,
        test_share=test_share,
        classes=len(names) if plain else None,
        labels=() if plain else classes,
        source=source,
    )
    return raw._replace(columns=tuple(inputs)).balanced(_SEED)


def input_columns(columns: Columns, options: TableOptions) -> list[str]:
    """The columns that are inputs, in their order."""
    return [name for name in columns if name not in (options.label, options.owners, *options.drop)]


def read_inputs(what: str, columns: Columns, names: Sequence[str], *, may_drop: bool = True) -> NDArray[np.float64]:
    """The values of some columns as numbers, (rows, columns); a missing one or text is refused.

    may_drop: whether the error may advise to leave the column out.
    """
    for name in names:
        if name not in columns:
            raise DataError(f"{what}: there is no column {name!r}; it has {_listed(list(columns))}")
    drops = {name: f", or leave the column out with --drop {name!r}" if may_drop else "" for name in names}
    return np.stack([_numbers(what, name, columns[name], drops[name]) for name in names], axis=1)


def _check_columns(what: str, columns: Columns, options: TableOptions) -> None:
    """Refuse options that name no column, a table without a label, and one without inputs or rows."""
    if options.label is None:
        raise DataError(f"{what}: say which column is the class with --label COLUMN; it has {_listed(list(columns))}")
    for name in (options.label, *([options.owners] if options.owners else []), *options.drop):
        if name not in columns:
            raise UnknownName("column", name, columns, of=what)
    if options.label == options.owners:
        raise DataError(f"{what}: column {options.label!r} is both label and owners; name two columns")
    inputs = input_columns(columns, options)
    if not inputs:
        raise DataError(f"{what}: no column is left for inputs; it has {_listed(list(columns))}, drop fewer")
    if unnamed := [name for name in inputs if name.startswith("column ") and name[7:].isdecimal()]:
        raise DataError(
            f"{what}: {unnamed[0]} has no name, as where row numbers were saved; name it in the first line if it is an "
            f"input, or leave it out with --drop '{unnamed[0]}'"
        )
    if not len(columns[options.label]):
        raise DataError(f"{what}: the table has no rows")


def _numbers(what: str, name: str, values: NDArray[Any], drop: str) -> NDArray[np.float64]:
    """A column as numbers; the error names the first row that is none. Rows are counted from 1. drop: more advice."""
    if values.ndim != 1:
        raise DataError(
            f"{what}: column {name!r} has {values.shape[1:]} values in each row; one number is needed: save it as "
            f"several columns{drop}"
        )
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError):
        numbers = _parsed(what, name, values, drop)
    if not (fine := np.isfinite(numbers)).all():
        _refuse_missing(what, name, values, ~fine, f"fill in the values or remove the rows{drop}")
    return numbers


def _parsed(what: str, name: str, values: NDArray[Any], drop: str) -> NDArray[np.float64]:
    """A column of text as numbers, NaN where a cell is empty; "true" and "false" are 1 and 0."""
    found = np.empty(len(values), dtype=np.float64)
    for row, value in enumerate(values):
        text = str(value).strip()
        text = _TRUTH.get(text.lower(), text)
        try:
            found[row] = np.nan if text.lower() in EMPTY else float(text)
        except ValueError:
            raise DataError(
                f"{what}: column {name!r} holds text: row {row + 1} is {str(value)[:40]!r}, and inputs must be "
                f"numbers; correct it or encode the column, such as a column of 0 and 1 for each value{drop}"
            ) from None
    return found


def _refuse_missing(what: str, name: str, values: NDArray[Any], missing: NDArray[np.bool_], advice: str) -> NoReturn:
    """The error for a column without a value in some rows: it names the first of them."""
    row, count = int(np.argmax(missing)), int(missing.sum())
    received = str(values[row]).strip()
    found = "empty" if received.lower() in EMPTY else f"{received!r}"
    rows = f"{count} rows have no usable value in this column" if count > 1 else "all other rows have a value"
    raise DataError(f"{what}: column {name!r}, row {row + 1} is {found}; {rows}; {advice}")


def _number_classes(what: str, name: str, values: NDArray[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    """The class of each row, and the classes in sorted order: whole numbers, or names."""
    numbers = _class_values(what, name, values)
    classes, targets = np.unique(numbers, return_inverse=True)
    if len(classes) == 1:
        raise DataError(f"{what}: column {name!r} is {classes.item()!r} in every row: one class cannot be learned")
    if len(classes) > max(2, len(values) // 2):
        raise DataError(
            f"{what}: column {name!r} has {len(classes)} different values in {len(values)} rows, too many for classes; "
            f"{REGRESSION}, or name another column with --label"
        )
    return targets.astype(np.int64).reshape(-1), classes.tolist()


def _class_values(what: str, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Labels as whole numbers where all are, else as text; a missing one or a fraction is refused."""
    if values.ndim != 1:
        raise DataError(
            f"{what}: column {name!r} has several values in each row, and a label is one: only classification with one "
            f"class per sample is supported"
        )
    text = np.array([str(value).strip() for value in values])
    missing = np.isin(np.char.lower(text), [each for each in EMPTY if each not in ("none", "-", "?")])
    if missing.any():
        _refuse_missing(what, name, text, missing, "fill in the labels, or remove the rows")
    try:
        numbers = text.astype(np.float64)
    except ValueError:
        return text
    if (fractions := ~np.isfinite(numbers) | (numbers != np.floor(numbers))).any():
        row = int(np.argmax(fractions))
        raise DataError(f"{what}: the label {name!r} of row {row + 1} is {numbers[row]}, not a class; {REGRESSION}")
    return numbers.astype(np.int64)


def owner_of_rows(what: str, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """The owner of each row, by name; a row without one is refused."""
    text = np.array([str(value).strip() for value in values])
    missing = np.isin(np.char.lower(text), ("", "nan", "null"))
    if missing.any():
        row = int(np.argmax(missing))
        raise DataError(
            f"{what}: column {name!r}, row {row + 1} is empty, and every row needs an owner; fill it in, or remove it"
        )
    try:
        return text.astype(np.int64)  # so that 10 comes after 9
    except ValueError:
        return text


def _test_half(
    what: str, tests: Columns, inputs: Sequence[str], label: str, classes: Sequence[Any]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Inputs and labels of a table of test samples, with the columns and classes of the training table."""
    if label not in tests:
        raise UnknownName("column", label, tests, of=what)
    values = read_inputs(what, tests, inputs)
    labels = _class_values(what, label, tests[label])
    known = {str(each): number for number, each in enumerate(classes)}
    unknown = [row for row, value in enumerate(labels) if str(value) not in known]
    if unknown:
        raise DataError(
            f"{what}: row {unknown[0] + 1} has the label {str(labels[unknown[0]])!r}, which no training sample has, so "
            f"it cannot be learned; training has {', '.join(list(known)[:_SHOWN])}"
        )
    return values, np.array([known[str(value)] for value in labels], dtype=np.int64)


def _listed(names: Sequence[str]) -> str:
    """The names of columns; of many the first and the last, since a label is often the last."""
    if not names:
        return "no columns"
    half = _SHOWN // 2
    shown = names if len(names) <= _SHOWN else [*names[:half], *names[-half:]]
    words = [repr(name) for name in shown]
    if len(names) > _SHOWN:
        words.insert(half, f"{len(names) - _SHOWN} more")
    return f"the columns {', '.join(words)}"
