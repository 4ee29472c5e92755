"""Two-stage learning's figure 4: a device whose images are rotated joins a federation that has learned already."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from consilience.papers.cells import Cell, Outcome, Scale, Shown
from consilience.papers.two_stage.experiment import ROWS, SIZES, Size, circumstances
from consilience.papers.two_stage.progress import course_of, some_of
from consilience.presentation.tables import format_bytes
from consilience.simulation.records.run_folder import RunFolder

NEWCOMER = "newcomer"
_TOLD = (1, 5, 10)  # rounds after which the table tells how good it is, or the next tested; and the last
Row = dict[str, Any]


@dataclass(frozen=True)
class Arrival:
    """What a newcomer had learned after each round it was there, by its own tests, and what it heard in the first."""

    joined: int
    accuracy: Mapping[int, float]
    heard: float


def cells(size: Size, scale: Scale) -> list[Cell]:
    """Each method with one learner more, who joins late and then takes part in every round."""
    joining = size.joining
    task = replace(joining.task, learners=joining.task.learners + 1)
    group = {
        "learners": joining.task.learners,
        "joins": joining.before + 1,
        "shift": joining.shift,
        "samples": joining.samples,
        "participation": 1.0,
    }
    return [Cell({"row": row}, task.settings(scale, row) | {"groups": {NEWCOMER: group}}) for row in ROWS]


def told(outcomes: Sequence[Outcome]) -> list[Shown]:
    """The newcomer's accuracy by round since it joined; and what became of the others."""
    arrivals = {outcome.labels["row"]: arrival_of(outcome) for outcome in outcomes}
    terms = RunFolder(outcomes[0].folder).config.groups[NEWCOMER]
    text = (
        f"The newcomer's own accuracy in %, on test images rotated as its own are ({terms.shift}). It joins in round "
        f"{terms.joins} with {terms.samples} samples and takes part in every round from then on. two-stage-1bit "
        f"shares the devices' part, too; independent is a control: the newcomer learns alone. Joining: bytes it hears "
        f"in its first round, which are the common values or all that was said, and that round's answer. Published as "
        f"a figure without numbers: two-stage is above fedavg and fedprox.\n\n{circumstances(outcomes)} Of "
        f"CIFAR-10 there are 20,000 images at most and not 50,000, and the tests are all learners' and not 100 each."
    )
    others = (
        "Accuracy in % on images that are not rotated, before the newcomer came and at the end: that of all learners' "
        "mean logits, or of the newest common model."
    )
    return [
        Shown("A newcomer with rotated images", text, _learned(arrivals), _climbing(arrivals), "newcomer"),
        Shown("What became of the others", others, _suffered(outcomes, arrivals), name="others"),
    ]


def arrival_of(outcome: Outcome) -> Arrival:
    """What a run's newcomer came to, the mean over seeds; round 1 is the first it was there."""
    config = RunFolder(outcome.folder).config
    ((who, (_, group)),) = config.members().items()
    tested: dict[int, list[float]] = {}
    heard = []
    for text in RunFolder(outcome.folder).lines():
        line = json.loads(text)
        if line["learner"] != who or line["round"] < group.joins:
            continue
        if line["round"] == group.joins:
            heard.append(line["bytes"]["down"])
        if line["accuracy_local"] is not None:
            tested.setdefault(line["round"] - group.joins + 1, []).append(line["accuracy_local"])
    return Arrival(group.joins, {r: fmean(found) for r, found in sorted(tested.items())}, fmean(heard))


def _learned(arrivals: Mapping[str, Arrival]) -> list[Row]:
    lines = []
    for row, arrival in arrivals.items():
        reached = {f"round {r}": f"{arrival.accuracy[r]:.1f}" for r in some_of(arrival.accuracy, _TOLD)}
        lines.append({"method": row, **reached, "joining": format_bytes(arrival.heard)})
    return lines


def _suffered(outcomes: Sequence[Outcome], arrivals: Mapping[str, Arrival]) -> list[Row]:
    lines = []
    for outcome in outcomes:
        course, arrival = course_of(outcome), arrivals[outcome.labels["row"]]
        before, after = course.before(arrival.joined), course.final
        line: Row = {"method": outcome.labels["row"]}
        line |= {"before": before and f"{before:.1f}", "at the end": after and f"{after:.1f}"}
        lines.append(line | ({"change": f"{after - before:+.1f}"} if before is not None and after is not None else {}))
    return lines


def _climbing(arrivals: Mapping[str, Arrival]) -> Callable[[], Any]:
    rows = [
        {"method": row, "rounds since it joined": round_, "accuracy": accuracy}
        for row, arrival in arrivals.items()
        for round_, accuracy in arrival.accuracy.items()
    ]

    def figure() -> Any:
        from consilience.presentation.charts import curves

        return curves(rows, title="accuracy on its own tests, %", x="rounds since it joined", names=ROWS)

    return figure


UNIVERSALITY = SIZES.both(
    "two-stage-universality", "Two-stage learning's figure 4: a device with rotated images joins", cells, told
)
