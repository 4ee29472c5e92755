"""Run the cells that are not finished: a cell is finished in its run folder, or by its line in `cells.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.errors import CheckpointError
from consilience.papers.cells import Cell, Outcome
from consilience.papers.finished_cells import Line, compact_summary, read_finished, save_finished
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.run import OnRound
from consilience.simulation.simulate import start_or_resume


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    on_round: OnRound | None = None,
    saved_only: bool = False,
    order: Sequence[Cell] = (),
) -> Iterator[tuple[Cell, Outcome | None]]:
    """Run the cells that are not finished, one by one. A cell that was stopped has no outcome, and is the last.

    saved_only: run nothing, and yield the outcomes that are in the folder. order: of the lines of `cells.jsonl`, which
    is written after each cell; those of the cells if it is empty.
    """
    lines, names = read_finished(folder), [cell.name for cell in order or cells]
    result = None
    for cell in cells:
        if result is not None:
            result.raise_if_interrupted()
        place, line = folder / "cells" / cell.name, lines.get(cell.name)
        summary = _finished(cell, place, line, saved_only)
        if summary is None and not saved_only:
            result = start_or_resume(place, cell.config, on_round, cell.keep_models)
            summary = result.summary() if result.finished else None
        if summary is not None and (fresh := _line(cell, summary)) != line:
            save_finished(folder, fresh, names)
        yield cell, None if summary is None else Outcome(cell.labels, summary, place)
        if result is not None and not result.finished:
            return


def _line(cell: Cell, summary: Mapping[str, Any]) -> Line:
    return {"name": cell.name, "labels": dict(cell.labels), "summary": compact_summary(summary)}


def _finished(cell: Cell, place: Path, line: Line | None, saved_only: bool) -> dict[str, Any] | None:
    """The summary of a finished cell: that of its run folder, or of its line if sections do not need the folder.

    A damaged result counts as missing if nothing is to be run, and otherwise is an error unless there is a line.
    """
    known: dict[str, Any] | None = None if line is None or cell.needs_folder else line["summary"]
    try:
        found = RunFolder(place).result
    except CheckpointError:
        if known is None and not saved_only:
            raise
        return known
    complete = found is not None and found["finished"] and "accuracy" in found
    return found if complete else known
