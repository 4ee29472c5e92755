"""Finished cells in one small file, `cells.jsonl`: enough to show their tables, and not to run them again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.errors import CheckpointError
from consilience.files import replace_file, report_write_errors

FINISHED = "cells.jsonl"
_SAME = (
    "method",
    "settings",
    "data",
    "model",
    "learners",
    "rounds",
    "seed",
    "seeds",
    "device",
    "message_bytes",
    "diverged",
    "finished",
)
"""What is kept of a summary as it is."""
_ACCURACIES = ("accuracy", "accuracy_own", "accuracy_validation")
_DIGITS = {"mean": 4, "std_seeds": 4, "by_seed": 4, "by_learner": 2}
"""Digits after the point of what is kept of an accuracy."""
Line = dict[str, Any]


def compact_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the tables of a reproduction need of the summary of a run; that of a compact one is the same again."""
    found = {key: summary[key] for key in _SAME if key in summary}
    found |= {key: _compact_accuracy(summary[key]) for key in _ACCURACIES if summary.get(key) is not None}
    if "bytes" in summary:
        found["bytes"] = _rounded(summary["bytes"], 2)
    if "seconds" in summary:
        found["seconds"] = {"total": _rounded(summary["seconds"]["total"], 2)}
    if "groups" in summary:
        found["groups"] = {name: compact_summary(group) for name, group in summary["groups"].items()}
    if "variants" in summary:
        found["variants"] = [_compact_variant(each) for each in summary["variants"]]
    return found


def _compact_variant(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a variant and its accuracy: a run may have many variants."""
    return {"set": summary["set"], "accuracy": _compact_accuracy(summary["accuracy"])}


def _compact_accuracy(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _rounded(found[key], digits) for key, digits in _DIGITS.items() if key in found}


def _rounded(value: Any, digits: int) -> Any:
    """Numbers, also inside lists and mappings, with so many digits; None for one that is NaN or infinite."""
    if isinstance(value, Mapping):
        return {key: _rounded(each, digits) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_rounded(each, digits) for each in value]
    return round(value, digits) if value is not None and math.isfinite(value) else None


def read_finished(folder: Path) -> dict[str, Line]:
    """The lines of the file in a folder by the name of the cell; a damaged one is refused with its number."""
    file = folder / FINISHED
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    found = (_parse(file, number, line) for number, line in enumerate(lines, 1) if line.strip())
    return {line["name"]: line for line in found}


def save_finished(folder: Path, line: Line, order: Sequence[str]) -> None:
    """Add a line, or replace the one of the same cell. order: names of cells; lines of other cells follow them."""
    file, place = folder / FINISHED, {name: i for i, name in enumerate(order)}
    found = read_finished(folder) | {line["name"]: line}  # read again: another process may have added lines
    lines = sorted(found.values(), key=lambda each: place.get(each["name"], len(place)))
    with report_write_errors(file, "choose another folder with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(file, "".join(f"{json.dumps(each)}\n" for each in lines).encode())


def _parse(file: Path, number: int, text: bytes) -> Line:
    try:
        line = json.loads(text)
        if not isinstance(line["name"], str) or not isinstance(line["labels"], dict):
            raise ValueError("it names no cell")
        if not line["summary"]["finished"] or not isinstance(line["summary"]["accuracy"], dict):
            raise ValueError("it has no result of a finished cell")
        if not isinstance(line.get("records", {}), dict):
            raise ValueError("its records are not an object")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(
            f"{file}, line {number} is damaged: {what}; restore the file, or delete the line, and the cell is read "
            f"from its run folder or run again"
        ) from error
    found: Line = line
    return found
