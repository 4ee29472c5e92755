"""Run a reproduction: run or find its cells, and write their results, tables and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import consilience
from consilience.errors import ConfigurationError
from consilience.files import replace_file, report_write_errors
from consilience.papers.cell_runs import run_cells
from consilience.papers.cells import Cell, Labels, Outcome, Reproduction, ResultSection, Scale, select_cells
from consilience.papers.finished_cells import compact_summary, read_finished
from consilience.simulation.run import OnRound

RESULTS, PAGE, FIGURES = "results.json", "index.html", "figures"
_NAMED = 12  # missing cells that are named
_OTHER_FOLDER = "choose another folder with --out"


@dataclass(frozen=True)
class ReproductionResult:
    """The results so far: the sections to show, and the labels of the cells that are missing."""

    sections: list[ResultSection]
    missing: list[Labels]


def run_reproduction(
    reproduction: Reproduction, scale: Scale, folder: Path, on_round: OnRound | None = None, saved_only: bool = False
) -> ReproductionResult:
    """Run the missing cells, and write `cells.jsonl` and `results.json`; after an interrupt, of the finished cells.

    saved_only: run nothing, and show the finished cells in the folder.
    """
    cells, every = select_cells(reproduction, scale), reproduction.cells(scale)
    ran = run_cells(cells, folder, on_round, saved_only, order=every)
    found = {cell.name: (cell, outcome) for cell, outcome in ran if outcome}
    missing = [cell.labels for cell in cells if cell.name not in found]
    if missing and not found:
        if saved_only:
            elsewhere = len(read_finished(folder))
            held = f"; it has {elsewhere} under others, such as another --precision or --seeds" if elsewhere else ""
            raise ConfigurationError(
                f"{folder} has no finished cell of {reproduction.name} under these settings{held}; run it first, "
                f"or choose the folder that has them with --out"
            )
        return ReproductionResult([], missing)
    sections = reproduction.sections([_shown(cell, outcome) for cell, outcome in found.values()])
    if missing:
        sections = [_missing_section(missing, len(cells)), *sections]
    selected, outcomes = {cell.name for cell in cells}, [outcome for _, outcome in found.values()]
    others = [cell.labels for cell in every if cell.name not in selected]
    _write_results(folder, _results(reproduction, scale, outcomes, sections), [*missing, *others])
    return ReproductionResult(sections, missing)


def _shown(cell: Cell, outcome: Outcome) -> Outcome:
    """The outcome that sections see: without its run folder, tables are the same as with it."""
    return outcome if cell.needs_folder else replace(outcome, summary=compact_summary(outcome.summary))


def _missing_section(missing: Sequence[Labels], cells: int) -> ResultSection:
    named = "; ".join(", ".join(str(value) for value in labels.values()) for labels in missing[:_NAMED])
    more = f"; and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    text = f"Missing: {named}{more}. The sections below show the other cells; the same command resumes."
    return ResultSection(f"{len(missing)} of {cells} cells are missing", text, name="missing")


def write_reproduction_page(
    reproduction: Reproduction, results: Sequence[ResultSection], folder: Path, command: str
) -> Path:
    """Write the page, every figure as SVG and PNG, and the pictures; returns the path of the page."""
    from consilience.report.page import Section, write_figures, write_page

    sections = [
        Section(
            each.heading,
            each.text,
            each.table,
            each.figure() if each.figure else None,
            each.name,
            pictures=each.pictures,
        )
        for each in results
    ]
    write_figures(folder / FIGURES, sections)
    _write_pictures(folder / FIGURES, results)
    write_page(folder / PAGE, f"{reproduction.name}: {reproduction.summary}", sections, command)
    return folder / PAGE


def _write_pictures(folder: Path, sections: Sequence[ResultSection]) -> None:
    """Write the pictures of sections into files named after the section."""
    with report_write_errors(folder, _OTHER_FOLDER):
        for each in sections:
            for number, picture in enumerate(each.pictures, 1):
                replace_file(folder / f"{each.name}-picture-{number}.png", picture.content)


def _results(
    reproduction: Reproduction, scale: Scale, outcomes: Sequence[Outcome], sections: Sequence[ResultSection]
) -> dict[str, Any]:
    return {
        "name": reproduction.name,
        "summary": reproduction.summary,
        "version": consilience.__version__,
        "quick": scale.quick,
        "device": scale.device,
        "precision": scale.precision,
        "seconds": sum(o.summary["seconds"]["total"] for o in outcomes),
        "tables": {each.name: each.table for each in sections},
        "cells": [{**o.labels, "summary": o.summary} for o in outcomes],
    }


def _write_results(folder: Path, results: dict[str, Any], missing: Sequence[Labels]) -> None:
    """Write `results.json`: the measured numbers, the tables, and the labels of missing cells."""
    content = results | {"missing": [dict(labels) for labels in missing]}
    with report_write_errors(folder / RESULTS, _OTHER_FOLDER):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / RESULTS, json.dumps(content, indent=1).encode())
