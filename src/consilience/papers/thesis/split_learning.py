"""Split learning, trained and not only counted, beside representation sharing and FedAvg (Berdoz 2022, section 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.formats import both_ways, format_accuracy
from consilience.papers.thesis.learner_chart import accuracy_by_learners
from consilience.papers.thesis.published import LEARNERS, TASKS
from consilience.papers.thesis.table1 import ROWS as METHODS
from consilience.presentation.tables import plural

_CUT = "pool"
ROWS: dict[str, dict[str, Any]] = {
    "independent": METHODS["independent"],
    "representation-sharing": METHODS["representation-sharing"],
    "fedavg": METHODS["fedavg"],
    "split-learning": {"name": "split-learning", "cut": _CUT},
    "split-learning, private": {"name": "split-learning", "cut": _CUT, "device": "private"},
}
_SEEDS = 5
_QUICK = {"rounds": 15, "test": 2000}


def _cells(scale: Scale) -> list[Cell]:
    """Every number of learners and row; the quick version: two and five learners, fifteen rounds."""
    settings = {**TASKS["MNIST"], **scale.settings(_SEEDS), **(_QUICK if scale.quick else {})}
    settings |= {"eval_every": settings["rounds"]}
    return [
        Cell({"learners": learners, "row": row}, settings | {"learners": learners, "method": method})
        for learners in (LEARNERS[:2] if scale.quick else LEARNERS)
        for row, method in ROWS.items()
    ]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """Accuracy by the number of learners, and the bytes of each."""
    summary, about = outcomes[0].summary, TASKS["MNIST"]
    task = (
        f"MNIST, LeNet5, {about['train']:,} images in all, {summary['rounds']} rounds, "
        f"{plural(summary['seeds'], 'seed')}"
    )
    cut = (
        "Split learning cuts LeNet5 after its convolutions: 120 numbers and a label per image go up in every epoch, "
        "and 120 come down. Learners take turns; the weights below the cut go on to the next learner, or stay private."
    )
    return [
        ResultSection(
            "Accuracy of split learning",
            f"{task}: accuracy in % on the test set after the last round. {cut}",
            _table(outcomes, lambda outcome: format_accuracy(outcome)),
            accuracy_by_learners(outcomes),
            "split-learning",
        ),
        ResultSection(
            "Bytes per learner and round, upload and download together",
            "The mean over rounds. A learner's messages of split learning become smaller with its share of the images; "
            "those of the other methods stay as they are.",
            _table(outcomes, lambda outcome: round(both_ways(outcome.summary["bytes"]))),
            name="split-learning-bytes",
        ),
        ResultSection(
            "Bytes of all learners in all rounds, in MB",
            "Upload and download together.",
            _table(outcomes, _total_megabytes),
            name="split-learning-total",
        ),
    ]


def _table(outcomes: Sequence[Outcome], value: Callable[[Outcome], Any]) -> list[dict[str, Any]]:
    """One line per method, one column per number of learners."""
    lines: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        line = lines.setdefault(outcome.labels["row"], {"method": outcome.labels["row"]})
        line[f"N={outcome.labels['learners']}"] = value(outcome)
    return list(lines.values())


def _total_megabytes(outcome: Outcome) -> float:
    turns = int(outcome.summary["rounds"]) * int(outcome.labels["learners"])
    return round(both_ways(outcome.summary["bytes"]) * turns / 1e6, 1)


SPLIT_LEARNING = Reproduction(
    "thesis-split-learning", "Split learning trained: accuracy and bytes with 2, 5 and 10 learners", _cells, _sections
)
