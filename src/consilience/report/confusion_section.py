"""Confusion matrices: which class is taken for which, one heatmap per run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from consilience.presentation import charts
from consilience.report.runs import ReportedRun
from consilience.report.section import Section

_MAX_CLASSES = 60  # rows and columns of a heatmap


def confusion_sections(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """A heatmap for every run that recorded its confusion matrix."""
    for run in runs:
        names = run.provenance["labels"] if run.provenance is not None else ()
        if rows := list(_rows(run.summary.get("confusion"), names)):
            text = (
                "Of the test samples of each class, the share in percent that is predicted as each class, after the "
                "last evaluated round; all learners and seeds together."
            )
            classes = len(run.summary["confusion"])
            text += f" There are {classes} classes; the first {_MAX_CLASSES} are shown." * (classes > _MAX_CLASSES)
            chart = charts.heatmap(rows, x="predicted", y="class", value="share", title="share, %", zero=True)
            name = f"{prefix}confusion-{run.label}"
            yield Section(f"Confusion matrix, {run.label}", text=text, figure=chart, name=name)


def _rows(matrix: Any, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Cells of a matrix of counts, in percent of their row; none where it is missing or damaged. names: of classes."""
    try:
        counts = [[int(count) for count in row] for row in matrix or ()]
    except (TypeError, ValueError):
        return
    if any(len(row) != len(counts) for row in counts):
        return
    known = names if len(names) == len(counts) else range(len(counts))
    for name, row in islice(zip(known, counts, strict=True), _MAX_CLASSES):
        for predicted, count in islice(zip(known, row, strict=True), _MAX_CLASSES):
            yield {"class": name, "predicted": predicted, "share": round(100 * count / max(sum(row), 1), 1)}
