"""Names at the ends of lines, with room for them at the right of a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from consilience.presentation.chart import HEIGHT, Chart, Row, altair, chart_data, field, names_of
from consilience.presentation.label_placement import text_width
from consilience.presentation.scatter_charts import HALO_TEXT

_MAX_LABELED = 10  # lines of a chart
_GAP = 14  # pixels between the names of two lines
_LEADER = 14  # pixels from the end of a line to its name
_TICKS = 10
_NARROW = 400  # pixels of a chart that has no room for names; its page draws a legend instead


def direct_labels(chart: Chart, labels: Sequence[Chart], legend: Mapping[str, Any]) -> Chart:
    """A chart with names beside its marks; a page too narrow for them draws the legend instead."""
    alt = altair()
    layers = [label.properties(name=f"label_{i}") for i, label in enumerate(labels)]
    return alt.layer(chart, *layers).properties(usermeta={"narrowLegend": dict(legend)})


def can_label(rows: Sequence[Row], x: str, by: str) -> bool:
    """Whether the names of lines fit at their ends: a few lines over more than one round."""
    return 1 < len(names_of(rows, by)) <= _MAX_LABELED and len({row[x] for row in rows}) > 1


def label_x(rows: Sequence[Row], x: str, by: str) -> dict[str, Any]:
    """Title, scale and ticks of an axis that ends so far right of the last value that the longest name fits."""
    values = names_of(rows, x)
    low, high = min(values), max(values)
    room = max(text_width(name) for name in names_of(rows, by)) + _LEADER + 6
    wide = f"{high} + {high - low} * {room:.0f} / (width - {room:.0f})"
    end = {"expr": f"width < {_NARROW} ? {high} : {wide}"}
    scale = altair().Scale(zero=False, nice=False, domainMin=low, domainMax=end)
    return {"title": x, "scale": scale, "axis": _axis(values)}


def _axis(values: Sequence[float]) -> Any:
    """An axis whose ticks end with the last value."""
    low, high = min(values), max(values)
    if len(values) <= _TICKS:
        return altair().Axis(values=sorted(values))
    steps = (many * 10**power for power in range(9) for many in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= _TICKS)
    first = math.ceil(low / step) * step
    return altair().Axis(values=[first + i * step for i in range(int((high - first) // step) + 1)])


def end_labels(
    rows: Sequence[Row], columns: tuple[str, str, str], domain: tuple[float, float], color: Any
) -> list[Chart]:
    """The names of lines in the order of their ends, apart from each other, with a short stroke from end to name.

    columns: x, y and the column of names. domain: of y. color: as of the lines.
    """
    alt = altair()
    x, y, by = columns
    last = {row[by]: row for row in rows if row[y] is not None}  # the last of each line
    low, high = domain
    ends = [(HEIGHT * (high - row[y]) / (high - low), name) for name, row in last.items()]
    edge = max(row[x] for row in rows)
    points = [
        {by: name, x: last[name][x], y: last[name][y], "edge": edge, "text_y": high - place / HEIGHT * (high - low)}
        for name, place in spread_out(ends)
    ]
    up = {"scale": alt.Scale(domain=list(domain), nice=False, zero=False)}
    across = label_x(rows, x, by)
    base = alt.Chart(chart_data(points))
    strokes = base.mark_rule(strokeWidth=1, x2Offset=_LEADER - 3).encode(
        x=alt.X(f"{field(x)}:Q", **across), x2="edge:Q", y=alt.Y(f"{field(y)}:Q", **up), y2="text_y:Q", color=color
    )
    named = base.encode(x=alt.X("edge:Q", **across), y=alt.Y("text_y:Q", **up), text=f"{field(by)}:N")
    words = [named.mark_text(style=s, align="left", dx=_LEADER, fontSize=12) for s in HALO_TEXT]
    return [strokes, *words]


def spread_out(ends: Sequence[tuple[float, str]]) -> list[tuple[str, float]]:
    """Names and their places from the top, at least a line of text apart and inside the chart where they fit."""
    ordered = sorted(ends)
    groups = [[place, 1] for place, _ in ordered]  # the middle of names that touch, and how many they are
    while True:
        touching = (i for i, (a, b) in enumerate(pairwise(groups)) if b[0] - a[0] < _GAP * (a[1] + b[1]) / 2)
        first = next(touching, None)
        if first is None:
            break
        (one, many), (other, more) = groups[first], groups[first + 1]
        groups[first : first + 2] = [[(one * many + other * more) / (many + more), many + more]]
    places = []
    for middle, many in groups:
        half = _GAP * (many - 1) / 2
        inside = min(max(middle, half), max(HEIGHT - half, half))
        places += [inside - half + _GAP * i for i in range(int(many))]
    return [(name, place) for (_, name), place in zip(ordered, places, strict=True)]
