"""Run the cells that are not finished: a cell is finished in its run folder, or by its line in `cells.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from consilience.errors import CheckpointError
from consilience.papers.cells import Cell, Outcome
from consilience.papers.finished_cells import Line, compact_summary, read_finished, save_finished
from consilience.simulation.planned_run import PlannedRun
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.run import OnRound
from consilience.simulation.run_all import run_all


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    on_round: OnRound | None = None,
    saved_only: bool = False,
    order: Sequence[Cell] = (),
) -> Iterator[tuple[Cell, Outcome | None]]:
    """Run the cells that are not finished, one by one. A cell that was stopped has no outcome, and is the last.

    A cell with the settings of a finished one is finished too, whatever its labels: tables in one folder share runs.
    saved_only: run nothing, and yield the outcomes that are in the folder. order: of the lines of `cells.jsonl`, which
    is written after each cell; those of the cells if it is empty.
    """
    lines, names = read_finished(folder), [cell.name for cell in order or cells]
    same_settings = {name.rpartition("-")[2]: line for name, line in lines.items()}
    places = {cell.name: folder / "cells" / cell.name for cell in cells}
    known = {cell.name: lines.get(cell.name) or same_settings.get(cell.fingerprint) for cell in cells}
    finished = {cell.name: _finished(cell, places[cell.name], known[cell.name], saved_only) for cell in cells}
    waiting = {cell.name: cell for cell in cells if finished[cell.name] is None and not saved_only}
    planned = [PlannedRun(each.config, places[name], keep_models=each.keep_models) for name, each in waiting.items()]
    results = run_all(planned, on_round)
    for cell in cells:
        outcome, result = finished[cell.name], next(results) if cell.name in waiting else None
        if result is not None and result.finished:
            outcome = _with_records(cell, result.summary(), places[cell.name])
        line = known[cell.name]
        if outcome is not None and (fresh := _line(cell, outcome, line)) != line:
            save_finished(folder, fresh, names)
        yield cell, outcome
        if result is not None and not result.finished:
            return


def _line(cell: Cell, outcome: Outcome, old: Line | None) -> Line:
    """The line of a cell; the name, the labels and the records that are in the old line stay."""
    known = old or {"name": cell.name, "labels": dict(cell.labels)}
    line: Line = {"name": known["name"], "labels": known["labels"], "summary": compact_summary(outcome.summary)}
    records = {**known.get("records", {}), **outcome.records}
    return line | ({"records": records} if records else {})


def _with_records(cell: Cell, summary: Mapping[str, Any], place: Path) -> Outcome:
    """The outcome of a run with the records that its sections need, as they will be read from `cells.jsonl`."""
    outcome = Outcome(cell.labels, summary, place, settings=cell.settings)
    records = {name: json.loads(json.dumps(read(outcome))) for name, read in cell.records.items()}
    return replace(outcome, records=records)


def _finished(cell: Cell, place: Path, line: Line | None, saved_only: bool) -> Outcome | None:
    """The outcome of a finished cell: that of its run folder, or of its line if sections do not need the folder.

    A damaged result counts as missing if nothing is to be run, and otherwise is an error unless there is a line.
    """
    known = _outcome_of_line(cell, place, line)
    try:
        found = RunFolder(place).result
        if found is not None and found["finished"] and "accuracy" in found:
            return _with_records(cell, found, place)
    except CheckpointError:
        if known is None and not saved_only:
            raise
    return known


def _outcome_of_line(cell: Cell, place: Path, line: Line | None) -> Outcome | None:
    """The outcome that a line holds, or None if it lacks something that sections need."""
    records = {} if line is None else line.get("records", {})
    if line is None or cell.needs_folder or not cell.records.keys() <= records.keys():
        return None
    wanted = {name: records[name] for name in cell.records}
    return Outcome(cell.labels, line["summary"], place, wanted, cell.settings)
