"""Experiments that run every method under every condition, on MNIST among ten learners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Scale
from consilience.papers.thesis.published import TASKS
from consilience.papers.thesis.table1 import ROWS, format_accuracy

_QUICK = {"rounds": 15, "test": 2000}
METHODS = {row: ROWS[row] for row in ROWS if row not in ("centralized", "fedavg, different starts", "fedavg-1bit")}
"""The rows of Table 1 that are compared under each condition."""
SETUP = "MNIST, LeNet5, 1,200 images among ten learners"


def grid_cells(
    scale: Scale, conditions: Mapping[str, dict[str, Any]], methods: Mapping[str, dict[str, Any]]
) -> list[Cell]:
    """One cell per condition and method. Conditions and methods are settings by name."""
    base: dict[str, Any] = {**TASKS["MNIST"], **scale.settings(5), "learners": 10}
    base |= _QUICK if scale.quick else {}
    base |= {"eval_every": base["rounds"]}
    return [
        Cell({"condition": condition, "row": row}, {**base, **changes, "method": method})
        for condition, changes in conditions.items()
        for row, method in methods.items()
    ]


def grid_table(outcomes: Sequence[Outcome], column: str, metric: str = "accuracy") -> list[dict[str, Any]]:
    """One line per condition, one column per method. column: the heading of the conditions."""
    lines: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        line = lines.setdefault(outcome.labels["condition"], {column: outcome.labels["condition"]})
        line[outcome.labels["row"]] = format_accuracy(outcome, metric)
    return list(lines.values())
