"""Carrying a reproduction out: cells are run or found again, and what they came to is written down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import consilience
from consilience.reproduce.cells import Outcome, Reproduction, Scale, Shown, chosen, play
from consilience.simulation.folder import replace_file, storing
from consilience.simulation.simulate import OnRound

RESULTS, PAGE = "results.json", "index.html"


def conduct(wanted: Reproduction, scale: Scale, folder: Path, on_round: OnRound | None = None) -> list[Shown] | None:
    """Run what is missing and keep `results.json`; what is to be shown, or None where it was stopped on the way."""
    outcomes: list[Outcome] = []
    for outcome in play(chosen(wanted, scale), folder, on_round):
        if outcome is None:
            return None
        outcomes.append(outcome)
    shown = wanted.told(outcomes)
    keep(wanted, scale, outcomes, shown, folder)
    return shown


def draw(wanted: Reproduction, shown: Sequence[Shown], folder: Path, command: str) -> Path:
    """Write the page, and every figure as SVG and PNG beside it; where the page is."""
    from consilience.report.page import Section, write_figures, write_page

    sections = [
        Section(each.heading, each.text, each.table, each.figure() if each.figure else None, each.name)
        for each in shown
    ]
    write_figures(folder / "figures", sections)
    write_page(folder / PAGE, f"{wanted.name}: {wanted.summary}", sections, command)
    return folder / PAGE


def keep(wanted: Reproduction, scale: Scale, outcomes: Sequence[Outcome], shown: Sequence[Shown], folder: Path) -> None:
    """Write everything that was measured, and the tables made of it."""
    content: dict[str, Any] = {
        "name": wanted.name,
        "summary": wanted.summary,
        "version": consilience.__version__,
        "quick": scale.quick,
        "device": scale.device,
        "seconds": sum(o.summary["seconds"]["total"] for o in outcomes),
        "tables": {each.name: each.table for each in shown},
        "cells": [{**o.labels, "summary": o.summary} for o in outcomes],
    }
    with storing(folder / RESULTS, "choose another place with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / RESULTS, json.dumps(content, indent=1).encode())
