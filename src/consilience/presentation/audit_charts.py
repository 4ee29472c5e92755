"""Charts of audits: the ROC of attacks, with logarithmic axes, since few false alarms are what matters."""

from __future__ import annotations

from collections.abc import Sequence

from consilience.presentation.chart import HEIGHT, WIDTH, Chart, Row, altair, chart_data, names_of, tooltip

_DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2])


def log_roc(rows: Sequence[Row], lowest: float) -> Chart:
    """True over false positive rates, a line for each run (color) and target (dashes), beside those of chance.

    Rows: `{run, target, false, true}`. lowest: rates below it are not drawn.
    """
    alt = altair()
    runs, targets = names_of(rows, "run"), names_of(rows, "target")
    dashes = alt.Scale(domain=targets, range=[_DASHES[i % len(_DASHES)] for i in range(len(targets))])
    drawn = [row for row in rows if row["false"] >= lowest and row["true"] >= lowest]
    scale = alt.Scale(type="log", domain=[lowest, 1.0], nice=False)
    axis = alt.Axis(format="~%", tickCount=5)
    lines = (
        alt.Chart(chart_data(drawn))
        .mark_line(strokeWidth=2, interpolate="step-after")
        .encode(
            x=alt.X("false:Q", title="false positive rate", scale=scale, axis=axis),
            y=alt.Y("true:Q", title="true positive rate", scale=scale, axis=axis),
            color=alt.Color("run:N", title=None, scale=alt.Scale(domain=runs)),
            strokeDash=alt.StrokeDash("target:N", title=None, scale=dashes, legend=alt.Legend(symbolType="stroke")),
            tooltip=[
                tooltip("run"),
                tooltip("target"),
                tooltip("false", number=True),
                tooltip("true", number=True),
            ],
        )
    )
    ends = chart_data([{"false": lowest, "true": lowest}, {"false": 1.0, "true": 1.0}])
    chance = alt.Chart(ends).mark_line(strokeDash=[3, 3], opacity=0.7, color="#8a8f96")
    chance = chance.encode(x=alt.X("false:Q", scale=scale), y=alt.Y("true:Q", scale=scale))
    return alt.layer(chance, lines).properties(width=WIDTH, height=HEIGHT)
