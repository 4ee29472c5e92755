"""CSV files: a first line with the names of the columns, then one sample per line, separated by `,`, `;` or tabs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.errors import DataError

SUFFIXES = (".csv", ".tsv")
_SEPARATORS = (",", ";", "\t")
_LONGEST_CELL = 1 << 20


def read_csv(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a CSV file by name, each (rows,) of text; a column without a name is called "column N"."""
    csv.field_size_limit(_LONGEST_CELL)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            rows = csv.reader(file, delimiter=max(_SEPARATORS, key=first.count), skipinitialspace=True)
            names = _names(path, next(rows, []))
            cells = [_checked(path, row, names, rows.line_num) for row in rows if row]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: it is not UTF-8 text ({error.reason}); save it as CSV with UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{path}: cannot be read as CSV ({error}); write or fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check that it is a file you may read") from error
    values = zip(*cells, strict=True) if cells else (() for _ in names)
    return {name: np.array(column, dtype=np.str_) for name, column in zip(names, values, strict=True)}


def _names(path: Path, header: list[str]) -> list[str]:
    """The names of the columns; a file without a first line of names is refused."""
    names = [name.strip() or f"column {number + 1}" for number, name in enumerate(header)]
    if not names:
        raise DataError(f"{path}: it is empty; the first line names the columns, and each line after it is a sample")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise DataError(f"{path}: two columns are called {twice[0]!r}; name each differently in the first line")
    if all(_is_number(name) for name in header):
        raise DataError(
            f"{path}: its first line has only numbers, {', '.join(header[:3])}, ...; add a line above it that names "
            f"the columns"
        )
    return names


def _checked(path: Path, row: list[str], names: list[str], line: int) -> list[str]:
    if len(row) != len(names):
        raise DataError(
            f"{path}: line {line} has {len(row)} cells, and the first line names {len(names)} columns; "
            f"write a cell for each, in quotes where it holds the separator"
        )
    return row


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
