"""Parquet files, and Arrow tables in general, as columns of NumPy arrays. Needs pyarrow, the extra `tables`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.errors import ConfigurationError, DataError, first_sentence
from consilience.extras import install_command

SUFFIXES = (".parquet",)


def read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a Parquet file by name, each (rows,)."""
    arrow = import_arrow("Parquet files")
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: cannot be read as Parquet ({first_sentence(error)}); write or fetch it again"
        ) from error
    return arrow_columns(table)


def import_arrow(what: str) -> Any:
    """The module pyarrow; the error says how to install it."""
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigurationError(f"{what} need pyarrow: {install_command('tables')}") from error
    return pyarrow


def arrow_columns(table: Any) -> dict[str, NDArray[Any]]:
    """The columns of an Arrow table, each (rows,) or (rows, *shape) for lists of one length; text is "" where empty."""
    return {name: _column(table.column(name)) for name in table.column_names}


def _column(column: Any) -> NDArray[Any]:
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        if column.null_count:
            return np.array([np.nan if value is None else float(value) for value in column.to_pylist()])
        values: NDArray[Any] = column.to_numpy()
        return values.astype(np.int64) if types.is_boolean(kind) else values
    listed = column.to_pylist()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        try:
            return np.array(listed)
        except ValueError:  # lists of different lengths
            return np.array([str(value) for value in listed])
    return np.array(["" if value is None else str(value) for value in listed], dtype=np.str_)
