"""The first charts of a report: what accuracy costs, and who gains and who loses by working together.

Names stand beside their points, and color is never the only distinction: points have shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from consilience.presentation.chart import HEIGHT, WIDTH, Chart, Row, altair, bytes_axis, chart_data, names_of, tooltip
from consilience.presentation.gains import MARGIN
from consilience.presentation.label_placement import place_names, text_width
from consilience.presentation.line_labels import direct_labels
from consilience.presentation.scatter_charts import CLOSED_SHAPES, HALO_TEXT

_WIDTHS = (440, 560, WIDTH, 1080)  # in which names are drawn beside points
_LINE = 14  # pixels of a line of text
_OUTCOMES = {0: ("helped", "triangle-up"), 1: ("harmed", "triangle-down"), 8: ("about the same", "circle")}
"""Names and shapes by the color of the theme: blue, orange, gray."""
_ROW = 34


def accuracy_against_bytes(rows: Sequence[Row], names: Sequence[str], score: str = "accuracy") -> Chart:
    """The final accuracy of each method against its bytes; references, which have no cost, are horizontal lines.

    Rows: `{method, bytes, accuracy, spread, reference}`; spread: over seeds, or None; reference: the text of a line, or
    "". names: the labels in the order of their looks. score: the name of what stands under `accuracy`.
    """
    alt = altair()
    lines, points = [r for r in rows if r["reference"]], [r for r in rows if not r["reference"]]
    placed, across, up = _placed(rows, lines, points)
    up = {"title": f"{score}, %", **up}
    tips = [tooltip("method"), tooltip("bytes", number=True), tooltip("accuracy", number=True, title=score)]
    base = alt.Chart(chart_data(placed)).encode(x=alt.X("place:Q", **across), y=alt.Y("accuracy:Q", **up), tooltip=tips)
    look = {"title": None, "legend": None}
    shapes = alt.Scale(domain=list(names), range=[CLOSED_SHAPES[i % len(CLOSED_SHAPES)] for i in range(len(names))])
    color = alt.Color("method:N", scale=alt.Scale(domain=list(names)), **look)
    marks = base.mark_point(filled=True, size=110, opacity=1).encode(
        color=color, shape=alt.Shape("method:N", scale=shapes, **look)
    )
    layers = []
    if lines:
        level = alt.Chart(chart_data([dict(row) for row in lines])).encode(y=alt.Y("accuracy:Q", **up))
        layers.append(level.mark_rule(strokeDash=[2, 3], strokeWidth=1.5, color="#7d8793"))
        layers += [
            level.mark_text(style=s, align="left", dy=-8, fontSize=12).encode(x=alt.value(4), text="reference:N")
            for s in HALO_TEXT
        ]
    if any(row["spread"] for row in points):
        bars = base.transform_filter("datum.spread > 0").mark_rule(strokeWidth=1.5, opacity=0.7)
        layers.append(bars.encode(y=alt.Y("low:Q", **up), y2="high:Q", color=color))
    where = {"dx": alt.expr("datum.right"), "dy": alt.expr("datum.down"), "align": alt.expr("datum.align")}
    words = [base.mark_text(style=s, fontSize=12, **where).encode(text="method:N") for s in HALO_TEXT]
    chart = alt.layer(*layers, marks).properties(width=WIDTH, height=HEIGHT)
    return direct_labels(chart, words, {"values": names_of(points, "method"), "symbolOpacity": 1})


def gains_by_method(rows: Sequence[Row]) -> Chart:
    """What each learner gains over learning alone, a mark per learner and seed and a line at the mean, by method.

    Rows: `{method, learner, seed, gain}`.
    """
    alt = altair()
    names = names_of(rows, "method")
    marked = [dict(row) | {"outcome": _outcome(row["gain"])} for row in rows]
    means = [_mean_row(name, [row for row in marked if row["method"] == name]) for name in names]
    low, high = min(0.0, *(r["gain"] for r in marked)), max(0.0, *(r["gain"] for r in marked))
    air = 0.05 * (high - low) or 1.0
    x = {"title": "points gained over learning alone", "scale": alt.Scale(domain=[low - air, high + air], nice=False)}
    y = alt.Y("method:N", title=None, sort=names)
    zero = (
        alt.Chart(chart_data([{"gain": 0}])).mark_rule(strokeWidth=1.5, color="#7d8793").encode(x=alt.X("gain:Q", **x))
    )
    padded = [_OUTCOMES.get(i, (f"({i})", "circle")) for i in range(max(_OUTCOMES) + 1)]
    domain = [name for name, _ in padded]
    looks, shapes = alt.Scale(domain=domain, range="ordinal"), alt.Scale(domain=domain, range=[s for _, s in padded])
    legend = alt.Legend(values=[name for name, _ in _OUTCOMES.values()], symbolSize=80, symbolOpacity=1)
    dots = (
        alt.Chart(chart_data(marked))
        .mark_point(filled=True, size=55, opacity=0.85)
        .encode(
            x=alt.X("gain:Q", **x),
            y=y,
            color=alt.Color("outcome:N", title=None, scale=looks, legend=legend),
            shape=alt.Shape("outcome:N", title=None, scale=shapes, legend=legend),
            tooltip=[tooltip("method"), tooltip("learner"), tooltip("seed"), tooltip("gain", number=True)],
        )
    )
    mean = alt.Chart(chart_data(means)).encode(x=alt.X("gain:Q", **x), y=y)
    ticks = [mean.mark_tick(thickness=3, size=22, opacity=1)]
    words = [mean.mark_text(style=s, dy=-14, fontSize=11, fontWeight="bold").encode(text="text:N") for s in HALO_TEXT]
    height = max(_ROW * len(names), min(2 * _ROW * len(names), HEIGHT - 40))
    return alt.layer(zero, dots, *ticks, *words).properties(width=WIDTH, height=height)


def _outcome(points: float) -> str:
    return "helped" if points > MARGIN else "harmed" if points < -MARGIN else "about the same"


def _mean_row(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    mean = sum(row["gain"] for row in rows) / len(rows)
    return {"method": name, "gain": mean, "text": f"{mean:+.1f}"}


def _placed(
    rows: Sequence[Row], lines: Sequence[Row], points: Sequence[Row]
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Points with positions and offsets of their names, and scale and ticks of both axes."""
    alt = altair()
    sent = [row["bytes"] for row in points if row["bytes"] > 0]
    low, high = min(sent, default=1.0), max(sent, default=1.0)
    silent = len(sent) < len(points)
    nothing = low / max(high / low, 10.0) ** 0.2 if silent else low  # where 0 is drawn
    spare = max(high / nothing, 10.0) ** 0.12
    left, right = nothing / spare, high * spare
    ends = [row["accuracy"] + side * (row["spread"] or 0.0) for row in rows for side in (-1, 1)]
    air = 0.1 * (max(ends) - min(ends)) or 1.0
    bottom, top = min(ends) - air, max(ends) + air
    at = [max(row["bytes"], nothing) for row in points]
    shares = [
        (math.log(place / left) / math.log(right / left), (top - row["accuracy"]) / (top - bottom))
        for place, row in zip(at, points, strict=True)
    ]
    words = [(text_width(row["method"]), _LINE) for row in points]
    texts = [((top - r["accuracy"]) / (top - bottom) * HEIGHT, text_width(r["reference"])) for r in lines]
    taken = [(4.0, y - 8 - _LINE / 2, 4.0 + wide, y - 8 + _LINE / 2) for y, wide in texts]
    offsets = place_names(shares, [(width, HEIGHT) for width in _WIDTHS], words, taken)
    placed = [
        {"method": row["method"], "bytes": row["bytes"], "accuracy": row["accuracy"], "place": place}
        | {"spread": row["spread"], "down": dy, **_aligned(dx, wide / 2)}
        | {"low": row["accuracy"] - (row["spread"] or 0.0), "high": row["accuracy"] + (row["spread"] or 0.0)}
        for row, place, (dx, dy), (wide, _) in zip(points, at, offsets, words, strict=True)
    ]
    axis = bytes_axis(sent, nothing if silent else None)
    scale = alt.Scale(type="log", domain=[left, right], nice=False)
    across = {"title": "bytes of the federation, both ways", "scale": scale, "axis": axis}
    return placed, across, {"scale": alt.Scale(domain=[bottom, top], nice=False)}


def _aligned(dx: float, half: float) -> dict[str, Any]:
    """The offset of a name as that of its near end, since the width of a name is only estimated."""
    if abs(dx) <= half:
        return {"right": dx, "align": "center"}
    return {"right": dx - half, "align": "left"} if dx > 0 else {"right": dx + half, "align": "right"}
