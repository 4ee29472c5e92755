"""Accuracy and bytes as the number of learners grows, each with as many images of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.formats import format_accuracy
from consilience.papers.thesis.learner_chart import accuracy_by_learners
from consilience.papers.thesis.published import TASKS
from consilience.papers.thesis.table1 import ROWS
from consilience.presentation.tables import plural

IMAGES = 120
"""Images of each learner."""
_LEARNERS = (2, 10, 50, 200)
_ROWS = ("independent", "fedavg", "representation-sharing", "consilience")
_SEEDS = 3
_QUICK = {"rounds": 15, "test": 2000}


def _cells(scale: Scale) -> list[Cell]:
    """Every number of learners and row; the quick version: two and five learners, fifteen rounds."""
    settings = {**TASKS["MNIST"], **scale.settings(_SEEDS), **(_QUICK if scale.quick else {})}
    settings |= {"eval_every": settings["rounds"]}
    return [
        Cell(
            {"learners": learners, "row": row},
            settings | {"learners": learners, "train": IMAGES * learners, "method": ROWS[row]},
        )
        for learners in ((2, 5) if scale.quick else _LEARNERS)
        for row in _ROWS
    ]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """Accuracy by the number of learners, and the bytes of each."""
    summary = outcomes[0].summary
    text = (
        f"MNIST, LeNet5, {IMAGES} images per learner, iid, {summary['rounds']} rounds, "
        f"{plural(summary['seeds'], 'seed')}: accuracy in % on the test set after the last round."
    )
    sections = [
        ResultSection(
            "Accuracy by number of learners", text, _accuracies(outcomes), accuracy_by_learners(outcomes), "growth"
        ),
        ResultSection(
            "Bytes per learner and round",
            "The mean over rounds. Messages depend on the model and the number of classes, not on how many learn.",
            _bytes(outcomes),
            name="growth-bytes",
        ),
    ]
    return [section for section in sections if section.table]


def _accuracies(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {"learners": learners, **{o.labels["row"]: format_accuracy(o) for o in found}}
        for learners, found in _by_learners(outcomes).items()
    ]


def _bytes(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Upload and download of the methods that send messages; none if no method does."""
    sending = [o for o in outcomes if o.summary["bytes"]["up"]]
    ways = {"up": "upload", "down": "download"}
    return [
        {"learners": learners}
        | {f"{o.labels['row']}, {ways[way]}": round(o.summary["bytes"][way]) for o in found for way in ways}
        for learners, found in _by_learners(sending).items()
    ]


def _by_learners(outcomes: Sequence[Outcome]) -> dict[int, list[Outcome]]:
    found: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.labels["learners"], []).append(outcome)
    return found


GROWTH = Reproduction(
    "thesis-growth", "Accuracy and bytes with 2 to 200 learners, each with as many images", _cells, _sections
)
