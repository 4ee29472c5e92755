"""Charts of leakage: of layers by run, and of class means by the number of samples in a mean.

Color is never the only distinction: marks also differ in shape, and lines in dashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.presentation.chart import HEIGHT, WIDTH, Chart, Row, altair, chart_data, names_of, tooltip

_DASHES = ([1, 0], [6, 3], [2, 2])
_SHAPES = ("circle", "diamond", "square")


def layers_by_run(rows: Sequence[Row]) -> Chart:
    """The leakage of each run's layers, one panel per measure: marks with the standard deviation over learners.

    Rows: `{run, measure, kind, value, spread}`; spread may be None.
    """
    alt = altair()
    runs, kinds, measures = (names_of(rows, column) for column in ("run", "kind", "measure"))
    spreads = [row["spread"] or 0.0 for row in rows]
    points = [{**row, "low": row["value"] - s, "high": row["value"] + s} for row, s in zip(rows, spreads, strict=True)]
    axis = alt.Axis(labelAngle=-25, labelLimit=160)
    base = alt.Chart(chart_data(points)).encode(x=alt.X("run:N", title=None, sort=runs, axis=axis))
    look = {"title": None, "legend": alt.Legend(symbolSize=90, symbolOpacity=1)}
    color = alt.Color("kind:N", scale=alt.Scale(domain=kinds), **look)
    up = alt.Y("value:Q", title=None, scale=alt.Scale(zero=True))
    marks = base.mark_point(size=70, opacity=0.9, filled=True).encode(
        y=up,
        color=color,
        shape=alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=_repeated(_SHAPES, len(kinds))), **look),
        tooltip=[
            tooltip("run"),
            tooltip("measure"),
            tooltip("kind"),
            tooltip("value", number=True),
            tooltip("spread", number=True),
        ],
    )
    reach = base.transform_filter("datum.spread > 0").mark_rule(strokeWidth=2, opacity=0.6)
    layers = alt.layer(reach.encode(y=alt.Y("low:Q", title=None), y2="high:Q", color=color), marks)
    panels = layers.properties(width=WIDTH // 2 - 60, height=HEIGHT // 2)
    return panels.facet(facet=alt.Facet("measure:N", title=None, sort=measures), columns=2).resolve_scale(
        y="independent"
    )


def by_group_size(rows: Sequence[Row], title: str, level: float | None = None) -> Chart:
    """The leakage of means by the number of samples in each: colors for runs, dashes for kinds.

    Rows: `{run, kind, samples, value}`, samples as text. level: the value of chance.
    """
    alt = altair()
    runs, kinds, numbers = (names_of(rows, column) for column in ("run", "kind", "samples"))
    dashes = alt.Scale(domain=kinds, range=_repeated(_DASHES, len(kinds)))
    several = alt.Legend(symbolType="stroke") if len(kinds) > 1 else None
    dashed = alt.StrokeDash("kind:N", title=None, scale=dashes, legend=several)
    about = {"title": None, "legend": alt.Legend(symbolSize=70, symbolOpacity=1)}
    seen: dict[str, Any] = {
        "x": alt.X("samples:O", title="samples per mean", sort=numbers, axis=alt.Axis(labelAngle=0)),
        "y": alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
        "color": alt.Color("run:N", scale=alt.Scale(domain=runs), **about),
        "tooltip": [tooltip("run"), tooltip("kind"), tooltip("samples"), tooltip("value", number=True)],
    }
    base = alt.Chart(chart_data(rows))
    lines = base.mark_line(strokeWidth=2).encode(strokeDash=dashed, **seen)
    points = base.mark_point(filled=True, size=50, opacity=1)
    points = points.encode(shape=alt.Shape("run:N", scale=alt.Scale(domain=runs), **about), detail="kind:N", **seen)
    drawn = [lines, points]
    if level is not None:
        at = alt.Chart(chart_data([{"value": level}])).mark_rule(strokeDash=[3, 3], opacity=0.7, color="#8a8f96")
        drawn.insert(0, at.encode(y="value:Q"))
    return alt.layer(*drawn).properties(width=WIDTH, height=HEIGHT)


def _repeated(look: Sequence[Any], count: int) -> list[Any]:
    return [look[i % len(look)] for i in range(count)]
