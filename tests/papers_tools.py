"""Common parts of the tests of reproductions: run, shown and drawn, and known by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from consilience.papers import REPRODUCTIONS, Scale
from consilience.papers.cells import Reproduction
from consilience.papers.run import run_reproduction, write_reproduction_page

Tables = dict[str, list[dict[str, Any]]]


def tables_of(wanted: Reproduction, folder: Path, only: Sequence[tuple[str, str]] = ()) -> Tables:
    """The tables that are shown, by name."""
    return {section.name: section.table for section in run_reproduction(wanted, Scale(only=only), folder).sections}


def known_at_both_sizes(paper: str, names: Iterable[str]) -> bool:
    """Whether these are all reproductions of a paper, as published and short."""
    found = {name for name in REPRODUCTIONS if name.startswith(f"{paper}-")}
    return found == {f"{name}{size}" for name in names for size in ("", "-short")}


def run_and_draw(wanted: Reproduction, folder: Path) -> str:
    """The page of a reproduction, after checks: nothing is run twice, and all that is shown is on it and in figures."""
    rounds: list[str] = []
    is_new = not (folder / "cells").exists()  # else another test has run some of it there

    def note(method: str, *others: Any) -> None:
        rounds.append(method)

    shown = run_reproduction(wanted, Scale(), folder, note).sections
    assert shown and all(section.table for section in shown) and (rounds or not is_new)
    played = len(rounds)
    again = run_reproduction(wanted, Scale(), folder, note).sections
    assert len(rounds) == played, "nothing is run twice"
    assert [section.table for section in again] == [section.table for section in shown]
    page = write_reproduction_page(wanted, shown, folder, "consilience reproduce").read_text(encoding="utf-8")
    assert all(escape(section.heading) in page for section in shown)
    pictures = {f"{section.name}-picture-1" for section in shown if section.pictures}
    drawn = {path.stem for path in (folder / "figures").iterdir()}
    assert drawn == {section.name for section in shown if section.figure} | pictures
    assert page.count("data:image/png;base64,") == len(pictures)
    return page
