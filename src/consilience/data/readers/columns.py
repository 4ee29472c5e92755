"""The columns of a table: numbers, and what stands for a missing one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from consilience.errors import DataError

Columns = Mapping[str, NDArray[Any]]
"""The columns of a table by name, each (rows,): numbers, or text with "" where a cell is empty."""

EMPTY = ("", "na", "n/a", "nan", "null", "none", "?", "-")
"""How files write a missing value, in lower case."""
_TRUTH = {"true": "1", "false": "0"}


def column_numbers(what: str, name: str, values: NDArray[Any], drop: str) -> NDArray[np.float64]:
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
        refuse_missing(what, name, values, ~fine, f"fill in the values or remove the rows{drop}")
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
                f"{what}: column {name!r} holds text: row {row + 1} is {str(value)[:40]!r}, and a number is "
                f"needed; correct it or encode the column, such as a column of 0 and 1 for each value{drop}"
            ) from None
    return found


def refuse_missing(what: str, name: str, values: NDArray[Any], missing: NDArray[np.bool_], advice: str) -> NoReturn:
    """The error for a column without a value in some rows: it names the first of them."""
    row, count = int(np.argmax(missing)), int(missing.sum())
    received = str(values[row]).strip()
    found = "empty" if received.lower() in EMPTY else f"{received!r}"
    rows = f"{count} rows have no usable value in this column" if count > 1 else "all other rows have a value"
    raise DataError(f"{what}: column {name!r}, row {row + 1} is {found}; {rows}; {advice}")
