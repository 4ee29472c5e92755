"""What all charts have in common: Altair itself, rows as data, names, tips, and axes of bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from consilience.errors import ConfigurationError

Row = Mapping[str, Any]
Chart = Any
"""An Altair chart of any kind; Altair is an extra, and imported only where a chart is made."""

WIDTH, HEIGHT = 640, 300


def altair() -> Any:
    """Altair, or how to get it."""
    try:
        import altair
    except ImportError as error:
        raise ConfigurationError("charts need Altair and vl-convert: pip install consilience[report]") from error
    return altair


def data(rows: Sequence[Row]) -> Any:
    """Rows as a chart takes them."""
    return altair().Data(values=[dict(row) for row in rows])


def names_of(rows: Sequence[Row], column: str) -> list[Any]:
    """What stands in a column, each once, in the order of the rows."""
    return list(dict.fromkeys(row[column] for row in rows))


def tip(name: str, number: bool = False) -> Any:
    """A line of what is told of a mark that is pointed at."""
    alt = altair()
    if number:
        return alt.Tooltip(f"{field(name)}:Q", title=name, format=".4~g")
    return alt.Tooltip(f"{field(name)}:N", title=name)


def field(name: str) -> str:
    """A column's name where dots, brackets and colons would mean something else."""
    return name.replace(".", r"\.").replace("[", r"\[").replace("]", r"\]").replace(":", r"\:")


def sizes(sent: Sequence[float], nothing: float | None = None) -> Any:
    """A logarithmic axis of bytes in the words of the tables: 20 kB, 3 MB; few and round ones. nothing: where 0 is."""
    low, high = math.log10(min(sent, default=1.0)), math.log10(max(sent, default=1.0))
    decades = range(math.floor(low), math.ceil(high) + 1)
    values = [many * 10**power for power in decades for many in ((1, 2, 5) if high - low < 4 else (1,))]
    kept = [value for value in values if sent and 10**low <= value <= 10**high]
    said = "replace(format(datum.value, '~s'), regexp('([kMGT]?)$'), ' $1B')"
    if nothing is not None:
        said, kept = f"datum.value < {10**low * 0.999!r} ? '0' : {said}", [nothing, *kept]
    return altair().Axis(labelExpr=said, labelOverlap=True, values=kept)
