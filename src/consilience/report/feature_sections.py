"""What a page shows of learners' features: a map for each run that keeps its models, and why others have none.

Of runs with a public set, also how alike its samples look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from consilience.errors import ConsilienceError
from consilience.presentation import charts, scatter_charts
from consilience.report.feature_map import map_of
from consilience.report.runs import ReportedRun
from consilience.report.section import Section
from consilience.report.similarities import similarities
from consilience.simulation.records.export import read_kept

MAPS = 6
"""In a page: each takes seconds, and tens of kilobytes."""


def with_models(runs: Sequence[ReportedRun]) -> list[Path]:
    """Folders of the runs that keep what their learners have become."""
    return [folder for folder in dict.fromkeys(run.folder for run in runs) if any(folder.glob("checkpoint*"))]


def maps(runs: Sequence[ReportedRun], prefix: str, kept: Sequence[Path]) -> Iterator[Section]:
    """A map for each run that lies in one of the first folders kept, and a line about the others."""
    first: dict[Path, ReportedRun] = {}
    for run in runs:  # variants lie in one folder
        first.setdefault(run.folder, run)
    drawn: list[Section] = []
    alike: list[Section] = []
    without: dict[str, list[str]] = {}
    for folder, run in first.items():
        try:
            if folder in kept[MAPS:]:
                without.setdefault(f"a page has {MAPS} at most", []).append(run.label)
                continue
            kept_here = read_kept(folder)
            if seen := similarities(kept_here):
                name = f"{prefix}similarities" + f"-{len(alike) + 1}" * (len(first) > 1)
                chart = charts.matrices(seen.rows, seen.classes)
                alike.append(Section(f"Similarities: {run.label}", seen.text, figure=chart, name=name))
            found, name = map_of(kept_here), f"{prefix}features" + f"-{len(drawn) + 1}" * (len(first) > 1)
            drawn.append(
                Section(f"Feature map: {run.label}", found.text, figure=scatter_charts.scatter(found.rows), name=name)
            )
        except (ConsilienceError, OSError) as error:
            without.setdefault(str(error), []).append(run.label)
    yield from alike
    yield from drawn
    if without:
        said = "; ".join(why if len(who) == len(first) else f"{', '.join(who)}: {why}" for why, who in without.items())
        yield Section(
            "Runs without a feature map" if drawn else "Feature map", f"No map: {said}.", name=f"{prefix}unmapped"
        )
