"""Experiments that run every method under every condition, on MNIST among ten learners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Scale
from consilience.papers.thesis.best_methods import best_methods
from consilience.papers.thesis.formats import format_accuracy
from consilience.papers.thesis.published import TASKS
from consilience.papers.thesis.table1 import ROWS
from consilience.presentation.gains import Gain, gains

_QUICK = {"rounds": 15, "test": 2000}
METHODS = {row: ROWS[row] for row in ROWS if row not in ("centralized", "fedavg, different starts", "fedavg-1bit")}
"""The rows of Table 1 that are compared under each condition."""
SETUP = "MNIST, LeNet5, 1,200 images among ten learners"
Settings = Mapping[str, Mapping[str, Any]]
"""Settings by the name of a condition or a method."""


def grid_cells(scale: Scale, conditions: Settings, methods: Settings, seeds: int = 5) -> list[Cell]:
    """One cell per condition and method; seeds: the number of seeds unless the scale has another."""
    base: dict[str, Any] = {**TASKS["MNIST"], **scale.settings(seeds), "learners": 10}
    base |= _QUICK if scale.quick else {}
    base |= {"eval_every": base["rounds"]}
    return [
        Cell({"condition": condition, "row": row}, {**base, **changes, "method": method})
        for condition, changes in conditions.items()
        for row, method in methods.items()
    ]


def by_condition(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes of each condition."""
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.labels["condition"], []).append(outcome)
    return found


def grid_table(
    outcomes: Sequence[Outcome], column: str, metric: str = "accuracy", mark_best: bool = False
) -> list[dict[str, Any]]:
    """One line per condition, one column per method. column: the heading of the conditions."""
    lines = []
    for condition, found in by_condition(outcomes).items():
        best = best_methods(found, metric) if mark_best else frozenset()
        line = {o.labels["row"]: _marked(format_accuracy(o, metric), o.labels["row"] in best) for o in found}
        lines.append({column: condition, **line})
    return lines


def _marked(text: str | None, mark: bool) -> str | None:
    return f"{text} *" if text and mark else text


def count_best(outcomes: Sequence[Outcome], metric: str, row: str = "consilience") -> str:
    """In how many conditions a row is best or within one standard error of the best; "" if it is compared in none."""
    compared = [found for found in by_condition(outcomes).values() if any(o.labels["row"] == row for o in found)]
    marked = [best for found in compared if (best := best_methods(found, metric))]
    if not marked:
        return ""
    count = sum(row in best for best in marked)
    return f"{row} is best or within one standard error of the best method shown in {count} of {len(marked)} rows."


def gains_table(outcomes: Sequence[Outcome], column: str) -> list[dict[str, Any]]:
    """The learners that each method helps and harms, in % and against the same learner alone; one line per condition.

    Conditions without learning alone are left out.
    """
    lines = []
    for condition, found in by_condition(outcomes).items():
        each = zip(found, gains([o.summary for o in found]), strict=True)
        line = {o.labels["row"]: _format_gain(gain) for o, gain in each if gain is not None}
        lines += [{column: condition, **line}] if line else []
    return lines


def _format_gain(gain: Gain) -> str:
    """The shares of learners that are helped and harmed: 62 / 5."""
    return f"{100 * gain.helped / gain.learners:.0f} / {100 * gain.harmed / gain.learners:.0f}"
