"""Two-stage learning's figure 4: a device with rotated images joins a trained federation (Ma et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.metrics_by_round import metric_lines, select_rounds
from consilience.papers.sizes import Experiment
from consilience.papers.two_stage.experiment import ROWS, TwoStageSize, two_stage_setup
from consilience.papers.two_stage.progress import progress_of
from consilience.presentation.tables import format_bytes
from consilience.simulation.records.run_folder import RunFolder

NEWCOMER = "newcomer"
_TABLE_ROUNDS = (1, 5, 10)  # since it joined, or the next tested round; and the last
Row = dict[str, Any]


@dataclass(frozen=True)
class NewcomerProgress:
    """A newcomer's accuracy on its own distribution by round since it joined, and its first download in bytes."""

    joined: int
    accuracy: Mapping[int, float]
    first_download: float


def _cells(size: TwoStageSize, scale: Scale) -> list[Cell]:
    """Each method with one more learner, which joins late and takes part in every round from then on."""
    newcomer = size.newcomer
    task = replace(newcomer.task, learners=newcomer.task.learners + 1)
    group = {
        "learners": newcomer.task.learners,
        "joins": newcomer.rounds_before + 1,
        "shift": newcomer.shift,
        "samples": newcomer.samples,
        "participation": 1.0,
    }
    return [Cell({"row": row}, task.settings(scale, row) | {"groups": {NEWCOMER: group}}) for row in ROWS]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """The newcomer's accuracy by round since it joined, and the accuracy of the other learners."""
    newcomers = {outcome.labels["row"]: newcomer_progress(outcome) for outcome in outcomes}
    group = RunFolder(outcomes[0].folder).config.groups[NEWCOMER]
    text = (
        f"The newcomer's accuracy in % on test images rotated like its own ({group.shift}). It joins in round "
        f"{group.joins} with {group.samples} samples and takes part in every round from then on. two-stage-1bit "
        f"also uploads the devices' part; independent is a control: the newcomer trains alone. First download: bytes "
        f"it downloads in its first round, the current common values and the answer of that round. Published as a "
        f"figure without numbers: two-stage is above fedavg and fedprox.\n\n{two_stage_setup(outcomes)} CIFAR-10 has "
        f"at most 20,000 images instead of 50,000, and all learners share one test set instead of 100 images each."
    )
    others = (
        "Accuracy in % on images that are not rotated, before the newcomer joined and after the last round: of the "
        "mean of all learners' logits, or of the newest common model."
    )
    return [
        ResultSection(
            "A newcomer with rotated images", text, _newcomer_table(newcomers), _figure(newcomers), "newcomer"
        ),
        ResultSection("Accuracy of the other learners", others, _others_table(outcomes, newcomers), name="others"),
    ]


def newcomer_progress(outcome: Outcome) -> NewcomerProgress:
    """The progress of a run's newcomer, the mean over seeds; round 1 is the round in which it joins."""
    config = RunFolder(outcome.folder).config
    ((who, (_, group)),) = config.groups_by_learner().items()
    tested: dict[int, list[float]] = {}
    downloads = []
    for line in metric_lines(outcome):
        if line["learner"] != who or line["round"] < group.joins:
            continue
        if line["round"] == group.joins:
            downloads.append(line["bytes"]["down"])
        if line["accuracy_own"] is not None:
            tested.setdefault(line["round"] - group.joins + 1, []).append(line["accuracy_own"])
    accuracy = {r: fmean(found) for r, found in sorted(tested.items())}
    return NewcomerProgress(group.joins, accuracy, fmean(downloads))


def _newcomer_table(newcomers: Mapping[str, NewcomerProgress]) -> list[Row]:
    lines = []
    for row, newcomer in newcomers.items():
        reached = {f"round {r}": f"{newcomer.accuracy[r]:.1f}" for r in select_rounds(newcomer.accuracy, _TABLE_ROUNDS)}
        lines.append({"method": row, **reached, "first download": format_bytes(newcomer.first_download)})
    return lines


def _others_table(outcomes: Sequence[Outcome], newcomers: Mapping[str, NewcomerProgress]) -> list[Row]:
    lines = []
    for outcome in outcomes:
        progress, newcomer = progress_of(outcome), newcomers[outcome.labels["row"]]
        before, after = progress.before(newcomer.joined), progress.final
        line: Row = {"method": outcome.labels["row"]}
        line |= {"before": before and f"{before:.1f}", "after the last round": after and f"{after:.1f}"}
        lines.append(line | ({"change": f"{after - before:+.1f}"} if before is not None and after is not None else {}))
    return lines


def _figure(newcomers: Mapping[str, NewcomerProgress]) -> Callable[[], Any]:
    rows = [
        {"method": row, "rounds since it joined": round_, "accuracy": accuracy}
        for row, newcomer in newcomers.items()
        for round_, accuracy in newcomer.accuracy.items()
    ]

    def figure() -> Any:
        from consilience.presentation.charts import curves

        return curves(rows, title="own accuracy, %", x="rounds since it joined", names=ROWS)

    return figure


FIGURE4 = Experiment(
    "two-stage-universality", "Two-stage learning's figure 4: a device with rotated images joins", _cells, _sections
)
