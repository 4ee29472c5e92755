"""A sweep as one table for other programs: one line for each setting, seed and round, with means over learners."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consilience.errors import CheckpointError
from consilience.files import replace_file, report_write_errors
from consilience.simulation.records.run_folder import RunFolder

SWEEP_CSV = "sweep.csv"
_COLUMNS = ("accuracy", "accuracy_own", "bytes.up", "bytes.down")
_LEFT_OUT = ("accuracy_before", "accuracy_train")


def write_sweep_csv(folder: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write the table, whole or not at all."""
    lines = list(lines)
    names = list(dict.fromkeys(key for line in lines for key in line))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    with report_write_errors(folder / SWEEP_CSV):
        replace_file(folder / SWEEP_CSV, stream.getvalue().encode())


def sweep_lines(run: RunFolder, settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The lines of a finished run; settings: those of each of its variants."""
    groups: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    try:
        for text in run.lines():
            line = json.loads(text)
            groups.setdefault((line.get("variant", 0), line["seed"], line["round"]), []).append(line)
        found = [_line(settings[v], seed, r, learners) for (v, seed, r), learners in sorted(groups.items()) if r]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{run.metrics} is damaged: {error}") from error
    wanted = len(settings) * run.config.federation.seeds * run.config.training.rounds
    if len(found) != wanted:
        raise CheckpointError(f"{run.metrics} is damaged: {len(found)} settings, seeds and rounds, expected {wanted}")
    return found


def _line(settings: Mapping[str, Any], seed: int, round_: int, learners: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    losses = [f"loss.{term}" for term in learners[0]["loss"]]
    others = [key for key in learners[0] if key.startswith(("accuracy_", "dependence", "top5", "f1", "auc", "rmse"))]
    asked = [key for key in others if key not in _COLUMNS + _LEFT_OUT]
    means = {name: _mean(learners, name) for name in (*_COLUMNS, *asked, *losses)}
    return {**settings, "seed": seed, "round": round_, **means, "accuracy_std_learners": _deviation(learners)}


def _column(lines: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    *tables, last = name.split(".")
    values = [(line[tables[0]] if tables else line)[last] for line in lines]
    return [value for value in values if value is not None]


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = _column(lines, name)
    return float(np.mean(values)) if values else None


def _deviation(lines: Sequence[Mapping[str, Any]]) -> float | None:
    values = _column(lines, "accuracy")
    return float(np.std(values)) if values else None
