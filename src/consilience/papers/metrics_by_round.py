"""Metrics of a cell's run by round, read from its `metrics.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from consilience.papers.cells import Outcome
from consilience.simulation.records.run_folder import RunFolder


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


def select_rounds(tested: Iterable[int], wanted: Iterable[float]) -> list[int]:
    """Of the tested rounds: for each wanted round the first that is not before it, and the last."""
    rounds = sorted(tested)
    firsts = (next((r for r in rounds if r >= each), None) for each in wanted)
    return sorted({r for r in firsts if r is not None} | set(rounds[-1:]))
