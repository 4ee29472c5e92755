"""What the sections of FLESD's experiments need of a run, kept in `cells.jsonl`; and means over seeds of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from consilience.papers.cells import Cell, Labels, Outcome
from consilience.papers.metrics_by_round import metric_lines, provenance_of, record_by_round, recorded_by_round
from consilience.presentation.paired import paired_difference

BySeed = dict[int, float]


def flesd_cell(labels: Labels, settings: Mapping[str, Any]) -> Cell:
    """A cell of one seed, whose sections need no run folder."""
    return Cell(labels, settings, records=RECORDS)


def _probes(outcome: Outcome) -> dict[str, dict[str, float | None]]:
    """The mean over learners and the worst learner by each probe, after the last round."""
    return {
        probe: {which: _rounded(reached[which]) for which in ("mean", "worst")}
        for probe, reached in outcome.summary["probes"].items()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _bytes(outcome: Outcome) -> dict[str, Any]:
    """Bytes of all learners after each round, both ways, from round 0 on, and how many of them are the public set."""
    by_round: dict[int, int] = {}
    public = 0
    for line in metric_lines(outcome):
        moved = line["bytes"]
        by_round[line["round"]] = by_round.get(line["round"], 0) + round(moved["up"] + moved["down"])
        public += round(moved.get("public", 0))
    totals, total = [], 0
    for round_ in sorted(by_round):
        total += by_round[round_]
        totals.append(total)
    return {"after_round": totals, "public": public}


def _class_counts(outcome: Outcome) -> list[list[int]]:
    """How many images of each class each learner has, (learners, classes)."""
    found: list[list[int]] = next(iter(provenance_of(outcome)["class_counts"].values()))
    return found


RECORDS: Mapping[str, Callable[[Outcome], Any]] = {
    "probes": _probes,
    "accuracy": record_by_round("accuracy", digits=2),
    "accuracy_linear": record_by_round("accuracy_linear", digits=2),
    "loss.simclr": record_by_round("loss.simclr"),
    "loss.similarity": record_by_round("loss.similarity"),
    "bytes": _bytes,
    "class_counts": _class_counts,
}
"""The records of every cell. Runs have one seed, so that values by round are those of its learners."""


def by_seed(outcomes: Sequence[Outcome], which: str = "mean", probe: str = "linear") -> BySeed:
    """The accuracy of each seed: the mean over learners or the worst learner, by a probe, after the last round."""
    found = {o.labels["seed"]: o.records["probes"].get(probe, {}).get(which) for o in outcomes}
    return {seed: value for seed, value in found.items() if value is not None}


def group_outcomes(outcomes: Sequence[Outcome], *labels: str) -> dict[tuple[Any, ...], list[Outcome]]:
    """The outcomes by some of their labels, in the order in which these first occur."""
    found: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(tuple(outcome.labels[label] for label in labels), []).append(outcome)
    return found


def means_by_round(outcomes: Sequence[Outcome], name: str) -> dict[int, float]:
    """The mean of a record over learners and seeds, by round."""
    values: dict[int, list[float]] = {}
    for outcome in outcomes:
        for round_, found in recorded_by_round(outcome, name).items():
            values.setdefault(round_, []).extend(found)
    return {round_: fmean(found) for round_, found in sorted(values.items())}


def total_bytes(outcomes: Sequence[Outcome], each_round: bool = False) -> float:
    """The mean over seeds of all bytes of a run; each_round: the public set is sent again in every round."""
    return fmean(
        o.records["bytes"]["after_round"][-1]
        + (o.records["bytes"]["public"] * (o.summary["rounds"] - 1) if each_round else 0)
        for o in outcomes
    )


def format_mean(values: Mapping[int, float]) -> str | None:
    """The mean over seeds and its standard deviation."""
    if not values:
        return None
    spread = f" ± {stdev(values.values()):.1f}" if len(values) > 1 else ""
    return f"{fmean(values.values()):.1f}{spread}"


def format_paired(ours: BySeed, theirs: BySeed) -> str | None:
    """The mean difference over common seeds and its 95 % interval; one seed has none."""
    found = paired_difference(ours, theirs)
    if found is None:
        return None
    if found.low is None or found.high is None:
        return f"{found.mean:+.1f} (one seed)"
    return f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})"
