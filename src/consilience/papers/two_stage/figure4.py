"""Two-stage learning's figure 4: a device with rotated images joins a trained federation (Ma et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.metrics_by_round import metric_lines, select_rounds
from consilience.papers.sizes import Experiment
from consilience.papers.two_stage.experiment import BATCH, CALIBRATED, RECORDS, ROWS, TwoStageSize, two_stage_setup
from consilience.papers.two_stage.progress import progress_of
from consilience.presentation.tables import format_bytes

NEWCOMER = "newcomer"
NEWCOMER_ROWS = tuple(row for row in ROWS if row not in (BATCH, CALIBRATED))
_TABLE_ROUNDS = (1, 5, 10)  # since it joined, or the next tested round; and the last
Row = dict[str, Any]


@dataclass(frozen=True)
class NewcomerProgress:
    """A newcomer's accuracy on its own distribution by round since it joined, and its first download in bytes.

    before: the same after its local training, before the round's download changes its model.
    """

    joined: int
    accuracy: Mapping[int, float]
    first_download: float
    before: Mapping[int, float]


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
    records = {**RECORDS, NEWCOMER: record_newcomer}
    changed = {"groups": {NEWCOMER: group}}
    return [Cell({"row": row}, task.settings(scale, row) | changed, records=records) for row in NEWCOMER_ROWS]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """The newcomer's accuracy by round since it joined, and the accuracy of the other learners."""
    newcomers = {outcome.labels["row"]: newcomer_progress(outcome) for outcome in outcomes}
    group = outcomes[0].config.groups[NEWCOMER]
    text = (
        f"The newcomer's accuracy in % on test images rotated like its own ({group.shift}): after its local training, "
        f"before the download of the round changes its model → after that. It joins in round "
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
    """The progress of a run's newcomer, from its record."""
    found = outcome.records[NEWCOMER]
    after, before = ({int(r): one for r, one in found[key]} for key in ("accuracy", "before"))
    return NewcomerProgress(found["joined"], after, found["first_download"], before)


def record_newcomer(outcome: Outcome) -> dict[str, Any]:
    """A record of the newcomer's progress, means over seeds; round 1 is the round in which it joins."""
    config = outcome.config
    ((who, (_, group)),) = config.groups_by_learner().items()
    tested: dict[str, dict[int, list[float]]] = {"accuracy_own": {}, "accuracy_own_before": {}}
    downloads = []
    for line in metric_lines(outcome):
        if line["learner"] != who or line["round"] < group.joins:
            continue
        if line["round"] == group.joins:
            downloads.append(line["bytes"]["down"])
        for metric, found in tested.items():
            if line.get(metric) is not None:
                found.setdefault(line["round"] - group.joins + 1, []).append(line[metric])
    after, before = ([(r, round(fmean(each), 4)) for r, each in sorted(found.items())] for found in tested.values())
    return {"joined": group.joins, "accuracy": after, "before": before, "first_download": fmean(downloads)}


def _newcomer_table(newcomers: Mapping[str, NewcomerProgress]) -> list[Row]:
    lines = []
    for row, newcomer in newcomers.items():
        rounds = select_rounds(newcomer.accuracy, _TABLE_ROUNDS)
        reached = {f"round {r}": _before_and_after(newcomer, r) for r in rounds}
        lines.append({"method": row, **reached, "first download": format_bytes(newcomer.first_download)})
    return lines


def _before_and_after(newcomer: NewcomerProgress, round_: int) -> str:
    """The accuracy before and after merging; only the latter where nothing is merged."""
    after = f"{newcomer.accuracy[round_]:.1f}"
    return f"{newcomer.before[round_]:.1f} → {after}" if round_ in newcomer.before else after


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
