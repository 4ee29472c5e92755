"""Common parts of charts: Altair, rows as data, names, tooltips, and axes of bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from consilience.errors import ConfigurationError
from consilience.extras import install_command

Row = Mapping[str, Any]
Chart = Any
"""An Altair chart of any kind; Altair is an extra, and imported only where a chart is made."""

WIDTH, HEIGHT = 640, 300


def altair() -> Any:
    """The module altair, or an error that says how to install it."""
    try:
        import altair
    except ImportError as error:
        raise ConfigurationError(f"charts need Altair and vl-convert: {install_command('report')}") from error
    return altair


def chart_data(rows: Sequence[Row]) -> Any:
    """Rows as the data of a chart."""
    return altair().Data(values=[dict(row) for row in rows])


def names_of(rows: Sequence[Row], column: str) -> list[Any]:
    """The distinct values of a column, in the order of the rows."""
    return list(dict.fromkeys(row[column] for row in rows))


def tooltip(name: str, number: bool = False, title: str | None = None) -> Any:
    """A line of a tooltip; title: what it is called, else the column's name."""
    alt = altair()
    if number:
        return alt.Tooltip(f"{field(name)}:Q", title=title or name, format=".4~g")
    return alt.Tooltip(f"{field(name)}:N", title=title or name)


def field(name: str) -> str:
    """A column's name with dots, brackets and colons escaped for Vega-Lite."""
    return name.replace(".", r"\.").replace("[", r"\[").replace("]", r"\]").replace(":", r"\:")


def bytes_axis(sent: Sequence[float], zero: float | None = None) -> Any:
    """A logarithmic axis of bytes with few round labels: 20 kB, 3 MB. zero: the position at which 0 is drawn."""
    low, high = math.log10(min(sent, default=1.0)), math.log10(max(sent, default=1.0))
    decades = range(math.floor(low), math.ceil(high) + 1)
    values = [many * 10**power for power in decades for many in ((1, 2, 5) if high - low < 4 else (1,))]
    ticks = [value for value in values if sent and 10**low <= value <= 10**high]
    label = "replace(format(datum.value, '~s'), regexp('([kMGT]?)$'), ' $1B')"
    if zero is not None:
        label, ticks = f"datum.value < {10**low * 0.999!r} ? '0' : {label}", [zero, *ticks]
    return altair().Axis(labelExpr=label, labelOverlap=True, values=ticks)
