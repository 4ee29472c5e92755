"""Carrying a reproduction out: cells are run or found again, and what they came to is written down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import consilience
from consilience.errors import ConfigurationError
from consilience.files import replace_file, report_write_errors
from consilience.papers.cells import Labels, Outcome, Reproduction, Scale, Shown, chosen, play
from consilience.simulation.simulate import OnRound

RESULTS, PAGE, FIGURES = "results.json", "index.html", "figures"
_NAMED = 12  # of the cells that are missing


@dataclass(frozen=True)
class Report:
    """What a reproduction came to so far: the sections to show, and the cells that are not there yet."""

    shown: list[Shown]
    missing: list[Labels]


def conduct(
    wanted: Reproduction, scale: Scale, folder: Path, on_round: OnRound | None = None, kept: bool = False
) -> Report:
    """Run what is missing and keep `results.json`; where it was stopped on the way, of the cells that are there.

    kept: run nothing, and tell of what is there.
    """
    cells = chosen(wanted, scale)
    found = {cell.name: outcome for cell, outcome in play(cells, folder, on_round, kept) if outcome is not None}
    outcomes, missing = list(found.values()), [cell.labels for cell in cells if cell.name not in found]
    if missing and not found:
        if kept:
            raise ConfigurationError(f"{folder} keeps no finished cell of {wanted.name} under these settings")
        return Report([], missing)
    shown = wanted.told(outcomes)
    if missing:
        shown = [_missing(missing, len(cells)), *shown]
    asked = {cell.name for cell in cells}
    others = [cell.labels for cell in wanted.cells(scale) if cell.name not in asked]
    keep(wanted, scale, outcomes, [*missing, *others], shown, folder)
    return Report(shown, missing)


def _missing(missing: Sequence[Labels], cells: int) -> Shown:
    named = "; ".join(", ".join(str(value) for value in labels.values()) for labels in missing[:_NAMED])
    more = f"; and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    text = (
        f"Not there yet: {named}{more}. What follows is made of the others; the same command goes on where it stopped."
    )
    return Shown(f"{len(missing)} of {cells} cells are missing", text, name="missing")


def draw(wanted: Reproduction, shown: Sequence[Shown], folder: Path, command: str) -> Path:
    """Write the page, and every figure as SVG and PNG beside it, and pictures as they are; where the page is."""
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
        for each in shown
    ]
    write_figures(folder / FIGURES, sections)
    _keep_pictures(folder / FIGURES, shown)
    write_page(folder / PAGE, f"{wanted.name}: {wanted.summary}", sections, command)
    return folder / PAGE


def _keep_pictures(folder: Path, shown: Sequence[Shown]) -> None:
    """Write the pictures of sections, by their names."""
    with report_write_errors(folder, "choose another place with --out"):
        for each in shown:
            for number, picture in enumerate(each.pictures, 1):
                replace_file(folder / f"{each.name}-picture-{number}.png", picture.content)


def keep(
    wanted: Reproduction,
    scale: Scale,
    outcomes: Sequence[Outcome],
    missing: Sequence[Labels],
    shown: Sequence[Shown],
    folder: Path,
) -> None:
    """Write everything that was measured, and the tables made of it."""
    content: dict[str, Any] = {
        "name": wanted.name,
        "summary": wanted.summary,
        "version": consilience.__version__,
        "quick": scale.quick,
        "device": scale.device,
        "precision": scale.precision,
        "seconds": sum(o.summary["seconds"]["total"] for o in outcomes),
        "tables": {each.name: each.table for each in shown},
        "missing": [dict(labels) for labels in missing],
        "cells": [{**o.labels, "summary": o.summary} for o in outcomes],
    }
    with report_write_errors(folder / RESULTS, "choose another place with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / RESULTS, json.dumps(content, indent=1).encode())
