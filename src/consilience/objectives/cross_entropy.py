"""The plain losses of the kinds of tasks: cross-entropy, binary cross-entropy and squared error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from consilience.exchanges.base import View
from consilience.kinds import kind_of
from consilience.objectives.base import Objective
from consilience.task import TaskKind


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Mean negative log-likelihood of the correct class; for other kinds of tasks their own plain loss."""

    name: ClassVar[str] = "cross_entropy"

    def for_kind(self, kind: TaskKind) -> Objective:
        """The plain loss of the kind."""
        return self if type(self) not in _PLAIN.values() else _PLAIN[kind]()

    def loss(self, view: View) -> Tensor:
        """The loss of a mini-batch."""
        return kind_of(view.task).loss(view.logits, view.targets)

    def batch_accuracy(self, view: View) -> Tensor:
        """The share of a mini-batch that is predicted correctly, where a sample is right or wrong."""
        return kind_of(view.task).batch_score(view.logits, view.targets)


@dataclass(frozen=True)
class BinaryCrossEntropy(CrossEntropy):
    """Negative log-likelihood of the labels, present or absent: their sum, and the mean over samples."""

    name: ClassVar[str] = "binary_cross_entropy"
    kinds: ClassVar[tuple[TaskKind, ...]] = ("multi-label",)


@dataclass(frozen=True)
class SquaredError(CrossEntropy):
    """Mean squared error of standardized numbers."""

    name: ClassVar[str] = "squared_error"
    kinds: ClassVar[tuple[TaskKind, ...]] = ("regression",)


_PLAIN: dict[TaskKind, type[CrossEntropy]] = {
    "single-label": CrossEntropy,
    "multi-label": BinaryCrossEntropy,
    "regression": SquaredError,
}
