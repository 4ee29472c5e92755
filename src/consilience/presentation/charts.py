"""Charts of runs: each function takes rows and returns an Altair chart, for a page, an SVG or a PNG.

Color is never the only distinction: lines also have dashes, cells and bars have text. The colors come from the theme
(`theme.theme`) that the chart is drawn with, light or dark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from consilience.presentation.line_labels import can_label, direct_labels, end_labels, label_x

Names = Sequence[str] | None
"""All names of a page, in order, so that each has the same color and dashes in every chart; None: those of the rows."""

_DASHES = ([1, 0], [8, 3], [2, 2], [8, 3, 2, 3], [14, 4], [4, 2], [12, 3, 2, 3, 2, 3], [16, 3, 5, 3], [1, 3])
_MAX_LABELED = 600  # cells of a heatmap with text
_MAX_MARKED = 10  # points of a line that have a shape
_MIN_NAMED = 0.18  # share of the longest bar that has room for a name


def curves(
    rows: Sequence[Row],
    y: str = "accuracy",
    title: str = "accuracy, %",
    x: str = "round",
    by: str = "method",
    names: Names = None,
) -> Chart:
    """Lines over rounds, one per `by`, with a band if rows have `low` and `high`.

    Rows: `{by, x, y}` and optionally `low` and `high`.
    """
    alt = altair()
    reach = [row[key] for row in rows for key in (y, "low", "high") if row.get(key) is not None]
    labeled = can_label(rows, x, by) and min(reach) < max(reach)
    base, picked = _lines(rows, x, by, labeled)
    scale = alt.Scale(zero=False, **({"domain": [min(reach), max(reach)], "nice": False} if labeled else {}))
    look = _line_look(rows, names, by, labeled)
    line = base.mark_line(strokeWidth=2, point=_few(rows, x)).encode(
        y=alt.Y(f"{y}:Q", title=title, scale=scale),
        opacity=alt.condition(picked, alt.value(1), alt.value(0.1)),
        tooltip=[tooltip(by), tooltip(x, number=True), tooltip(y, number=True, title=title.removesuffix(", %"))],
        **look,
    )
    chart = line.add_params(picked)
    if any(row.get("low") is not None for row in rows):
        legend = None if labeled else _legend(rows, by)
        band = base.mark_area().encode(
            y=alt.Y("low:Q", title=title, scale=scale),
            y2="high:Q",
            fill=alt.Fill(f"{field(by)}:N", title=None, legend=legend, scale=_known(rows, names, by)),
            opacity=alt.condition(picked, alt.value(0.15), alt.value(0)),
        )
        chart = alt.layer(band, chart)
    if not labeled:
        return chart
    labels = end_labels(rows, (x, y, by), (min(reach), max(reach)), look["color"])
    return direct_labels(chart, labels, _legend(rows, by).to_dict())


def over_bytes(rows: Sequence[Row], names: Names = None, score: str = "accuracy") -> Chart:
    """Accuracy against bytes; a method that sends none is a horizontal line.

    Rows: `{method, bytes, accuracy}`, bytes: sent so far. score: the name of what stands under `accuracy`.
    """
    alt = altair()
    sent = [row for row in rows if row["bytes"] > 0]
    sending = {row["method"] for row in sent}
    silent = {row["method"]: row for row in rows if row["method"] not in sending}  # the last of each
    seen = {
        "y": alt.Y("accuracy:Q", title=f"{score}, %", scale=alt.Scale(zero=False)),
        "tooltip": [tooltip("method"), tooltip("bytes", number=True), tooltip("accuracy", number=True, title=score)],
        **_line_look(rows, names),
    }
    scale, axis = alt.Scale(type="log", nice=False), bytes_axis([row["bytes"] for row in sent])
    across = alt.X("bytes:Q", title="bytes sent so far, both ways", scale=scale, axis=axis)
    levels = alt.Chart(chart_data(list(silent.values()))).mark_rule(strokeWidth=2).encode(**seen)
    lines = alt.Chart(chart_data(sent)).mark_line(strokeWidth=2, point=_few(sent, "bytes")).encode(x=across, **seen)
    return alt.layer(*[levels] * bool(silent), *[lines] * bool(sent)).properties(width=WIDTH, height=HEIGHT)


def sent_by_round(rows: Sequence[Row], names: Names = None) -> Chart:
    """Bytes sent until each round, on a logarithmic scale. Rows: `{method, round, bytes}`, bytes above 0."""
    alt = altair()
    base, picked = _lines(rows, "round", "method")
    lines = base.mark_line(strokeWidth=2, point=_few(rows, "round")).encode(
        y=alt.Y(
            "bytes:Q",
            title="bytes sent so far, both ways",
            scale=alt.Scale(type="log"),
            axis=bytes_axis([row["bytes"] for row in rows]),
        ),
        opacity=alt.condition(picked, alt.value(1), alt.value(0.1)),
        tooltip=[tooltip("method"), tooltip("round", number=True), tooltip("bytes", number=True)],
        **_line_look(rows, names),
    )
    return lines.add_params(picked)


def spread(rows: Sequence[Row], names: Names = None, score: str = "accuracy") -> Chart:
    """The spread across learners: a tick per learner, and a box plot, by method.

    Rows: `{method, accuracy}`, one per learner, and optionally `learner`. score: the name of what stands under
    `accuracy`.
    """
    alt = altair()
    base = alt.Chart(chart_data(rows), width=WIDTH, height=34 * len(names_of(rows, "method"))).encode(
        x=alt.X("accuracy:Q", title=f"{score} of a learner, %", scale=alt.Scale(zero=False)),
        y=alt.Y("method:N", title=None, sort=names_of(rows, "method")),
        color=alt.Color("method:N", legend=None, scale=_known(rows, names)),
    )
    box = base.mark_boxplot(extent="min-max", size=18, opacity=0.45)
    tips = [tooltip("method"), tooltip("learner"), tooltip("accuracy", number=True, title=score)]
    return alt.layer(box, base.mark_tick(thickness=2, size=26).encode(tooltip=tips))


def class_counts_heatmap(rows: Sequence[Row], group: str = "class") -> Chart:
    """The samples of each class of each learner. Rows: `{learner, class, samples}`; group: what is called class."""
    return heatmap(rows, group, "learner", "samples", zero=True)


def losses(rows: Sequence[Row], names: Names = None) -> Chart:
    """Each loss term over rounds, one panel per term. Rows: `{method, term, round, value}`."""
    alt = altair()
    base, picked = _lines(rows, "round", "method")
    lines = base.mark_line(strokeWidth=2, point=_few(rows, "round")).encode(
        y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),
        opacity=alt.condition(picked, alt.value(1), alt.value(0.1)),
        tooltip=[tooltip("method"), tooltip("term"), tooltip("round", number=True), tooltip("value", number=True)],
        **_line_look(rows, names),
    )
    panels = (
        lines.add_params(picked)
        .properties(width=WIDTH // 2 - 40, height=HEIGHT // 2)
        .facet(facet=alt.Facet("term:N", title=None, sort=names_of(rows, "term")), columns=2)
    )
    return panels.resolve_scale(y="independent")


def mutual_information(rows: Sequence[Row], names: Names = None) -> Chart:
    """A lower bound on mutual information, on training samples. Rows: `{method, round, mutual_information}`."""
    title = "mutual information, lower bound on training samples (nats)"
    return curves(rows, y="mutual_information", title=title, names=names)


def heatmap(rows: Sequence[Row], x: str, y: str, value: str, title: str | None = None, zero: bool = False) -> Chart:
    """A value for each pair of `x` and `y`, as color and text; with negative values the color scale is centered at 0.

    Rows: `{x, y, value}`, in the order of the cells. `zero`: colors start at 0.
    """
    alt = altair()
    columns, lines = names_of(rows, x), names_of(rows, y)
    scale, pale = _shades([float(row[value]) for row in rows if row[value] is not None], value, zero)
    base = alt.Chart(chart_data(rows), width=WIDTH, height=26 * len(lines)).encode(
        x=alt.X(f"{field(x)}:O", title=x, sort=columns, axis=alt.Axis(labelAngle=0)),
        y=alt.Y(f"{field(y)}:O", title=y, sort=lines),
    )
    cells = base.mark_rect().encode(
        color=alt.Color(f"{field(value)}:Q", title=title or value, scale=scale, legend=alt.Legend(gradientLength=200)),
        tooltip=[tooltip(x), tooltip(y), tooltip(value, number=True)],
    )
    if len(rows) > _MAX_LABELED:
        return cells
    words = base.mark_text(fontSize=11).encode(
        text=alt.Text(f"{field(value)}:Q", format=".3~g"),
        color=alt.condition(pale, alt.value("black"), alt.value("white")),
    )
    return alt.layer(cells, words)


def probes(rows: Sequence[Row], names: Names = None, by: str = "probe", score: str = "accuracy") -> Chart:
    """The accuracy of each probe over rounds: a method has a color and shape, a probe has dashes.

    Rows: `{method, by, round, accuracy}`; `by`: the column with the probe, or with another kind of prediction.
    """
    alt = altair()
    base, picked = _lines(rows, "round", "method")
    shown = {
        "y": alt.Y("accuracy:Q", title=f"{score}, %", scale=alt.Scale(zero=False)),
        "opacity": alt.condition(picked, alt.value(1), alt.value(0.1)),
        "tooltip": [
            tooltip("method"),
            tooltip(by),
            tooltip("round", number=True),
            tooltip("accuracy", number=True, title=score),
        ],
    }
    about = {"title": None, "legend": alt.Legend(values=names_of(rows, "method"), symbolSize=70, symbolOpacity=1)}
    color = alt.Color("method:N", scale=_known(rows, names), **about)
    dashed = alt.Scale(domain=names_of(rows, by), range=list(_DASHES))
    lines = base.mark_line(strokeWidth=2).encode(
        color=color,
        strokeDash=alt.StrokeDash(f"{field(by)}:N", title=None, scale=dashed, legend=alt.Legend(symbolType="stroke")),
        **shown,
    )
    rounds = sorted(names_of(rows, "round"))
    marked = rounds[:: -(-len(rounds) // _MAX_MARKED)]
    points = base.transform_filter(alt.FieldOneOfPredicate("round", marked)).mark_point(filled=True, size=50)
    shaped = alt.Shape("method:N", scale=_known(rows, names), **about)
    return alt.layer(
        lines.add_params(picked), points.encode(color=color, shape=shaped, detail=f"{field(by)}:N", **shown)
    )


def matrices(rows: Sequence[Row], classes: Sequence[str]) -> Chart:
    """Similarity matrices, one square per model with a common color scale.

    Rows: `{whose, row, similar}`, similar: a value per column; classes: of the samples, in order.
    """
    alt = altair()
    values = [value for row in rows for value in row["similar"] if value is not None]
    names = list(dict.fromkeys(classes))
    middles = [classes.index(each) + (classes.count(each) - 1) // 2 for each in names]
    called = json.dumps(list(classes))
    axis = alt.Axis(
        values=middles,
        labelExpr=f"{called}[datum.value]",
        labelAngle=0,
        labelOverlap=True,
        labelLimit=60,
        ticks=False,
        domain=False,
    )
    scale = alt.Scale(scheme="viridis", domain=[min(values, default=0.0), max(values, default=1.0)])
    whole = alt.RelativeBandSize(1.15)  # of a cell: else the background shows between cells
    cells = (
        alt.Chart(chart_data(rows), width=WIDTH // 3 - 20, height=WIDTH // 3)
        .transform_flatten(["similar"])
        .transform_window(column="row_number()", groupby=["whose", "row"])
        .transform_calculate(column="datum.column - 1", a=f"{called}[datum.row]", b=f"{called}[datum.column]")
        .mark_rect(aria=False, width=whole, height=whole)  # thousands of cells: no text for screen readers
        .encode(
            x=alt.X("column:O", title=None, axis=axis),
            y=alt.Y("row:O", title=None, axis=axis),
            color=alt.Color("similar:Q", title="similarity", scale=scale, legend=alt.Legend(gradientLength=200)),
            tooltip=[
                alt.Tooltip("a:N", title="class of the row"),
                alt.Tooltip("b:N", title="class of the column"),
                tooltip("similar", number=True),
            ],
        )
    )
    panels = cells.facet(facet=alt.Facet("whose:N", title=None, sort=names_of(rows, "whose")), columns=3)
    return panels.resolve_axis(x="independent", y="independent")  # else an axis is drawn where no panel is


def phases(rows: Sequence[Row]) -> Chart:
    """The time of each phase, a stacked bar per method. Rows: `{method, phase, seconds}`."""
    alt = altair()
    names, parts = names_of(rows, "method"), names_of(rows, "phase")
    longest = max((sum(r["seconds"] for r in rows if r["method"] == name) for name in names), default=0.0)
    pieces = [
        dict(row) | {"order": parts.index(row["phase"]), "word": row["phase"] * (row["seconds"] > _MIN_NAMED * longest)}
        for row in rows
    ]
    base = alt.Chart(chart_data(pieces), width=WIDTH, height=30 * len(names)).encode(
        x=alt.X("seconds:Q", title="seconds", stack="zero"),
        y=alt.Y("method:N", title=None, sort=names),
        order=alt.Order("order:Q"),
    )
    light = ["#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7"]  # black text is readable on each
    bars = base.mark_bar(stroke="black", strokeWidth=0.5).encode(
        color=alt.Color("phase:N", title=None, sort=parts, scale=alt.Scale(domain=parts, range=light)),
        tooltip=[tooltip("method"), tooltip("phase"), tooltip("seconds", number=True)],
    )
    words = base.mark_text(color="black").encode(
        x=alt.X("seconds:Q", stack="zero", bandPosition=0.5), text="word:N", detail="phase:N"
    )
    return alt.layer(bars, words)


# -- common parts ------------------------------------------------------------------------------------------


def _lines(rows: Sequence[Row], x: str, by: str, labeled: bool = False) -> tuple[Chart, Any]:
    """A chart for lines over `x`, and a selection of lines: by the legend, or by a click on a line that is labeled."""
    alt = altair()
    values = sorted(names_of(rows, x))
    whole = {"format": "d"} if all(float(value).is_integer() for value in values) else {}  # 1, 2, 3 and not 1.0
    axis = alt.Axis(values=values, **whole) if _few(rows, x) else alt.Axis(tickMinStep=1, **whole)
    across = {"title": x, "axis": axis, "scale": alt.Scale(zero=False, nice=False)}
    base = alt.Chart(chart_data(rows), width=WIDTH, height=HEIGHT).encode(
        x=alt.X(f"{field(x)}:Q", **(label_x(rows, x, by) if labeled else across))
    )
    return base, alt.selection_point(name="picked", fields=[by], **({} if labeled else {"bind": "legend"}))


def _line_look(rows: Sequence[Row], names: Names, by: str = "method", labeled: bool = False) -> dict[str, Any]:
    """Colors and dashes by name. There is one more dash than colors, so that repeated colors have other dashes."""
    alt = altair()
    about = {"title": None, "legend": None if labeled else _legend(rows, by)}
    dashed = _known(rows, names, by, range=_DASHES)
    return {
        "color": alt.Color(f"{field(by)}:N", scale=_known(rows, names, by), **about),
        "strokeDash": alt.StrokeDash(f"{field(by)}:N", scale=dashed, **about),
    }


def _legend(rows: Sequence[Row], by: str) -> Any:
    """A legend of lines; identical legends of a chart are merged."""
    return altair().Legend(values=names_of(rows, by), symbolType="stroke", symbolOpacity=1)


def _known(rows: Sequence[Row], names: Names, by: str = "method", **more: Any) -> Any:
    """A scale of all names, whether or not this chart shows them."""
    return altair().Scale(domain=list(names_of(rows, by) if names is None else names), **more)


def _few(rows: Sequence[Row], x: str) -> bool:
    """Whether lines have at most ten points, which are then marked."""
    return len({row[x] for row in rows}) <= 10


def _shades(values: Sequence[float], value: str, zero: bool) -> tuple[Any, str]:
    """A color-blind safe color scale, and the condition under which black text is readable on it."""
    alt = altair()
    low, high = min(values, default=0.0), max(values, default=0.0)
    here = f"datum[{json.dumps(value)}]"
    if low < 0:
        far = max(-low, high)
        return alt.Scale(scheme="blueorange", domain=[-far, far]), f"abs({here}) < {0.6 * far}"
    low = 0.0 if zero else low
    high = high if high > low else low + 1.0
    return alt.Scale(scheme="viridis", domain=[low, high]), f"{here} > {low + 0.6 * (high - low)}"
