"""Table 1: what each way of working together reaches, for three tasks and 2, 5 and 10 learners (Berdoz 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, Scale, Shown
from consilience.papers.thesis.published import LEARNERS, TASKS, best_published, published

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
_SEEDS = {"MNIST": 5, "Fashion-MNIST": 5, "CIFAR-10": 2}
_QUICK = {"rounds": 30, "test": 2000}


def cells(scale: Scale) -> list[Cell]:
    """Every row, task and number of learners; the short version: MNIST, two and five learners, thirty rounds."""
    found = []
    for task in ("MNIST",) if scale.quick else TASKS:
        for learners in LEARNERS[:2] if scale.quick else LEARNERS:
            for row, method in ROWS.items():
                if row == "centralized" and learners != LEARNERS[0]:
                    continue  # one learner holds all, however many there would be
                settings = {**TASKS[task], **scale.settings(_SEEDS[task]), "learners": learners, "method": method}
                settings |= _QUICK if scale.quick else {}
                labels = {"task": task, "learners": learners, "row": row}
                found.append(Cell(labels, settings | {"eval_every": settings["rounds"]}))
    return found


def told(outcomes: Sequence[Outcome]) -> list[Shown]:
    """One table a task: published beside measured, and what it costs."""
    rounds = {o.labels["task"]: o.summary["rounds"] for o in outcomes}
    seeds = {o.labels["task"]: o.summary["seeds"] for o in outcomes}
    tables = [
        Shown(
            f"{task}, {TASKS[task]['model']}, {TASKS[task]['train']:,} samples, {rounds[task]} rounds",
            f"{_over(seeds[task])} of the mean over learners, in %, on the test set after the last round; published: "
            f"one seed, after {TASKS[task]['rounds']} rounds. Bytes are of a learner in a round.",
            [_row(task, row, outcomes) for row in ROWS],
            _drawn([o for o in outcomes if o.labels["task"] == task]),
            name=f"table-{task.lower()}",
        )
        for task in rounds
    ]
    whole = [o for o in outcomes if o.summary["rounds"] == TASKS[o.labels["task"]]["rounds"]]
    against = Shown("The default method beside the best that was published", table=_against(whole), name="against")
    return [*tables, against] if against.table else tables


def _over(seeds: int) -> str:
    return f"Mean and standard deviation over {seeds} seeds" if seeds > 1 else "One seed"


def _row(task: str, row: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    line: dict[str, Any] = {"method": row}
    there = [n for n in LEARNERS if any((o.labels["task"], o.labels["learners"]) == (task, n) for o in outcomes)]
    for learners in there:
        found = _of(outcomes, task, row, learners)
        known = published(row, task, learners)
        line[f"N={learners} published"] = known
        line[f"N={learners}"] = in_words(found)
    mine = _of(outcomes, task, row, there[-1])
    return line | {"bytes up": mine and mine.summary["message_bytes"]["up"]}


def _drawn(outcomes: Sequence[Outcome]) -> Callable[[], Any]:
    """Every row's accuracy, measured and published, in a panel for each number of learners."""
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


def _of(outcomes: Sequence[Outcome], task: str, row: str, learners: int) -> Outcome | None:
    wanted = {"task": task, "row": row, "learners": LEARNERS[0] if row == "centralized" else learners}
    return next((o for o in outcomes if o.labels == wanted), None)


def _against(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The blend's cells: is it above every published row but the centralized one, and at which share of the bytes."""
    lines = []
    for task, learners in dict.fromkeys((o.labels["task"], o.labels["learners"]) for o in outcomes):
        blend, common = (_of(outcomes, task, row, learners) for row in ("consilience", "fedavg"))
        if blend is None or common is None:
            continue
        best = best_published(task, learners)
        above = blend.summary["accuracy"]["mean"] - best
        share = common.summary["message_bytes"]["up"] / blend.summary["message_bytes"]["up"]
        lines.append(
            {
                "task": task,
                "N": learners,
                "best published": best,
                "consilience": in_words(blend),
                "above": round(above, 2),
                "of fedavg's bytes": f"1/{share:.1f}",
            }
        )
    return lines


def in_words(outcome: Outcome | None, key: str = "accuracy") -> str | None:
    """An accuracy with its spread over seeds."""
    if outcome is None or outcome.summary[key]["mean"] is None:
        return None
    reached = outcome.summary[key]
    spread = "" if reached["std_seeds"] is None else f" ± {reached['std_seeds']:.1f}"
    return f"{reached['mean']:.1f}{spread}"


TABLE1_OF_THESIS = Reproduction(
    "thesis-table1", "Table 1: methods, tasks and numbers of learners, published beside measured", cells, told
)
