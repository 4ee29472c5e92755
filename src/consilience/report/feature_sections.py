"""The sections of a page about learners' features: a map for each run with a checkpoint.

Runs with a public set also have matrices of the similarities of its samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from consilience.errors import ConsilienceError
from consilience.presentation import charts, scatter_charts
from consilience.report.feature_map import map_features
from consilience.report.runs import ReportedRun
from consilience.report.section import Section
from consilience.report.similarities import similarities
from consilience.simulation.records.export import read_saved_run

MAX_MAPS = 6
"""Maps on a page: each takes seconds and tens of kilobytes."""


def folders_with_checkpoint(runs: Sequence[ReportedRun]) -> list[Path]:
    """The folders of runs that have a checkpoint."""
    return [folder for folder in dict.fromkeys(run.folder for run in runs) if any(folder.glob("checkpoint*"))]


def feature_sections(runs: Sequence[ReportedRun], prefix: str, with_checkpoint: Sequence[Path]) -> Iterator[Section]:
    """A map for each run in the first folders with a checkpoint, and the reasons why others have none."""
    first: dict[Path, ReportedRun] = {}
    for run in runs:  # variants share a folder
        first.setdefault(run.folder, run)
    drawn: list[Section] = []
    matrices: list[Section] = []
    without: dict[str, list[str]] = {}
    for folder, run in first.items():
        try:
            if folder in with_checkpoint[MAX_MAPS:]:
                without.setdefault(f"a page has {MAX_MAPS} at most", []).append(run.label)
                continue
            saved = read_saved_run(folder)
            if found_similarities := similarities(saved):
                name = f"{prefix}similarities" + f"-{len(matrices) + 1}" * (len(first) > 1)
                chart = charts.matrices(found_similarities.rows, found_similarities.classes)
                matrices.append(Section(f"Similarities: {run.label}", found_similarities.text, figure=chart, name=name))
            found, name = map_features(saved), f"{prefix}features" + f"-{len(drawn) + 1}" * (len(first) > 1)
            drawn.append(
                Section(
                    f"Feature map: {run.label}",
                    found.text,
                    figure=scatter_charts.scatter(found.rows, found.group, found.order),
                    name=name,
                    beside="features",
                )
            )
        except (ConsilienceError, OSError) as error:
            without.setdefault(str(error), []).append(run.label)
    yield from matrices
    yield from drawn
    if without:
        reasons = "; ".join(
            why if len(who) == len(first) else f"{', '.join(who)}: {why}" for why, who in without.items()
        )
        yield Section(
            "Runs without a feature map" if drawn else "Feature map", f"No map: {reasons}.", name=f"{prefix}unmapped"
        )
