"""A data set on show: its classes, how it was scaled, how learners would have it, and pictures of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from consilience.data import Dataset
from consilience.data.deal import Deal
from consilience.data.discrepancy import SYMBOLS
from consilience.report.tables import plain_table

_LEARNERS = 10  # rows of a picture


def headline(record: Mapping[str, Any]) -> str:
    """What a data set is, in a line."""
    shape = " x ".join(map(str, record["shape"]))
    counts = f"{record['samples']:,} training and {record['test_samples']:,} test samples of {shape}"
    scaled = f"scaled by mean {record['mean']:.4f} and standard deviation {record['std']:.4f}"
    marked = f"; {record['never_shared']:,} marked never to be shared" if record["never_shared"] else ""
    return f"{record['name']}: {counts}, {scaled}{marked}"


def classes_table(record: Mapping[str, Any]) -> Table:
    """The classes of a data set and how many samples each has."""
    table = plain_table()
    for heading in ("class", "name", "training", "test"):
        table.add_column(heading, justify="right" if heading != "name" else "left", no_wrap=True)
    labels = record["labels"] or ["" for _ in record["class_counts"]]
    for c, (label, n, m) in enumerate(zip(labels, record["class_counts"], record["test_class_counts"], strict=True)):
        table.add_row(str(c), label, f"{n:,}", f"{m:,}")
    return table


def dealt_table(deal: Deal, labels: Sequence[str]) -> Table:
    """How many samples of each class each learner has."""
    table = plain_table()
    counts = deal.table()
    for heading in ("learner", *(labels or map(str, range(counts.shape[1]))), "all"):
        table.add_column(heading, justify="right", no_wrap=True)
    for who, row in enumerate(counts):
        table.add_row(str(who), *map(str, row), str(row.sum()))
    return table


def distances_table(distances: dict[str, dict[str, Any]]) -> Table:
    """Which of a learner's distributions differ from the federation's, claimed and measured."""
    table = plain_table()
    for heading in ("", "claimed", "measured", "by chance alone"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for symbol, found in zip(SYMBOLS, distances.values(), strict=True):
        claimed = "differs" if found["differs"] else "equal"
        table.add_row(symbol, claimed, f"{found['measured']:.3f}", f"{found['by_chance']:.3f}")
    return table


def learners_grid(deal: Deal) -> np.ndarray:
    """Pictures as learners have them, (learners x classes, channels, height, width): one of each class, or a blank."""
    learners = deal.parts[:_LEARNERS]
    grid = np.full((len(learners), deal.classes, *deal.inputs.shape[1:]), np.nan, dtype=np.float32)
    for who, part in enumerate(learners):
        for label in np.unique(deal.targets[part]):
            grid[who, label] = deal.inputs[part[np.argmax(deal.targets[part] == label)]]
    return grid.reshape(-1, *deal.inputs.shape[1:])


def has_pictures(data: Dataset) -> bool:
    """Whether samples can be looked at: one or three channels, height and width."""
    return len(data.shape) == 3 and data.shape[0] in (1, 3)
