"""Representation sharing without labels: means of common clusters instead of classes. Our own; not in the thesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.formats import both_ways, format_accuracy, format_difference
from consilience.presentation.tables import plural

_ALONE, _NO_PULL = "independent", "cluster-sharing, kd = 0"
ROWS: dict[str, dict[str, Any]] = {
    _ALONE: {"name": "independent", "objective": "simclr"},
    _NO_PULL: {"name": "cluster-sharing", "kd": 0.0},
    "cluster-sharing": {"name": "cluster-sharing"},
    "flesd": {"name": "flesd"},
    "fedavg": {"name": "fedavg", "objective": "simclr"},
}
_FULL: dict[str, Any] = {
    "data": "cifar10",
    "train": 20_000,
    "learners": 6,
    "model": "encoder18",
    "batch_size": 256,
    "weight_decay": 1e-6,
    "rounds": 10,
    "total_epochs": 60,
}
_QUICK: dict[str, Any] = {"data": "digits", "train": 1000, "learners": 10, "rounds": 10, "total_epochs": 20}
_DISTILLATION = {True: {"distill_epochs": 20}, False: {"distill_epochs": 60}}
"""By whether the size is quick: the host's epochs per round."""
_SEEDS = 3


def _cells(scale: Scale) -> list[Cell]:
    """CIFAR-10 with even and with skewed classes; the quick version: digits, a perceptron."""
    settings = {**scale.settings(_SEEDS), **(_QUICK if scale.quick else _FULL), "probe": "auto"}
    settings |= {"eval_every": settings["rounds"]}
    return [
        Cell(
            {"partition": partition, "row": row},
            settings
            | {"partition": partition, "method": method | (_DISTILLATION[scale.quick] if row == "flesd" else {})},
        )
        for partition in (("iid",) if scale.quick else ("iid", "dirichlet(1)"))
        for row, method in ROWS.items()
    ]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """One section per partition."""
    partitions = dict.fromkeys(o.labels["partition"] for o in outcomes)
    return [
        _section(partition, [o for o in outcomes if o.labels["partition"] == partition]) for partition in partitions
    ]


def _section(partition: str, outcomes: Sequence[Outcome]) -> ResultSection:
    summary = outcomes[0].summary
    text = (
        f"{summary['data']}, {summary['model']}, {summary['learners']} learners, {partition}, {summary['rounds']} "
        f"rounds, {plural(summary['seeds'], 'seed')}: accuracy in % of a linear classifier on the features, which is "
        f"trained on all labels, after the last round; bytes per learner and round. With kd = 0 learners share centers "
        "and are not pulled toward them: it shows what the common start alone does."
    )
    return ResultSection(
        f"Learning without labels, {partition}",
        text,
        [_row(o, outcomes) for o in outcomes],
        name=f"clusters-{partition.partition('(')[0]}",
    )


def _row(outcome: Outcome, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    line = {
        "method": outcome.labels["row"],
        "accuracy": format_accuracy(outcome),
        "bytes": round(both_ways(outcome.summary["bytes"])),
    }
    for other in (_ALONE, _NO_PULL):
        found = [o for o in outcomes if o.labels["row"] == other and o is not outcome]
        line[f"difference to {other}"] = format_difference(outcome, found[0]) if found else None
    return line


CLUSTER_SHARING = Reproduction(
    "cluster-sharing", "Means of common clusters shared without labels, beside FLESD and FedAvg", _cells, _sections
)
