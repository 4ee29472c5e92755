"""Results in a notebook: tables as HTML, and rows as a pandas data frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rich.table import Table

from consilience.errors import ConfigurationError


def tables_html(tables: Sequence[Table], sentences: Sequence[str] = ()) -> str:
    """Tables of a terminal as HTML, with the notebook's own colors; sentences: what the numbers say, below."""
    return "\n".join([*map(_table_html, tables), *(f"<p>{escape(sentence)}</p>" for sentence in sentences)])


def _table_html(table: Table) -> str:
    """A table with its title above and its caption below."""
    head = "".join(
        f"<th{_side(column)}>{escape(' '.join(str(column.header).split()))}</th>" for column in table.columns
    )
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = [_row(table, cells, str(row.style or "")) for cells, row in zip(rows, table.rows, strict=True)]
    title = f"<caption style='caption-side:top'><b>{escape(str(table.title))}</b></caption>" if table.title else ""
    below = f"<p style='max-width:60em'><small>{escape(str(table.caption))}</small></p>" if table.caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>{below}"


def _row(table: Table, cells: Sequence[Any], style: str) -> str:
    strong = ("<b>", "</b>") if "bold" in style else ("", "")
    inside = (
        f"<td{_side(column)}>{strong[0]}{escape(str(cell))}{strong[1]}</td>"
        for column, cell in zip(table.columns, cells, strict=True)
    )
    return f"<tr>{''.join(inside)}</tr>"


def _side(column: Any) -> str:
    return f" style='text-align:{column.justify}'"


def data_frame(rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> Any:
    """Rows, or columns by name, as a pandas data frame; pandas is installed by its user."""
    try:
        import pandas
    except ImportError as error:
        raise ConfigurationError("to_pandas needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows if isinstance(rows, Mapping) else list(rows))


def flat_numbers(summary: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A summary as columns, `accuracy.mean`, `bytes.up`: all its values but lists and empty tables."""
    for key, value in summary.items():
        if isinstance(value, Mapping):
            yield from flat_numbers(value, f"{prefix}{key}.")
        elif not isinstance(value, list | tuple):
            yield f"{prefix}{key}", value
