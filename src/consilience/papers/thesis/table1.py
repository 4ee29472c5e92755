"""Table 1 of the thesis: accuracy of each method on three tasks with 2, 5 and 10 learners (Berdoz 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.formats import format_accuracy
from consilience.papers.thesis.published import LEARNERS, TASKS, published
from consilience.papers.thesis.table1_comparisons import comparison_sections, find_outcome

ROWS: dict[str, dict[str, Any]] = {
    "centralized": {"name": "centralized"},
    "fedavg, different starts": {"name": "fedavg", "start": "different"},
    "fedavg": {"name": "fedavg"},
    "independent": {"name": "independent"},
    "self-distillation": {"name": "self-distillation"},
    "federated-distillation": {"name": "federated-distillation"},
    "representation-sharing": {"name": "representation-sharing"},
    "fedavg-1bit": {"name": "fedavg-1bit"},
    "consilience": {"name": "consilience"},
}
_SEEDS = {"MNIST": 10, "Fashion-MNIST": 5, "CIFAR-10": 3}
_QUICK = {"rounds": 30, "test": 2000}


def _cells(scale: Scale) -> list[Cell]:
    """Every row, task and number of learners; the quick version: MNIST, two and five learners, thirty rounds."""
    found = []
    for task in ("MNIST",) if scale.quick else TASKS:
        for learners in LEARNERS[:2] if scale.quick else LEARNERS:
            for row, method in ROWS.items():
                if row == "centralized" and learners != LEARNERS[0]:
                    continue  # one learner holds all data, whatever the number of learners
                settings = {**TASKS[task], **scale.settings(_SEEDS[task]), "learners": learners, "method": method}
                settings |= _QUICK if scale.quick else {}
                labels = {"task": task, "learners": learners, "row": row}
                found.append(Cell(labels, settings | {"eval_every": settings["rounds"]}))
    return found


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """One table per task, published and measured accuracy and bytes; and the default method against others."""
    rounds = {o.labels["task"]: o.summary["rounds"] for o in outcomes}
    seeds = {o.labels["task"]: o.summary["seeds"] for o in outcomes}
    tables = [
        ResultSection(
            f"{task}, {TASKS[task]['model']}, {TASKS[task]['train']:,} samples, {rounds[task]} rounds",
            f"{_seeds_text(seeds[task])} of the mean over learners, in %, on the test set after the last round; "
            f"published: one seed, after {TASKS[task]['rounds']} rounds. Bytes are per learner and round.",
            [_row(task, row, outcomes) for row in ROWS],
            _figure([o for o in outcomes if o.labels["task"] == task]),
            name=f"table-{task.lower()}",
        )
        for task in rounds
    ]
    return [*tables, *comparison_sections(outcomes)]


def _seeds_text(seeds: int) -> str:
    return f"Mean and standard deviation over {seeds} seeds" if seeds > 1 else "One seed"


def _row(task: str, row: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    line: dict[str, Any] = {"method": row}
    there = [n for n in LEARNERS if any((o.labels["task"], o.labels["learners"]) == (task, n) for o in outcomes)]
    for learners in there:
        found = find_outcome(outcomes, task, row, learners)
        known = published(row, task, learners)
        line[f"N={learners} published"] = known
        line[f"N={learners}"] = format_accuracy(found)
    largest = find_outcome(outcomes, task, row, there[-1])
    sent = largest.summary["message_bytes"] if largest else {}
    return line | {"upload, bytes": sent.get("up"), "download, bytes": sent.get("down")}


def _figure(outcomes: Sequence[Outcome]) -> Callable[[], Any]:
    """The measured and published accuracy of every row, one panel per number of learners."""
    rows = []
    for outcome in outcomes:
        row, task, learners = (outcome.labels[key] for key in ("row", "task", "learners"))
        reached = outcome.summary["accuracy"]
        about = {"method": row, "panel": f"N = {learners}"}
        spread = reached["std_seeds"] or 0.0
        rows.append(about | {"kind": "measured", "accuracy": reached["mean"], "spread": spread})
        if (known := published(row, task, learners)) is not None:
            rows.append(about | {"kind": "published", "accuracy": known, "spread": 0.0})

    def figure() -> Any:
        from consilience.presentation.scatter_charts import levels

        return levels(rows)

    return figure


TABLE1 = Reproduction(
    "thesis-table1", "Table 1: methods, tasks and numbers of learners, published and measured", _cells, _sections
)
