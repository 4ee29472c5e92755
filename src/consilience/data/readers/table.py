"""A table with named columns as a data set: one column is the class, one may be the owner, the others are inputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.data.arrays import GivenArrays, raw_from_arrays
from consilience.data.raw_dataset import RawDataset
from consilience.data.readers.columns import Columns, column_numbers
from consilience.data.readers.table_targets import read_table_targets
from consilience.data.targets import KindChoice
from consilience.errors import DataError, UnknownName

_SEED = 20
_SHOWN = 12  # columns that an error lists


@dataclass(frozen=True)
class TableOptions:
    """What the columns of a table mean: what is predicted, the owner of a row, and those that are left out.

    label: the column of the class or the number, or several, separated by commas, of 0 and 1 for each label. kind: of
    task, "auto" for what the column looks like.
    """

    label: str | None = None
    owners: str | None = None
    drop: tuple[str, ...] = ()
    kind: KindChoice = "auto"

    @classmethod
    def make(
        cls, label: str | None, owners: str | None, drop: str | Sequence[str] | None, kind: KindChoice = "auto"
    ) -> TableOptions:
        """The options; several dropped columns are separated by commas, or listed."""
        names = drop.split(",") if isinstance(drop, str) else drop or ()
        return cls(label, owners, tuple(name.strip() for name in names if name.strip()), kind)

    def labels(self, columns: Collection[str]) -> tuple[str, ...]:
        """The columns of what is predicted: one, or several where the name of none has the commas."""
        if self.label is None or self.label in columns:
            return () if self.label is None else (self.label,)
        return tuple(name.strip() for name in self.label.split(",") if name.strip())

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
    read = read_table_targets(what, columns, options.labels(columns), options.kind)
    test_inputs, test_targets = None, None
    if tests is not None:
        tested = f"test samples of {what}"
        test_inputs, test_targets = read_inputs(tested, tests, inputs), read.of_tests(tested, tests)
    given = GivenArrays(
        read_inputs(what, columns, inputs),
        read.targets,
        test_inputs,
        test_targets,
        owners=None if options.owners is None else owner_of_rows(what, options.owners, columns[options.owners]),
    )
    raw = raw_from_arrays(
        what,
        given,
        test_share=test_share,
        classes=read.classes,
        labels=read.names,
        source=source,
        kind=read.kind,
    )
    return raw._replace(columns=tuple(inputs)).balanced(_SEED)


def input_columns(columns: Columns, options: TableOptions) -> list[str]:
    """The columns that are inputs, in their order."""
    return [name for name in columns if name not in (*options.labels(columns), options.owners, *options.drop)]


def read_inputs(what: str, columns: Columns, names: Sequence[str], *, may_drop: bool = True) -> NDArray[np.float64]:
    """The values of some columns as numbers, (rows, columns); a missing one or text is refused.

    may_drop: whether the error may advise to leave the column out.
    """
    for name in names:
        if name not in columns:
            raise DataError(f"{what}: there is no column {name!r}; it has {_listed(list(columns))}")
    drops = {name: f", or leave the column out with --drop {name!r}" if may_drop else "" for name in names}
    return np.stack([column_numbers(what, name, columns[name], drops[name]) for name in names], axis=1)


def _check_columns(what: str, columns: Columns, options: TableOptions) -> None:
    """Refuse options that name no column, a table without a label, and one without inputs or rows."""
    if options.label is None:
        raise DataError(f"{what}: say which column is predicted with --label COLUMN; it has {_listed(list(columns))}")
    for name in (*options.labels(columns), *([options.owners] if options.owners else []), *options.drop):
        if name not in columns:
            raise UnknownName("column", name, columns, of=what)
    if options.owners in options.labels(columns):
        raise DataError(f"{what}: column {options.owners!r} is both label and owners; name two columns")
    inputs = input_columns(columns, options)
    if not inputs:
        raise DataError(f"{what}: no column is left for inputs; it has {_listed(list(columns))}, drop fewer")
    if unnamed := [name for name in inputs if name.startswith("column ") and name[7:].isdecimal()]:
        raise DataError(
            f"{what}: {unnamed[0]} has no name, as where row numbers were saved; name it in the first line if it is an "
            f"input, or leave it out with --drop '{unnamed[0]}'"
        )
    if not len(columns[options.labels(columns)[0]]):
        raise DataError(f"{what}: the table has no rows")


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
