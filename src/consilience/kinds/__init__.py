"""Kinds of tasks: what the loss, the score and the groups of samples are, one file for each kind, chosen by name.

Nothing here imports torch before a tensor function is called.
"""

from __future__ import annotations

from consilience.errors import UnknownName
from consilience.kinds.base import Kind
from consilience.kinds.metric import ACCURACY, METRICS, Metric
from consilience.kinds.multi_label import MultiLabel
from consilience.kinds.regression import Regression
from consilience.kinds.single_label import SingleLabel
from consilience.task import Target, Task, TaskKind

__all__ = ["ACCURACY", "ALL_KINDS", "KINDS", "METRICS", "Kind", "Metric", "group_count", "kind_named", "kind_of"]

KINDS: dict[TaskKind, Kind] = {kind.name: kind for kind in (SingleLabel(), MultiLabel(), Regression())}
"""Every kind of task by name."""
ALL_KINDS: tuple[TaskKind, ...] = tuple(KINDS)


def kind_named(name: str) -> Kind:
    """The kind of that name.

    >>> kind_named("regression").metric.name
    'R²'
    """
    if name not in KINDS:
        raise UnknownName("kind of task", name, KINDS)
    return KINDS[name]


def kind_of(thing: Task | Target) -> Kind:
    """The kind of a task or a target."""
    return KINDS[thing.target.kind if isinstance(thing, Task) else thing.kind]


def group_count(task: Task) -> int:
    """How many groups of samples have a mean of their own: classes, labels, or bins of a number."""
    return kind_of(task).groups(task.target, task.classes)
