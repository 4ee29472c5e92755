"""What sections need of a cell's run folder: metrics by round from its `metrics.jsonl`, and its numbers of samples.

Functions of an outcome can be records of a cell (`Cell.records`); sections then need no run folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from consilience.errors import CheckpointError
from consilience.papers.cells import Outcome
from consilience.simulation.records.run_folder import PROVENANCE, RunFolder

Curve = list[tuple[int, list[float]]]


def metric_lines(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """The lines of the metrics: one for each round, seed and learner."""
    return (json.loads(text) for text in RunFolder(outcome.folder).lines())


def values_by_round(outcome: Outcome, metric: str, first: int = 1) -> dict[int, list[float]]:
    """The values of a metric over learners and seeds, by round from the first on; rounds without it are left out.

    metric: a dotted name, such as `loss.simclr`.
    """
    head, *rest = metric.split(".")
    values: dict[int, list[float]] = {}
    for line in metric_lines(outcome):
        value = line.get(head)
        for key in rest:
            value = (value or {}).get(key)
        if line["round"] >= first and value is not None:
            values.setdefault(line["round"], []).append(value)
    return dict(sorted(values.items()))


def record_by_round(metric: str, first: int = 1, digits: int = 4) -> Callable[[Outcome], Curve]:
    """A record of `values_by_round`, rounded to `digits` digits; `recorded_by_round` reads it."""

    def read(outcome: Outcome) -> Curve:
        found = values_by_round(outcome, metric, first)
        return [(round_, [round(value, digits) for value in values]) for round_, values in found.items()]

    return read


def recorded_by_round(outcome: Outcome, name: str) -> dict[int, list[float]]:
    """The values of a record of `record_by_round` by round."""
    return {int(round_): list(values) for round_, values in outcome.records[name]}


def provenance_of(outcome: Outcome) -> dict[str, Any]:
    """The run's `data.json`: the origin of its data, and the class counts of learners by seed."""
    file = outcome.folder / PROVENANCE
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error
    return found


def record_samples(outcome: Outcome) -> dict[str, int]:
    """A record of the number of training samples of all learners in the first seed, and of test samples."""
    found = provenance_of(outcome)
    table = next(iter(found["class_counts"].values()))  # (learners, classes)
    return {"train": sum(map(sum, table)), "test": int(found["data"]["test_samples"])}


def select_rounds(tested: Iterable[int], wanted: Iterable[float]) -> list[int]:
    """Of the tested rounds: for each wanted round the first that is not before it, and the last."""
    rounds = sorted(tested)
    firsts = (next((r for r in rounds if r >= each), None) for each in wanted)
    return sorted({r for r in firsts if r is not None} | set(rounds[-1:]))
