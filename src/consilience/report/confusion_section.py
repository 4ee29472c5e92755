"""Confusion matrices: which class is taken for which, one heatmap per run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from consilience.presentation import charts
from consilience.report.runs import ReportedRun
from consilience.report.section import Section


def confusion_sections(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """A heatmap for every run that recorded its confusion matrix."""
    for run in runs:
        if rows := list(_rows(run.summary.get("confusion"))):
            text = (
                "Of the test samples of each class, the share in percent that is predicted as each class, after the "
                "last evaluated round; all learners and seeds together."
            )
            chart = charts.heatmap(rows, x="predicted", y="class", value="share", title="share, %", zero=True)
            name = f"{prefix}confusion-{run.label}"
            yield Section(f"Confusion matrix, {run.label}", text=text, figure=chart, name=name)


def _rows(matrix: Any) -> Iterator[dict[str, Any]]:
    """Cells of a matrix of counts, in percent of their row; none where it is missing or damaged."""
    try:
        counts = [[int(count) for count in row] for row in matrix or ()]
    except (TypeError, ValueError):
        return
    if any(len(row) != len(counts) for row in counts):
        return
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            yield {"class": i, "predicted": j, "share": round(100 * count / max(sum(row), 1), 1)}
