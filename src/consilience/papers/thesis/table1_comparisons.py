"""The default method in Table 1: against the best published result, and against FedAvg with a common start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from consilience.papers.cells import Outcome, ResultSection
from consilience.papers.thesis.formats import format_accuracy, format_difference, format_share
from consilience.papers.thesis.published import LEARNERS, TASKS, best_published

_SHARE = "of fedavg's bytes"
_BYTES = f"{_SHARE[0].upper()}{_SHARE[1:]}: upload and download together, of the method `fedavg`."


def find_outcome(outcomes: Sequence[Outcome], task: str, row: str, learners: int) -> Outcome | None:
    """The outcome of a row; that of `centralized`, which is run once per task, for any number of learners."""
    wanted = {"task": task, "row": row, "learners": LEARNERS[0] if row == "centralized" else learners}
    return next((o for o in outcomes if o.labels == wanted), None)


def comparison_sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """The two comparisons, without those that have no line."""
    complete = [o for o in outcomes if o.summary["rounds"] == TASKS[o.labels["task"]]["rounds"]]
    sections = [
        ResultSection(
            "The default method and the best published result",
            f"Accuracy in %; published: the best row but the centralized one. {_BYTES}",
            _against_published(complete),
            name="against",
        ),
        ResultSection(
            "The default method against FedAvg with a common start",
            "Accuracy in %. Difference: in points, the mean of the differences with the same seed, and in brackets "
            f"its 95 % interval (Student's t). {_BYTES}",
            _against_fedavg(outcomes),
            name="against-fedavg",
        ),
    ]
    return [section for section in sections if section.table]


def _pairs(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, int, Outcome, Outcome]]:
    """For each task and number of learners, the outcomes of the default method and of FedAvg, where both are there."""
    for task, learners in dict.fromkeys((o.labels["task"], o.labels["learners"]) for o in outcomes):
        default, fedavg = (find_outcome(outcomes, task, row, learners) for row in ("consilience", "fedavg"))
        if default is not None and fedavg is not None:
            yield task, learners, default, fedavg


def _against_published(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The default method against every published row but the centralized one."""
    return [
        {
            "task": task,
            "N": learners,
            "best published": (best := best_published(task, learners)),
            "consilience": format_accuracy(default),
            "above": round(default.summary["accuracy"]["mean"] - best, 2),
            _SHARE: format_share(default, fedavg),
        }
        for task, learners, default, fedavg in _pairs(outcomes)
    ]


def _against_fedavg(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "task": task,
            "N": learners,
            "fedavg": format_accuracy(fedavg),
            "consilience": format_accuracy(default),
            "difference": format_difference(default, fedavg),
            _SHARE: format_share(default, fedavg),
        }
        for task, learners, default, fedavg in _pairs(outcomes)
    ]
