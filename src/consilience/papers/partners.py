"""Choosing partners: two groups of learners whose labels mean different things, with everybody or with partners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.metrics_by_round import record_by_round, recorded_by_round
from consilience.papers.thesis.formats import format_accuracy
from consilience.presentation.gains import by_seed
from consilience.presentation.paired import paired_difference
from consilience.presentation.tables import plural

LEARNERS = 10
_OTHERS = {"swapped": {"learners": f"{LEARNERS // 2}-{LEARNERS - 1}", "shift": "swap(1)"}}
_LISTED = {
    "straight": {"learners": f"0-{LEARNERS // 2 - 1}", "partners": f"0-{LEARNERS // 2 - 1}"},
    "swapped": _OTHERS["swapped"] | {"partners": f"{LEARNERS // 2}-{LEARNERS - 1}"},
}
_EVERYBODY = "everybody"
_CHOICES: dict[str, dict[str, Any]] = {
    _EVERYBODY: {},
    "listed": {"partners": "listed", "groups": _LISTED},
    "similar(4)": {"partners": "similar(4)"},
    "similar(2)": {"partners": "similar(2)"},
    "useful(4)": {"partners": "useful(4)"},
}
"""Each way to choose partners, and its settings."""
_METHODS = ("consilience", "fedproto", "representation-sharing")
_SEEDS, _RAND = 5, "rand"
_DIGITS: dict[str, Any] = {"data": "digits", "rounds": 30, "learners": LEARNERS, "validation": 0.2, "groups": _OTHERS}


def _cells(scale: Scale) -> list[Cell]:
    """Every method and way to choose, and learners alone; the quick version: one method, ten rounds."""
    settings = {**_DIGITS, **scale.settings(_SEEDS), **({"rounds": 10} if scale.quick else {})}
    settings |= {"eval_every": settings["rounds"]}
    cells = [Cell({"method": "independent", "partners": "none"}, settings | {"method": {"name": "independent"}})]
    for method in _METHODS[:1] if scale.quick else _METHODS:
        for name, own in _CHOICES.items():
            records = {_RAND: record_by_round("partners_rand")} if "(" in name else {}
            labels = {"method": method, "partners": name}
            cells.append(Cell(labels, settings | {"method": {"name": method}} | own, records=records))
    return cells


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """Accuracy on own data by method and partners, against everybody, and how well the groups were found."""
    summary = outcomes[0].summary
    text = (
        f"{summary['data']}, {summary['model']}, {summary['learners']} learners, {summary['rounds']} rounds, 20 % held "
        f"out, {plural(summary['seeds'], 'seed')}. Half of the learners have the labels of every pair of classes "
        f"swapped. Accuracy in % on data like each learner's own after the last round; the difference to everybody "
        f"with everybody in points, paired by seed, with its 95 % interval. Rand index: adjusted, of the groups that "
        f"partners form and the two of the data; 1 is the same, 0 is chance."
    )
    everybody = {o.labels["method"]: o for o in outcomes if o.labels["partners"] == _EVERYBODY}
    table = [_line(outcome, everybody.get(outcome.labels["method"])) for outcome in outcomes]
    return [ResultSection("Partners in two groups with swapped labels", text, table, name="partners")]


def _line(outcome: Outcome, everybody: Outcome | None) -> dict[str, Any]:
    found = None
    if everybody is not None and outcome is not everybody:
        found = paired_difference(*(by_seed(o.summary, "accuracy_own") for o in (outcome, everybody)))
    interval = "" if found is None or found.low is None else f" ({found.low:+.1f} to {found.high:+.1f})"
    return {
        "method": outcome.labels["method"],
        "partners": outcome.labels["partners"],
        "own accuracy": format_accuracy(outcome, "accuracy_own"),
        "against everybody": None if found is None else f"{found.mean:+.1f}{interval}",
        "Rand index": _rand_index(outcome),
    }


def _rand_index(outcome: Outcome) -> str | None:
    """The smallest and the largest over seeds in the last round."""
    curve = recorded_by_round(outcome, _RAND) if _RAND in outcome.records else {}
    last = curve[max(curve)] if curve else []
    return None if not last else f"{min(last):.2f}" + (f" to {max(last):.2f}" if max(last) > min(last) else "")


PARTNERS = Reproduction(
    "partners", "Choosing partners: two groups of learners with swapped labels, on digits", _cells, _sections
)
