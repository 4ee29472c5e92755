"""The interface of a kind of task, over NumPy for data and over torch for learners.

A group is what a prototype is the mean of: a class, a label, or a bin of the target. A sample may be in several groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.kinds.metric import Metric
from consilience.task import Target, Task, TaskKind

if TYPE_CHECKING:
    from torch import Tensor

Indices = NDArray[np.int64]


class Kind:
    """What follows from what is predicted of a sample. Functions of tensors are for one learner, and run under vmap."""

    name: ClassVar[TaskKind]
    metric: ClassVar[Metric]
    group: ClassVar[str]
    """What a group is, in a word."""
    several: ClassVar[str]
    """What groups are, in a word."""

    # -- data, over NumPy ----------------------------------------------------------------------------------------------

    def check(self, what: str, targets: NDArray[Any], samples: int, classes: int) -> None:
        """Refuse targets of a data set that are not in the form of this kind; classes: the model's outputs."""
        raise NotImplementedError

    def groups(self, target: Target, classes: int) -> int:
        """How many groups there are."""
        return classes

    def group_names(self, target: Target, classes: int, names: Sequence[str]) -> list[str]:
        """What groups are called; names: of the classes or labels, empty where they have none."""
        return list(names) or [str(number) for number in range(classes)]

    def counts(self, target: Target, classes: int, targets: NDArray[Any]) -> Indices:
        """How many samples are in each group, (groups,)."""
        raise NotImplementedError

    def strata(self, target: Target, targets: NDArray[Any]) -> Indices:
        """A number for each sample, (n,), equal for samples that a split treats alike."""
        raise NotImplementedError

    def in_groups(self, target: Target, targets: NDArray[Any], groups: Sequence[int]) -> NDArray[np.bool_]:
        """Which samples are in any of these groups, (n,)."""
        found: NDArray[np.bool_] = np.isin(self.strata(target, targets), groups)
        return found

    def totals(self, target: Target, classes: int, targets: NDArray[Any]) -> NDArray[np.float64]:
        """Sums over test samples that `score` needs beside those of predictions, (groups, sums): here how many."""
        return self.counts(target, classes, targets)[:, None].astype(np.float64)

    def score(
        self,
        sums: NDArray[Any],
        totals: NDArray[np.float64],
        shares: NDArray[np.float64] | None = None,
        reference: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """The score in percent, (...), of `score_sums`, (..., columns).

        totals: of the samples that were tested. shares: the shares of the groups in learners' own data, (..., groups);
        each group then counts by its share instead of by its test samples. reference: totals of the common test set,
        where others were tested.
        """
        raise NotImplementedError

    def further_scores(self, target: Target, sums: NDArray[Any], totals: NDArray[np.float64]) -> dict[str, Any]:
        """Other measures of the same sums, by name."""
        return {}

    @property
    def further_names(self) -> Sequence[str]:
        """The names of `further_scores`."""
        return ()

    # -- learners, over torch ------------------------------------------------------------------------------------------

    def example_targets(self, task: Task, rows: int) -> Tensor:
        """Targets of so many samples, to try a model with."""
        raise NotImplementedError

    def membership(self, task: Task, targets: Tensor, valid: Tensor) -> Tensor:
        """(rows, groups): 1 where the row is a sample of the group, 0 elsewhere and where it is not valid."""
        raise NotImplementedError

    def expected(self, task: Task, targets: Tensor, means: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """What each row is pulled toward, (rows, width): the mean of its group, or of its groups' means.

        Also whether there is one, (rows,), 1 or 0; groups of count 0 have none. means: (groups, width).
        """
        raise NotImplementedError

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a mini-batch."""
        raise NotImplementedError

    def columns(self, task: Task) -> int:
        """How many sums `score_sums` has."""
        return self.groups(task.target, task.classes)

    def score_sums(self, task: Task, logits: Tensor, targets: Tensor) -> Tensor:
        """Sums over samples that the score follows from, (columns,).

        Rows that `padding` fills count for nothing.
        """
        raise NotImplementedError

    def padding(self, targets: Tensor) -> Tensor:
        """Targets of the same shape that stand for no sample."""
        raise NotImplementedError

    def batch_score(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The score of a mini-batch, 0 to 1, where it is a mean over samples; else NaN."""
        return logits.new_full((), float("nan"))
