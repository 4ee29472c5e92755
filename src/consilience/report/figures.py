"""Charts: each takes plain rows and gives an Altair chart, for a page, an SVG or a PNG alike.

Colour is never alone: lines have dashes too, points have shapes, cells and bars have words. The colours are those
of the theme that a chart is drawn with (`look.theme`), so that one chart serves light and dark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from consilience.errors import ConfigurationError

Row = Mapping[str, Any]
Names = Sequence[str] | None
"""All that a page shows, in order, so that each has the same colour and dashes in every chart; or those of the rows."""
Chart = Any
"""An Altair chart of any kind; Altair is an extra, and imported only where a chart is made."""

WIDTH, HEIGHT = 640, 300
_DASHES = ([1, 0], [8, 3], [2, 2], [8, 3, 2, 3], [14, 4], [4, 2], [12, 3, 2, 3, 2, 3], [16, 3, 5, 3], [1, 3])
_LABELLED = 600  # cells; more have no room for words
_SHORT = 0.18  # of the longest bar: a piece with no room for its name


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
    """What a byte buys: a named point for each way of sharing; who sends none is a level line.

    Rows: `{name, x, y}`, x in bytes.
    """
    alt = altair()
    sent, silent = [row for row in rows if row[x] > 0], [row for row in rows if not row[x] > 0]
    up = alt.Y(f"{_field(y)}:Q", title="accuracy, %", scale=alt.Scale(zero=False))
    axis = _sizes([row[x] for row in sent])
    across = alt.X(f"{_field(x)}:Q", title=x, scale=alt.Scale(type="log", padding=30), axis=axis)
    tips = [_tip(name), _tip(x, number=True), _tip(y, number=True)]
    points = alt.Chart(_data(sent)).encode(x=across, y=up, tooltip=tips)
    marks = points.mark_point(filled=True, size=60)
    words = points.mark_text(align="left", dx=8, dy=-4, fontSize=10).encode(text=f"{_field(name)}:N")
    levels = alt.Chart(_data(silent)).mark_rule(strokeDash=[6, 4]).encode(y=up, tooltip=tips)
    layers = [*[levels] * bool(silent), *[marks, words] * bool(sent)]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT * 3 // 2)


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
    """A map of features: colour and name say the class, shape says the learner. Rows: `{x, y, learner, class}`."""
    alt = altair()
    bare = {"title": None, "axis": alt.Axis(labels=False, ticks=False, grid=False), "scale": alt.Scale(zero=False)}
    axes = {"x": alt.X("x:Q", **bare), "y": alt.Y("y:Q", **bare)}
    base = alt.Chart(_data(rows), width=WIDTH, height=WIDTH * 3 // 4)
    points = base.mark_point(filled=True, opacity=0.6, size=30).encode(
        **axes, color="class:N", shape="learner:N", tooltip=["learner:N", "class:N"]
    )
    middles = alt.Chart(_data(_middles(rows)))
    halo = middles.mark_text(fontSize=18, fontWeight="bold", stroke="white", strokeWidth=4).encode(
        **axes, text="class:N"
    )
    names = middles.mark_text(fontSize=18, fontWeight="bold", color="black").encode(**axes, text="class:N")
    return alt.layer(points, halo, names)


# -- what charts have in common ----------------------------------------------------------------------------------------


def _data(rows: Sequence[Row]) -> Any:
    return altair().Data(values=[dict(row) for row in rows])


def _middles(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The mean place of each class."""
    found = []
    for name in _names(rows, "class"):
        own = [row for row in rows if row["class"] == name]
        found.append({"class": name} | {axis: sum(row[axis] for row in own) / len(own) for axis in ("x", "y")})
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


def _sizes(sent: Sequence[float]) -> Any:
    """A logarithmic axis of bytes in the words of the tables: 20 kB, 3 MB; few and round ones."""
    low, high = math.log10(min(sent, default=1.0)), math.log10(max(sent, default=1.0))
    decades = range(math.floor(low), math.ceil(high) + 1)
    values = [many * 10**power for power in decades for many in ((1, 2, 5) if high - low < 4 else (1,))]
    said = "replace(format(datum.value, '~s'), regexp('([kMGT]?)$'), ' $1B')"
    return altair().Axis(labelExpr=said, labelOverlap=True, values=[v for v in values if 10**low <= v <= 10**high])


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
