"""An overview of a data set: classes, scaling, the split among learners, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from consilience.data import Dataset
from consilience.data.heterogeneity import SYMBOLS
from consilience.data.local_datasets import LocalDatasets
from consilience.data.scaling import Scaling
from consilience.input_fields import InputFields
from consilience.kinds import kind_named
from consilience.presentation.tables import new_table

_LEARNERS = 10  # rows of a picture
_WIDEST, _LINES, _OFTEN = (
    20,
    12,
    5,
)  # columns and lines of a screen; most frequent classes listed per learner


def headline(record: Mapping[str, Any]) -> str:
    """A description of a data set in one line."""
    shape = " x ".join(map(str, record["shape"])) + (" characters" if record["alphabet"] else "")
    if record.get("fields"):
        shape = InputFields.from_record(record["fields"]).describe()
    counts = f"{record['samples']:,} training and {record['test_samples']:,} test samples of {shape}"
    if record["owners"]:
        counts += f" by {len(record['owners']):,} owners"
    scaled = Scaling.from_record(record["scaling"]).describe()
    values = f"an alphabet of {len(record['alphabet'])}" if record["alphabet"] else scaled
    marked = f"; {record['never_shared']:,} marked never to be shared" if record["never_shared"] else ""
    return f"{record['name']}: {counts}, {values}{marked}"


def classes_table(record: Mapping[str, Any]) -> Table:
    """The classes of a data set and how many samples each has; of characters the commonest ones."""
    table = new_table()
    for heading in (_group_word(record), "name", "training", "test"):
        table.add_column(heading, justify="right" if heading != "name" else "left", no_wrap=True)
    labels = record.get("groups") or record["labels"] or ["" for _ in record["class_counts"]]
    rows = list(enumerate(zip(labels, record["class_counts"], record["test_class_counts"], strict=True)))
    if record["alphabet"] and len(rows) > _LINES:
        rows = sorted(rows, key=lambda row: -row[1][1])[:_LINES]
        table.caption, table.caption_justify = f"and {len(labels) - _LINES} more characters", "left"
    for c, (label, n, m) in rows:
        table.add_row(str(c), label, f"{n:,}", f"{m:,}")
    return table


def _group_word(record: Mapping[str, Any]) -> str:
    """What groups of samples are: classes, labels or bins."""
    return kind_named(record["target"]["kind"]).group if "target" in record else "class"


def partition_table(local: LocalDatasets, labels: Sequence[str], owners: Sequence[str]) -> Table:
    """The samples of each class of each learner; shorter if there are many classes."""
    counts = local.class_counts()
    if owners or counts.shape[1] > _WIDEST:
        return _in_short(local, labels, owners)
    table = new_table()
    for heading in ("learner", *labels, "all"):
        table.add_column(heading, justify="right", no_wrap=True)
    for who, row in enumerate(counts):
        table.add_row(str(who), *map(str, row), str(len(local.parts[who])))
    return table


def _in_short(local: LocalDatasets, names: Sequence[str], owners: Sequence[str]) -> Table:
    """The samples, classes and most frequent classes of each learner, and the owner if learners are owners."""
    table, counts = new_table(), local.class_counts()
    for heading in ("learner", "samples", "classes", "most often", *["owner"] * bool(owners)):
        table.add_column(heading, justify="left" if heading in ("most often", "owner") else "right", no_wrap=True)
    for who, row in enumerate(counts[:_LINES]):
        often = ", ".join(names[c] for c in np.argsort(-row, kind="stable")[:_OFTEN] if row[c])
        table.add_row(str(who), f"{len(local.parts[who]):,}", str((row > 0).sum()), often, *owners[who : who + 1])
    if len(counts) > _LINES:
        rest = np.array([len(part) for part in local.parts[_LINES:]])
        table.caption = f"and {len(rest):,} more, {rest.min():,} to {rest.max():,} samples each"
        table.caption_justify = "left"
    return table


def sample_of(data: Dataset) -> str:
    """The first training sample of a text and its continuation, on one line."""
    return f"{data.text(data.inputs[0])!r} continues with {data.text(data.targets[0])!r}"


def distances_table(distances: dict[str, dict[str, Any]]) -> Table:
    """Whether each distribution of learners differs from the federation's: as it should, and as measured."""
    table = new_table()
    for heading in ("", "expected", "measured", "by chance alone"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for symbol, found in zip(SYMBOLS, distances.values(), strict=True):
        expected = "differs" if found["differs"] else "equal"
        table.add_row(symbol, expected, f"{found['measured']:.3f}", f"{found['by_chance']:.3f}")
    return table


def learners_grid(local: LocalDatasets) -> np.ndarray:
    """Pictures as learners have them, (learners x classes, channels, height, width): one of each class, or a blank."""
    learners = local.parts[:_LEARNERS]
    groups = local.class_counts().shape[1]
    grid = np.full((len(learners), groups, *local.inputs.shape[1:]), np.nan, dtype=np.float32)
    for who, part in enumerate(learners):
        for group in range(groups):
            if len(mine := local.in_group(group, part)):
                grid[who, group] = local.inputs[mine[0]]
    return grid.reshape(-1, *local.inputs.shape[1:])


def has_pictures(data: Dataset) -> bool:
    """Whether samples can be shown as pictures: one or three channels, height and width."""
    return len(data.shape) == 3 and data.shape[0] in (1, 3)
