"""The origin of a run's data and its split between learners: a record for the folder, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.data.description import describe_dataset
from consilience.data.heterogeneity import measure_heterogeneity
from consilience.data.local_datasets import LocalDatasets
from consilience.data.partition import parse_partition
from consilience.kinds import kind_of

_LINES, _COLUMNS = 12, 20  # the largest table that fits on a screen


def provenance(config: Config, data: Dataset, local_datasets: Sequence[LocalDatasets]) -> dict[str, Any]:
    """The data of a run, its partition, its shifts and the samples of each learner, ready for JSON."""
    return {
        "data": describe_dataset(data),
        "partition": config.federation.partition,
        "shift": describe_shifts(config),
        "case": {"figure": local_datasets[0].case.figure, "description": local_datasets[0].case.describe()},
        "distances": distances(local_datasets[0]),
        "class_counts": {
            str(config.federation.seed + i): local.class_counts().tolist() for i, local in enumerate(local_datasets)
        },
        "owners": {
            str(config.federation.seed + i): owners_of(config, data, local) for i, local in enumerate(local_datasets)
        },
    }


def owners_of(config: Config, data: Dataset, local: LocalDatasets) -> list[str]:
    """The owner of each learner's samples, if the partition is by owner; "" if they belong to several owners."""
    if data.owners is None or parse_partition(config.federation.partition).word != "owners":
        return []
    owners = [np.unique(data.owners[part]) for part in local.parts]
    return [data.owner_names[own[0]] if len(own) == 1 else "" for own in owners]


def distances(local: LocalDatasets) -> dict[str, dict[str, float | bool]]:
    """For each distribution: whether learners should differ in it, how far they do, and how far by chance."""
    found = measure_heterogeneity(local.as_classes(), kinds=local.kinds)
    return {
        field.name: {
            "differs": getattr(local.case, field.name),
            "measured": getattr(found, field.name),
            "by_chance": getattr(found.noise, field.name),
        }
        for field in fields(local.case)
    }


def describe_split(config: Config, data: Dataset, local: LocalDatasets) -> str:
    """The split of the first seed's data, as lines for a terminal."""
    table = local.class_counts()  # (learners, classes)
    shift = "" if (shifts := describe_shifts(config)) == "none" else f", {shifts}"
    sizes = np.array([len(part) for part in local.parts])
    first = f"{data.name}: {sizes.sum():,} samples for {len(table)} learners, {config.federation.partition}{shift}"
    case = f"\n{describe_case(local)}" if local.case.figure else ""
    return f"{first}{case}\n{_table(table, data, sizes)}"


def describe_shifts(config: Config) -> str:
    """The shift of a run, and the shifts of its groups."""
    own = [f"{group.shift} at {name}" for name, group in config.groups.items() if group.shift is not None]
    return ", ".join([*([config.federation.shift] if config.federation.shift != "none" else []), *own]) or "none"


def describe_case(local: LocalDatasets) -> str:
    """Which of the nine cases of heterogeneity this is, or that it is none of them."""
    description = local.case.describe()
    return (
        f"{description}: case {local.case.figure} of the nine kinds of heterogeneity"
        if local.case.figure
        else description
    )


def _table(table: np.ndarray, data: Dataset, sizes: np.ndarray) -> str:
    learners, classes = table.shape
    group, named = kind_of(data.target).group, data.group_names
    if classes > _COLUMNS:
        several = "classes" if group == "class" else f"{group}s"
        least = (table > 0).sum(1).min()
        return f"{sizes.min()} to {sizes.max()} samples per learner, {least} or more {several} each"
    names = named if group == "bin" else [name[:8] for name in named]  # a number cut off is another number
    widths = [max(len(name), len(str(table[:, c].max()))) for c, name in enumerate(names)]
    first = len(f"learner {min(learners, _LINES) - 1}")
    lines = [
        group.ljust(first + 1) + " ".join(f"{name:>{w}}" for name, w in zip(names, widths, strict=True)) + "    all"
    ]
    for who in range(min(learners, _LINES)):
        counts = " ".join(f"{n:>{w}}" for n, w in zip(table[who], widths, strict=True))
        lines.append(f"learner {who}".ljust(first + 1) + f"{counts} {sizes[who]:>6}")
    if learners > _LINES:
        rest = sizes[_LINES:]
        lines.append(f"and {learners - _LINES} more, {rest.min()} to {rest.max()} samples each")
    return "\n".join(lines)
