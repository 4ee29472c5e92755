"""Charts of points: accuracy against bytes, by method or by size, and feature maps.

Color is never the only distinction: points have shapes, numbers or names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from statistics import median
from typing import Any

from consilience.presentation.chart import (
    HEIGHT,
    WIDTH,
    Chart,
    Row,
    altair,
    bytes_axis,
    chart_data,
    field,
    names_of,
    tooltip,
)
from consilience.presentation.label_placement import place_labels
from consilience.presentation.method_looks import look_order

HALO_TEXT = ("halo", "name")  # styles of two text layers, the lower in the background color, so that text is readable
_BEST, _OTHER = "#D55E00", "#7d8793"  # visible on light and dark pages
CLOSED_SHAPES = (  # shapes that can be filled or hollow; fewer than colors, so that repeated shapes have other colors
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "M0,-1L0.26,-0.36L0.95,-0.31L0.42,0.14L0.59,0.81L0,0.45L-0.59,0.81L-0.42,0.14L-0.95,-0.31L-0.26,-0.36Z",
)
_SAME_PLACE = 0.12  # of the map: the distance of a class's medians at two learners that share a label
_TALL = HEIGHT * 3 // 2
_WIDTHS = (260, WIDTH, 860)  # of a chart on a phone, in a file, in a page
_NUMBER = (17, 14)  # pixels of two digits with a margin


def frontier(rows: Sequence[Row], x: str, y: str, name: str) -> Chart:
    """The Pareto frontier of accuracy against bytes: numbered points, and a line along the best ones.

    Rows: `{name, x, y}`, x in bytes. The legend gives the name of each number. A point without bytes is at 0, left of
    all others on the logarithmic axis.
    """
    alt = altair()
    numbered, line, across, up = _numbered(rows, x, y, name)
    keys = {row["key"]: row["best"] for row in numbered}
    legend = alt.Legend(symbolSize=90, symbolOpacity=1)
    colors = alt.Scale(domain=list(keys), range=[_BEST if best else _OTHER for best in keys.values()])
    shapes = alt.Scale(domain=list(keys), range=["circle" if best else "diamond" for best in keys.values()])
    tips = [tooltip(name), tooltip(x, number=True), tooltip(y, number=True)]
    stairs = (
        alt.Chart(chart_data(line)).mark_line(interpolate="step-after", color=_BEST, opacity=0.6).encode(x=across, y=up)
    )
    points = alt.Chart(chart_data(numbered)).encode(x=across, y=up, tooltip=tips)
    marks = points.mark_point(filled=True, size=70, opacity=1).encode(
        color=alt.Color("key:N", title=None, scale=colors, legend=legend),
        shape=alt.Shape("key:N", title=None, scale=shapes, legend=legend),
    )
    right, down = alt.expr("datum.right"), alt.expr("datum.down")
    words = [points.mark_text(style=s, dx=right, dy=down, fontSize=11).encode(text="number:N") for s in HALO_TEXT]
    return alt.layer(stairs, marks, *words).properties(width=WIDTH, height=_TALL)


def scatter(rows: Sequence[Row], group: str = "class", order: Sequence[str] = ()) -> Chart:
    """A map of features: color, shape and label are those of the class; the first learner's points are filled.

    Rows: `{x, y, learner, class}`. group: what a class is called. order: of the classes in the legend; without it by
    number.
    """
    alt = altair()
    bare = {"title": None, "axis": alt.Axis(labels=False, ticks=False, grid=False), "scale": alt.Scale(zero=False)}
    axes = {"x": alt.X("x:Q", **bare), "y": alt.Y("y:Q", **bare)}
    classes = sorted(names_of(rows, "class"), key=order.index if order else _by_number)
    learners = sorted(names_of(rows, "learner"), key=_by_number)
    legend = alt.Legend(symbolSize=90, symbolOpacity=1)
    colors = alt.Scale(domain=[str(name) for name in classes], range="ordinal")
    look = {"title": group, "scale": colors, "legend": legend}
    shapes = alt.Scale(domain=[str(name) for name in classes], range=list(CLOSED_SHAPES))
    filled = alt.Scale(domain=learners, range=[0.8, *[0.0] * (len(learners) - 1)])
    points = alt.Chart(chart_data([{**row, "class": str(row["class"])} for row in rows])).mark_point(
        size=36, strokeWidth=1.2
    )
    points = points.encode(
        **axes,
        fill=alt.Fill("class:N", **look),
        stroke=alt.Stroke("class:N", **look),
        shape=alt.Shape("class:N", **look | {"scale": shapes}),
        fillOpacity=alt.FillOpacity("learner:O", scale=filled, legend=None),
        tooltip=["learner:N", alt.Tooltip("class:N", title=group)],
    )
    middles = alt.Chart(chart_data(_class_medians(rows))).encode(**axes, text="class:N")
    names = [middles.mark_text(style=style, fontSize=15, fontWeight="bold") for style in HALO_TEXT]
    title_text = f"filled: learner {learners[0]}" + "".join(f"; hollow: learner {who}" for who in learners[1:])
    title = alt.Title(title_text, anchor="start", fontSize=11, fontWeight="normal")
    return alt.layer(points, *names).properties(width=WIDTH, height=WIDTH * 3 // 4, title=title)


def scatters(panels: Sequence[tuple[str, Sequence[Row]]]) -> Chart:
    """Maps of features side by side, each with a heading: what `scatter` shows, smaller and with one legend."""
    alt, side = altair(), WIDTH * 3 // 5
    first = scatter(panels[0][1]).title.text
    charts = [
        scatter(rows).properties(width=side, height=side, title=alt.Title(heading, anchor="middle", fontSize=13))
        for heading, rows in panels
    ]
    title = alt.Title(first, anchor="start", fontSize=11, fontWeight="normal")
    return alt.hconcat(*charts, spacing=12).properties(title=title)


def levels(rows: Sequence[Row]) -> Chart:
    """The accuracy of each method, in panels: the first kind as circles with their spread, others as diamonds.

    Rows: `{panel, method, kind, accuracy, spread}`.
    """
    alt = altair()
    kinds, panels = names_of(rows, "kind"), names_of(rows, "panel")
    points = [{**row, "low": row["accuracy"] - row["spread"], "high": row["accuracy"] + row["spread"]} for row in rows]
    y = alt.Y("method:N", title=None, sort=names_of(rows, "method"))
    across = {"title": "accuracy, %", "scale": alt.Scale(zero=False)}
    base = alt.Chart(chart_data(points)).encode(y=y)
    spreads = base.transform_filter("datum.spread > 0").mark_rule(strokeWidth=2, color=_BEST, opacity=0.6)
    shapes = alt.Scale(domain=kinds, range=["circle", *["diamond"] * (len(kinds) - 1)])
    colors = alt.Scale(domain=kinds, range=[_BEST, *[_OTHER] * (len(kinds) - 1)])
    marks = base.mark_point(size=60, opacity=1, filled=True).encode(
        x=alt.X("accuracy:Q", **across),
        color=alt.Color("kind:N", title=None, scale=colors),
        shape=alt.Shape("kind:N", title=None, scale=shapes),
        tooltip=[tooltip("method"), tooltip("kind"), tooltip("accuracy", number=True), tooltip("spread", number=True)],
    )
    lines = [spreads.encode(x=alt.X("low:Q", **across), x2="high:Q")] if any(row["spread"] for row in rows) else []
    layers = alt.layer(*lines, marks)
    sized = layers.properties(width=WIDTH // 3 - 50, height=22 * len(names_of(rows, "method")))
    facet = alt.Facet("panel:N", title=None, sort=panels)
    return sized.facet(facet=facet, columns=len(panels)).resolve_scale(x="independent")


def by_size(rows: Sequence[Row], x: str) -> Chart:
    """The accuracy of each method against a size on a logarithmic axis: a line with a shape per method, and its spread.

    Rows: `{method, x, accuracy, spread}`; those without an accuracy are left out.
    """
    alt = altair()
    known = [row for row in rows if row["accuracy"] is not None]
    points = [{**row, "low": row["accuracy"] - row["spread"], "high": row["accuracy"] + row["spread"]} for row in known]
    methods, names = names_of(known, "method"), look_order(names_of(known, "method"))
    legend = alt.Legend(values=methods, symbolSize=90, symbolOpacity=1)
    shapes = [CLOSED_SHAPES[look % len(CLOSED_SHAPES)] for look in range(len(names))]
    axis, scale = alt.Axis(values=sorted(names_of(known, x)), format="d"), alt.Scale(type="log", nice=False, padding=12)
    up = {"title": "accuracy, %", "scale": alt.Scale(zero=False)}
    base = alt.Chart(chart_data(points), width=WIDTH, height=HEIGHT).encode(
        x=alt.X(f"{field(x)}:Q", title=x, axis=axis, scale=scale),
        color=alt.Color("method:N", title=None, scale=alt.Scale(domain=names), legend=legend),
    )
    lines = base.mark_line(strokeWidth=2).encode(y=alt.Y("accuracy:Q", **up))
    spreads = base.mark_rule(strokeWidth=2, opacity=0.6).encode(y=alt.Y("low:Q", **up), y2="high:Q")
    marks = base.mark_point(size=70, filled=True, opacity=1).encode(
        y=alt.Y("accuracy:Q", **up),
        shape=alt.Shape("method:N", title=None, scale=alt.Scale(domain=names, range=shapes), legend=legend),
        tooltip=[tooltip("method"), *(tooltip(key, number=True) for key in (x, "accuracy", "spread"))],
    )
    return alt.layer(lines, spreads, marks)


def learner_accuracies(rows: Sequence[Row], by: str = "method") -> Chart:
    """The accuracy of each learner, in panels, a row per `by`: circles sized by its samples, a tick at the mean.

    Rows: `{panel, by, learner, accuracy, samples}`.
    """
    alt = altair()
    names, panels = names_of(rows, by), names_of(rows, "panel")
    base = alt.Chart(chart_data(rows)).encode(y=alt.Y(f"{field(by)}:N", title=None, sort=names))
    across = {"title": "accuracy of a learner, %", "scale": alt.Scale(zero=False)}
    circles = base.mark_point(filled=True, opacity=0.65, color=_OTHER).encode(
        x=alt.X("accuracy:Q", **across),
        size=alt.Size("samples:Q", title="samples", scale=alt.Scale(range=[12, 400])),
        tooltip=[tooltip(by), tooltip("learner"), tooltip("samples", number=True), tooltip("accuracy", number=True)],
    )
    means = base.mark_tick(thickness=3, size=28, color=_BEST).encode(x=alt.X("mean(accuracy):Q", **across))
    layers = alt.layer(circles, means).properties(width=WIDTH // 3 - 50, height=40 * len(names))
    return layers.facet(facet=alt.Facet("panel:N", title=None, sort=panels), columns=len(panels))


def _numbered(
    rows: Sequence[Row], x: str, y: str, name: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Any, Any]:
    """Points with numbers, positions and legend entries; the line along the best of them; and both axes."""
    alt = altair()
    known = [row for row in rows if row[y] is not None and math.isfinite(row[y])]
    sent = [row[x] for row in known if row[x] > 0]
    low, high = min(sent, default=1.0), max(sent, default=1.0)
    nothing = low / max(high / low, 10.0) ** 0.15 if len(sent) < len(known) else low  # where 0 is drawn
    spare = max(high / nothing, 10.0) ** 0.06
    left, right = nothing / spare, high * spare
    values = [row[y] for row in known] or [0.0]
    air = 0.06 * (max(values) - min(values)) or 1.0
    bottom, top = min(values) - air, max(values) + air
    at = [max(row[x], nothing) for row in known]
    shares = [
        (math.log(place / left) / math.log(right / left), (top - row[y]) / (top - bottom))
        for place, row in zip(at, known, strict=True)
    ]
    offsets = place_labels(shares, [(width, _TALL) for width in _WIDTHS], _NUMBER)
    best = _pareto_optimal([(row[x], row[y]) for row in known])
    points = [
        {
            name: row[name],
            x: row[x],
            y: row[y],
            "place": place,
            "number": i + 1,
            "best": i in best,
            "right": dx,
            "down": dy,
        }
        | {"key": f"{i + 1}  {row[name]}"}
        for i, (row, place, (dx, dy)) in enumerate(zip(known, at, offsets, strict=True))
    ]
    line = [{"place": points[i]["place"], y: points[i][y]} for i in best]
    line += [{"place": right, y: line[-1][y]}] if line else []
    axis = bytes_axis(sent, nothing if len(sent) < len(known) else None)
    across = alt.X("place:Q", title=x, scale=alt.Scale(type="log", domain=[left, right], nice=False), axis=axis)
    up = alt.Y(f"{field(y)}:Q", title="accuracy, %", scale=alt.Scale(domain=[bottom, top], nice=False))
    return points, line, across, up


def _pareto_optimal(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of (cost, value) with a higher value than all that cost no more, from the cheapest on."""
    found: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not found or points[i][1] > points[found[-1]][1]:
            found.append(i)
    return found


def _class_medians(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The median of each class at each learner; close medians of one class are merged."""
    wide = {axis: max(row[axis] for row in rows) - min(row[axis] for row in rows) or 1.0 for axis in ("x", "y")}
    found: list[dict[str, Any]] = []
    for name, learner in product(names_of(rows, "class"), names_of(rows, "learner")):
        if not (own := [row for row in rows if row["class"] == name and row["learner"] == learner]):
            continue
        here = {axis: median(row[axis] for row in own) for axis in wide}
        same = [row for row in found if row["class"] == str(name)]
        if all(sum(abs(row[axis] - here[axis]) / wide[axis] for axis in wide) > _SAME_PLACE for row in same):
            found.append({"class": str(name), **here})
    return found


def _by_number(name: Any) -> tuple[bool, float, str]:
    """A sort key: numbers by value, then text."""
    number = str(name).removeprefix("-").replace(".", "", 1).isdecimal()
    return not number, float(name) if number else 0.0, str(name)
