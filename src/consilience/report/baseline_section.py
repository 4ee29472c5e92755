"""The section of a comparison with a baseline: the differences of the other runs to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from consilience.presentation.baseline import (
    add_differences,
    against_caption,
    against_headings,
    against_rows,
    against_title,
)
from consilience.report.runs import ReportedRun
from consilience.report.section import Section


def baseline_sections(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """A table of differences for each baseline among the runs."""
    folders = list(dict.fromkeys(run.baseline for run in runs if run.baseline is not None))
    for folder in folders:
        compared = [run for run in runs if run.baseline == folder]
        place = next((i for i, run in enumerate(compared) if run.folder == folder), None)
        found = add_differences([{**run.summary, "label": run.label} for run in compared], place)
        if rows := against_rows(found):
            yield Section(
                against_title(found),
                table=[
                    {"method": name} | dict(zip(against_headings(found), cells.values(), strict=True))
                    for name, cells in rows
                ],
                explanation=against_caption(found),
                name=f"{prefix}against-{folder.name}",
            )
