"""The folder of a reproduction: its cells are run folders, and `results.json` lists the missing ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consilience.errors import ConsilienceError
from consilience.simulation.records.run_folder import RunFolder

_CELLS, _RESULTS = "cells", "results.json"
_MAX_NAMED = 30  # cells in a note
RESUME = "resume with the command that started it"


def is_reproduction(folder: Path) -> bool:
    """Whether a folder is that of a reproduction."""
    return (folder / _CELLS).is_dir()


def reproduction_cells(folder: Path, notes: list[str]) -> list[RunFolder]:
    """The run folders of started cells; missing and unfinished cells are added to the notes."""
    there = [RunFolder(path.parent) for path in sorted((folder / _CELLS).glob("*/config.toml"))]
    unfinished = _listed("not finished", [cell.path.name for cell in there if not _finished(cell)])
    try:
        name, missing = _results(folder / _RESULTS)
        words = _listed("missing when results.json was written", missing) + unfinished
        title, resume = f"{folder}, {name}", f"{RESUME}: consilience reproduce {name}"
    except FileNotFoundError:
        started = f"there is no {_RESULTS}; {len(there)} cells have started, and missing cells are not known"
        words, title, resume = [started, *unfinished], str(folder), RESUME
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        words = [f"{_RESULTS} is damaged ({error}), and missing cells are not known", *unfinished]
        title, resume = str(folder), RESUME
    if words and there:
        notes.append(f"{title}: {'; '.join([*words, resume])}.")
    return there


def _results(file: Path) -> tuple[str, list[str]]:
    """The name of a reproduction, and the labels of its missing cells."""
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    missing = [", ".join(str(value) for value in labels.values()) for labels in content.get("missing", [])]
    return str(content["name"]), missing


def _finished(cell: RunFolder) -> bool:
    try:
        result = cell.result
        return result is not None and bool(result["finished"])
    except (ConsilienceError, OSError, RecursionError):
        return False


def _listed(what: str, names: Sequence[str]) -> list[str]:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return [f"{what}: {' | '.join(names[:_MAX_NAMED])}{more}"] if names else []
