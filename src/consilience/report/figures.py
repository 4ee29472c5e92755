"""Charts: each takes plain rows and gives an Altair chart, for a page, an SVG or a PNG alike.

Colour is never alone: lines have dashes too, points have shapes, cells and bars have words. The colours are those
of the theme that a chart is drawn with (`look.theme`), so that one chart serves light and dark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any

from consilience.errors import ConfigurationError
from consilience.report.placement import beside

Row = Mapping[str, Any]
Names = Sequence[str] | None
"""All that a page shows, in order, so that each has the same colour and dashes in every chart; or those of the rows."""
Chart = Any
"""An Altair chart of any kind; Altair is an extra, and imported only where a chart is made."""

WIDTH, HEIGHT = 640, 300
_DASHES = ([1, 0], [8, 3], [2, 2], [8, 3, 2, 3], [14, 4], [4, 2], [12, 3, 2, 3, 2, 3], [16, 3, 5, 3], [1, 3])
_LABELLED = 600  # cells; more have no room for words
_SHORT = 0.18  # of the longest bar: a piece with no room for its name
_ON_PAPER = ("halo", "name")  # words in two layers, the lower one as paper, so that they are read on anything
_BEST, _OTHER = "#D55E00", "#7d8793"  # seen by day and by night
_CLOSED = (  # shapes that can be filled or hollow; there are fewer than colours, so that the two pair up anew
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "M0,-1L0.26,-0.36L0.95,-0.31L0.42,0.14L0.59,0.81L0,0.45L-0.59,0.81L-0.42,0.14L-0.95,-0.31L-0.26,-0.36Z",
)
_TOGETHER = 0.12  # of the map: a class's middles at two learners that need one name
_TALL = HEIGHT * 3 // 2
_WIDTHS = (260, WIDTH, 860)  # of a chart on a phone, in a file, in a page
_NUMBER = (17, 14)  # pixels of two figures and the air about them


def altair() -> Any:
    """Altair, or how to get it."""
    try:
        import altair
    except ImportError as error:
        raise ConfigurationError("charts need Altair and vl-convert: pip install consilience[report]") from error
    return altair


def curves(
    rows: Sequence[Row],
    y: str = "accuracy",
    title: str = "accuracy, %",
    x: str = "round",
    by: str = "method",
    names: Names = None,
) -> Chart:
    """Lines over rounds, one for each `by`; where rows have `low` and `high`, a band about them.

    Rows: `{by, x, y}` and perhaps `low` and `high`.
    """
    alt = altair()
    base, picked = _lines(rows, x, by)
    line = base.mark_line(strokeWidth=2, point=_few(rows, x)).encode(
        y=alt.Y(f"{y}:Q", title=title, scale=alt.Scale(zero=False)),
        opacity=alt.condition(picked, alt.value(1), alt.value(0.1)),
        tooltip=[_tip(by), _tip(x, number=True), _tip(y, number=True)],
        **_line_look(rows, names, by),
    )
    if all(row.get("low") is None for row in rows):
        return line.add_params(picked)
    band = base.mark_area().encode(
        y=alt.Y("low:Q", title=title, scale=alt.Scale(zero=False)),
        y2="high:Q",
        fill=alt.Fill(f"{_field(by)}:N", title=None, legend=_legend(rows, by), scale=_known(rows, names, by)),
        opacity=alt.condition(picked, alt.value(0.15), alt.value(0)),
    )
    return alt.layer(band, line.add_params(picked))


def over_bytes(rows: Sequence[Row], names: Names = None) -> Chart:
    """Accuracy against the bytes it took; who sends none is a level line.

    Rows: `{method, bytes, accuracy}`, bytes all that was sent so far.
    """
    alt = altair()
    sent = [row for row in rows if row["bytes"] > 0]
    talking = {row["method"] for row in sent}
    silent = {row["method"]: row for row in rows if row["method"] not in talking}  # the last of each
    seen = {
        "y": alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False)),
        "tooltip": [_tip("method"), _tip("bytes", number=True), _tip("accuracy", number=True)],
        **_line_look(rows, names),
    }
    scale, axis = alt.Scale(type="log", nice=False), _sizes([row["bytes"] for row in sent])
    across = alt.X("bytes:Q", title="bytes sent so far, both ways", scale=scale, axis=axis)
    levels = alt.Chart(_data(list(silent.values()))).mark_rule(strokeWidth=2).encode(**seen)
    lines = alt.Chart(_data(sent)).mark_line(strokeWidth=2, point=_few(sent, "bytes")).encode(x=across, **seen)
    return alt.layer(*[levels] * bool(silent), *[lines] * bool(sent)).properties(width=WIDTH, height=HEIGHT)


def frontier(rows: Sequence[Row], x: str, y: str, name: str) -> Chart:
    """What a byte buys: a numbered point for each way of sharing, and a line along those that nobody betters for less.

    Rows: `{name, x, y}`, x in bytes. The key says what a number stands for. Who sends nothing stands at 0, which the
    axis of powers has left of everybody else.
    """
    alt = altair()
    told, line, across, up = _numbered(rows, x, y, name)
    keys = {row["key"]: row["best"] for row in told}
    legend = alt.Legend(symbolSize=90, symbolOpacity=1)
    colours = alt.Scale(domain=list(keys), range=[_BEST if best else _OTHER for best in keys.values()])
    shapes = alt.Scale(domain=list(keys), range=["circle" if best else "diamond" for best in keys.values()])
    tips = [_tip(name), _tip(x, number=True), _tip(y, number=True)]
    stairs = alt.Chart(_data(line)).mark_line(interpolate="step-after", color=_BEST, opacity=0.6).encode(x=across, y=up)
    points = alt.Chart(_data(told)).encode(x=across, y=up, tooltip=tips)
    marks = points.mark_point(filled=True, size=70, opacity=1).encode(
        color=alt.Color("key:N", title=None, scale=colours, legend=legend),
        shape=alt.Shape("key:N", title=None, scale=shapes, legend=legend),
    )
    right, down = alt.expr("datum.right"), alt.expr("datum.down")
    words = [points.mark_text(style=s, dx=right, dy=down, fontSize=11).encode(text="number:N") for s in _ON_PAPER]
    return alt.layer(stairs, marks, *words).properties(width=WIDTH, height=_TALL)


def spread(rows: Sequence[Row], names: Names = None) -> Chart:
    """How far learners are from each other: a stroke for each, and a box over them, by method.

    Rows: `{method, accuracy}`, one for each learner, and perhaps `learner`.
    """
    alt = altair()
    base = alt.Chart(_data(rows), width=WIDTH, height=34 * len(_names(rows, "method"))).encode(
        x=alt.X("accuracy:Q", title="accuracy of a learner, %", scale=alt.Scale(zero=False)),
        y=alt.Y("method:N", title=None, sort=_names(rows, "method")),
        color=alt.Color("method:N", legend=None, scale=_known(rows, names)),
    )
    box = base.mark_boxplot(extent="min-max", size=18, opacity=0.45)
    tips = [_tip("method"), _tip("learner"), _tip("accuracy", number=True)]
    return alt.layer(box, base.mark_tick(thickness=2, size=26).encode(tooltip=tips))


def levels(rows: Sequence[Row]) -> Chart:
    """What each method reached, in panels: the first kind as circles with their spread, others as diamonds.

    Rows: `{panel, method, kind, accuracy, spread}`.
    """
    alt = altair()
    kinds, panels = _names(rows, "kind"), _names(rows, "panel")
    told = [{**row, "low": row["accuracy"] - row["spread"], "high": row["accuracy"] + row["spread"]} for row in rows]
    y = alt.Y("method:N", title=None, sort=_names(rows, "method"))
    across = {"title": "accuracy, %", "scale": alt.Scale(zero=False)}
    base = alt.Chart(_data(told)).encode(y=y)
    spreads = base.transform_filter("datum.spread > 0").mark_rule(strokeWidth=2, color=_BEST, opacity=0.6)
    shapes = alt.Scale(domain=kinds, range=["circle", *["diamond"] * (len(kinds) - 1)])
    colours = alt.Scale(domain=kinds, range=[_BEST, *[_OTHER] * (len(kinds) - 1)])
    marks = base.mark_point(size=60, opacity=1, filled=True).encode(
        x=alt.X("accuracy:Q", **across),
        color=alt.Color("kind:N", title=None, scale=colours),
        shape=alt.Shape("kind:N", title=None, scale=shapes),
        tooltip=[_tip("method"), _tip("kind"), _tip("accuracy", number=True), _tip("spread", number=True)],
    )
    layers = alt.layer(spreads.encode(x=alt.X("low:Q", **across), x2="high:Q"), marks)
    sized = layers.properties(width=WIDTH // 3 - 50, height=22 * len(_names(rows, "method")))
    facet = alt.Facet("panel:N", title=None, sort=panels)
    return sized.facet(facet=facet, columns=len(panels)).resolve_scale(x="independent")


def partition(rows: Sequence[Row]) -> Chart:
    """Who has how many samples of which class. Rows: `{learner, class, samples}`."""
    return heatmap(rows, "class", "learner", "samples", zero=True)


def losses(rows: Sequence[Row], names: Names = None) -> Chart:
    """Each term of the loss over rounds, in a panel of its own. Rows: `{method, term, round, value}`."""
    alt = altair()
    base, picked = _lines(rows, "round", "method")
    lines = base.mark_line(strokeWidth=2, point=_few(rows, "round")).encode(
        y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),
        opacity=alt.condition(picked, alt.value(1), alt.value(0.1)),
        tooltip=[_tip("method"), _tip("term"), _tip("round", number=True), _tip("value", number=True)],
        **_line_look(rows, names),
    )
    panels = (
        lines.add_params(picked)
        .properties(width=WIDTH // 2 - 40, height=HEIGHT // 2)
        .facet(facet=alt.Facet("term:N", title=None, sort=_names(rows, "term")), columns=2)
    )
    return panels.resolve_scale(y="independent")


def bound(rows: Sequence[Row], names: Names = None) -> Chart:
    """What learners' representations say of each other at least. Rows: `{method, round, mutual_information}`."""
    return curves(rows, y="mutual_information", title="mutual information, at least (nats)", names=names)


def heatmap(rows: Sequence[Row], x: str, y: str, value: str, title: str | None = None, zero: bool = False) -> Chart:
    """A value for each pair of `x` and `y`, in colour and in words; with values below 0 the middle is 0.

    Rows: `{x, y, value}`; the order of the rows is the order of the cells. `zero`: colours begin at 0.
    """
    alt = altair()
    columns, lines = _names(rows, x), _names(rows, y)
    scale, pale = _shades([float(row[value]) for row in rows if row[value] is not None], value, zero)
    base = alt.Chart(_data(rows), width=WIDTH, height=26 * len(lines)).encode(
        x=alt.X(f"{_field(x)}:O", title=x, sort=columns, axis=alt.Axis(labelAngle=0)),
        y=alt.Y(f"{_field(y)}:O", title=y, sort=lines),
    )
    cells = base.mark_rect().encode(
        color=alt.Color(f"{_field(value)}:Q", title=title or value, scale=scale, legend=alt.Legend(gradientLength=200)),
        tooltip=[_tip(x), _tip(y), _tip(value, number=True)],
    )
    if len(rows) > _LABELLED:
        return cells
    words = base.mark_text(fontSize=11).encode(
        text=alt.Text(f"{_field(value)}:Q", format=".3~g"),
        color=alt.condition(pale, alt.value("black"), alt.value("white")),
    )
    return alt.layer(cells, words)


def phases(rows: Sequence[Row]) -> Chart:
    """Where the time went, a bar for each method in pieces. Rows: `{method, phase, seconds}`."""
    alt = altair()
    names, parts = _names(rows, "method"), _names(rows, "phase")
    longest = max((sum(r["seconds"] for r in rows if r["method"] == name) for name in names), default=0.0)
    told = [
        dict(row) | {"order": parts.index(row["phase"]), "word": row["phase"] * (row["seconds"] > _SHORT * longest)}
        for row in rows
    ]
    base = alt.Chart(_data(told), width=WIDTH, height=30 * len(names)).encode(
        x=alt.X("seconds:Q", title="seconds", stack="zero"),
        y=alt.Y("method:N", title=None, sort=names),
        order=alt.Order("order:Q"),
    )
    light = ["#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7"]  # dark words can be read on each
    bars = base.mark_bar(stroke="black", strokeWidth=0.5).encode(
        color=alt.Color("phase:N", title=None, sort=parts, scale=alt.Scale(domain=parts, range=light)),
        tooltip=[_tip("method"), _tip("phase"), _tip("seconds", number=True)],
    )
    words = base.mark_text(color="black").encode(
        x=alt.X("seconds:Q", stack="zero", bandPosition=0.5), text="word:N", detail="phase:N"
    )
    return alt.layer(bars, words)


def scatter(rows: Sequence[Row]) -> Chart:
    """A map of features: colour, shape and name say the class; the first learner's are filled, the others' are hollow.

    Rows: `{x, y, learner, class}`.
    """
    alt = altair()
    bare = {"title": None, "axis": alt.Axis(labels=False, ticks=False, grid=False), "scale": alt.Scale(zero=False)}
    axes = {"x": alt.X("x:Q", **bare), "y": alt.Y("y:Q", **bare)}
    classes = sorted(_names(rows, "class"), key=_by_number)
    learners = sorted(_names(rows, "learner"), key=_by_number)
    legend = alt.Legend(symbolSize=90, symbolOpacity=1)
    colours = alt.Scale(domain=[str(name) for name in classes], range="ordinal")
    look = {"title": "class", "scale": colours, "legend": legend}
    shapes = alt.Scale(domain=[str(name) for name in classes], range=list(_CLOSED))
    filled = alt.Scale(domain=learners, range=[0.8, *[0.0] * (len(learners) - 1)])
    points = alt.Chart(_data([{**row, "class": str(row["class"])} for row in rows])).mark_point(
        size=36, strokeWidth=1.2
    )
    points = points.encode(
        **axes,
        fill=alt.Fill("class:N", **look),
        stroke=alt.Stroke("class:N", **look),
        shape=alt.Shape("class:N", **look | {"scale": shapes}),
        fillOpacity=alt.FillOpacity("learner:O", scale=filled, legend=None),
        tooltip=["learner:N", "class:N"],
    )
    middles = alt.Chart(_data(_middles(rows))).encode(**axes, text="class:N")
    names = [middles.mark_text(style=style, fontSize=15, fontWeight="bold") for style in _ON_PAPER]
    said = f"filled: learner {learners[0]}" + "".join(f"; hollow: learner {who}" for who in learners[1:])
    title = alt.Title(said, anchor="start", fontSize=11, fontWeight="normal")
    return alt.layer(points, *names).properties(width=WIDTH, height=WIDTH * 3 // 4, title=title)


# -- what charts have in common ----------------------------------------------------------------------------------------


def _data(rows: Sequence[Row]) -> Any:
    return altair().Data(values=[dict(row) for row in rows])


def _middles(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The middle of each class at each learner; those of one class that lie together are one."""
    wide = {axis: max(row[axis] for row in rows) - min(row[axis] for row in rows) or 1.0 for axis in ("x", "y")}
    found: list[dict[str, Any]] = []
    for name, learner in product(_names(rows, "class"), _names(rows, "learner")):
        if not (own := [row for row in rows if row["class"] == name and row["learner"] == learner]):
            continue
        here = {axis: median(row[axis] for row in own) for axis in wide}
        same = [row for row in found if row["class"] == str(name)]
        if all(sum(abs(row[axis] - here[axis]) / wide[axis] for axis in wide) > _TOGETHER for row in same):
            found.append({"class": str(name), **here})
    return found


def _by_number(name: Any) -> tuple[bool, float, str]:
    """Numbers by their size, then words by theirs."""
    number = str(name).removeprefix("-").replace(".", "", 1).isdecimal()
    return not number, float(name) if number else 0.0, str(name)


def _numbered(
    rows: Sequence[Row], x: str, y: str, name: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Any, Any]:
    """Points with their numbers, places and keys; the line along the best of them; and the axes of both."""
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
    offsets = beside(shares, [(width, _TALL) for width in _WIDTHS], _NUMBER)
    best = _unbettered([(row[x], row[y]) for row in known])
    told = [
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
    line = [{"place": told[i]["place"], y: told[i][y]} for i in best]
    line += [{"place": right, y: line[-1][y]}] if line else []
    axis = _sizes(sent, nothing if len(sent) < len(known) else None)
    across = alt.X("place:Q", title=x, scale=alt.Scale(type="log", domain=[left, right], nice=False), axis=axis)
    up = alt.Y(f"{_field(y)}:Q", title="accuracy, %", scale=alt.Scale(domain=[bottom, top], nice=False))
    return told, line, across, up


def _unbettered(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which of (cost, worth) are worth more than all that cost no more, from the cheapest on."""
    found: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not found or points[i][1] > points[found[-1]][1]:
            found.append(i)
    return found


def _names(rows: Sequence[Row], column: str) -> list[Any]:
    """What stands in a column, each once, in the order of the rows."""
    return list(dict.fromkeys(row[column] for row in rows))


def _lines(rows: Sequence[Row], x: str, by: str) -> tuple[Chart, Any]:
    """A chart for lines over `x`, and the choice of some of them in its legend."""
    alt = altair()
    axis = alt.Axis(values=sorted(_names(rows, x))) if _few(rows, x) else alt.Axis(tickMinStep=1)
    base = alt.Chart(_data(rows), width=WIDTH, height=HEIGHT).encode(
        x=alt.X(f"{_field(x)}:Q", title=x, axis=axis, scale=alt.Scale(zero=False, nice=False))
    )
    return base, alt.selection_point(name="picked", fields=[by], bind="legend")


def _line_look(rows: Sequence[Row], names: Names, by: str = "method") -> dict[str, Any]:
    """Colours and dashes by name. There is one more dash than colours: where both begin again they pair up anew."""
    alt = altair()
    about = {"title": None, "legend": _legend(rows, by)}
    dashed = _known(rows, names, by, range=_DASHES)
    return {
        "color": alt.Color(f"{_field(by)}:N", scale=_known(rows, names, by), **about),
        "strokeDash": alt.StrokeDash(f"{_field(by)}:N", scale=dashed, **about),
    }


def _legend(rows: Sequence[Row], by: str) -> Any:
    """A legend of lines; all of a chart's must be alike to become one."""
    return altair().Legend(values=_names(rows, by), symbolType="stroke", symbolOpacity=1)


def _known(rows: Sequence[Row], names: Names, by: str = "method", **more: Any) -> Any:
    """A scale in which each name has its place, whether or not this chart shows it."""
    return altair().Scale(domain=list(_names(rows, by) if names is None else names), **more)


def _few(rows: Sequence[Row], x: str) -> bool:
    """Whether lines have so few points that each should be seen."""
    return len({row[x] for row in rows}) <= 10


def _tip(name: str, number: bool = False) -> Any:
    alt = altair()
    field = _field(name)
    return alt.Tooltip(f"{field}:Q", title=name, format=".4~g") if number else alt.Tooltip(f"{field}:N", title=name)


def _sizes(sent: Sequence[float], nothing: float | None = None) -> Any:
    """A logarithmic axis of bytes in the words of the tables: 20 kB, 3 MB; few and round ones. nothing: where 0 is."""
    low, high = math.log10(min(sent, default=1.0)), math.log10(max(sent, default=1.0))
    decades = range(math.floor(low), math.ceil(high) + 1)
    values = [many * 10**power for power in decades for many in ((1, 2, 5) if high - low < 4 else (1,))]
    kept = [value for value in values if sent and 10**low <= value <= 10**high]
    said = "replace(format(datum.value, '~s'), regexp('([kMGT]?)$'), ' $1B')"
    if nothing is not None:
        said, kept = f"datum.value < {10**low * 0.999!r} ? '0' : {said}", [nothing, *kept]
    return altair().Axis(labelExpr=said, labelOverlap=True, values=kept)


def _field(name: str) -> str:
    """A column's name where dots, brackets and colons would mean something else."""
    return name.replace(".", r"\.").replace("[", r"\[").replace("]", r"\]").replace(":", r"\:")


def _shades(values: Sequence[float], value: str, zero: bool) -> tuple[Any, str]:
    """A scale of colours that the colour-blind tell apart, and where it is pale enough for black words."""
    alt = altair()
    low, high = min(values, default=0.0), max(values, default=0.0)
    here = f"datum[{json.dumps(value)}]"
    if low < 0:
        far = max(-low, high)
        return alt.Scale(scheme="blueorange", domain=[-far, far]), f"abs({here}) < {0.6 * far}"
    low = 0.0 if zero else low
    high = high if high > low else low + 1.0
    return alt.Scale(scheme="viridis", domain=[low, high]), f"{here} > {low + 0.6 * (high - low)}"
