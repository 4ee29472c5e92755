"""The folder of a reproduction: its cells are run folders, and `results.json` says which of them are missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consilience.errors import ConsilienceError
from consilience.simulation.records.run_folder import RunFolder

_CELLS, _RESULTS = "cells", "results.json"
_NAMED = 30  # cells in a note
GO_ON = "go on with the command that began it"


def is_reproduction(folder: Path) -> bool:
    """Whether a folder holds the cells of a reproduction."""
    return (folder / _CELLS).is_dir()


def cells_in(folder: Path, notes: list[str]) -> list[RunFolder]:
    """The cells that have begun; which have not, and which are not done, is noted."""
    there = [RunFolder(path.parent) for path in sorted((folder / _CELLS).glob("*/config.toml"))]
    unfinished = _listed("not finished", [cell.path.name for cell in there if not _done(cell)])
    try:
        name, missing = _results(folder / _RESULTS)
        words = _listed("missing when it was last told", missing) + unfinished
        told, go_on = f"{folder}, {name}", f"{GO_ON}: consilience reproduce {name}"
    except FileNotFoundError:
        begun = f"there is no {_RESULTS}; {len(there)} cells have begun, and those that have not are not known"
        words, told, go_on = [begun, *unfinished], str(folder), GO_ON
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        words = [f"{_RESULTS} is damaged ({error}), and cells that have not begun are not known", *unfinished]
        told, go_on = str(folder), GO_ON
    if words and there:
        notes.append(f"{told}: {'; '.join([*words, go_on])}.")
    return there


def _results(file: Path) -> tuple[str, list[str]]:
    """The name of a reproduction, and the labels of the cells it had not come to."""
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    missing = [", ".join(str(value) for value in labels.values()) for labels in content.get("missing", [])]
    return str(content["name"]), missing


def _done(cell: RunFolder) -> bool:
    try:
        result = cell.result
        return result is not None and bool(result["finished"])
    except (ConsilienceError, OSError, RecursionError):
        return False


def _listed(what: str, names: Sequence[str]) -> list[str]:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"{what}: {' | '.join(names[:_NAMED])}{more}"] if names else []
