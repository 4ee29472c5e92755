"""Multi-label classification: a set of labels per sample. A group is a label: the samples that have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.errors import DataError
from consilience.kinds.base import Indices, Kind
from consilience.kinds.metric import F1, Metric
from consilience.task import Target, Task, TaskKind

if TYPE_CHECKING:
    from torch import Tensor


class MultiLabel(Kind):
    """Targets are 0 or 1 for each label, (n, labels) int64."""

    name: ClassVar[TaskKind] = "multi-label"
    metric: ClassVar[Metric] = F1
    group: ClassVar[str] = "label"
    several: ClassVar[str] = "labels"

    def check(self, what: str, targets: NDArray[Any], samples: int, classes: int) -> None:
        """Refuse targets that are not 0 or 1 for each label."""
        if targets.shape != (samples, classes) or targets.dtype != np.int64 or not np.isin(targets, (0, 1)).all():
            raise DataError(
                f"{what} targets must be int64 of the shape ({samples}, {classes}), 0 or 1 for each label of each "
                f"input, got {targets.dtype} of the shape {targets.shape}, from {targets.min()} to {targets.max()}"
            )

    def counts(self, target: Target, classes: int, targets: NDArray[Any]) -> Indices:
        """Samples that have each label."""
        found: Indices = targets.sum(0)
        return found

    def strata(self, target: Target, targets: NDArray[Any]) -> Indices:
        """The combination of labels: samples with the same set have the same number."""
        found: Indices = np.unique(targets, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        return found

    def in_groups(self, target: Target, targets: NDArray[Any], groups: Sequence[int]) -> NDArray[np.bool_]:
        """Which samples have any of these labels."""
        found: NDArray[np.bool_] = (targets[:, list(groups)] == 1).any(axis=1)
        return found

    def score(
        self,
        sums: NDArray[Any],
        totals: NDArray[np.float64],
        shares: NDArray[np.float64] | None = None,
        reference: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Micro-averaged F1 from the decisions about each label, (..., 3 x labels).

        With shares, what is decided about a label counts as if the samples that have it were as frequent as in the
        learner's own data.
        """
        right, wrong, missed = np.split(np.asarray(sums, dtype=np.float64), 3, axis=-1)  # (..., labels) each
        weight = np.ones(1)
        if shares is not None:
            tested = totals[..., 0] / np.maximum(totals[..., 0].sum(-1, keepdims=True), 1)  # (..., labels)
            weight = np.where(tested > 0, shares / np.maximum(tested, 1e-12), 0.0)
        twice = 2 * (weight * right).sum(-1)
        found: NDArray[np.float64] = 100 * twice / np.maximum(twice + (weight * (wrong + missed)).sum(-1), 1e-12)
        return found

    def example_targets(self, task: Task, rows: int) -> Tensor:
        """Without any label."""
        import torch

        return torch.zeros((rows, task.classes), dtype=torch.int64)

    def membership(self, task: Task, targets: Tensor, valid: Tensor) -> Tensor:
        """The row's labels."""
        return targets.to(valid.dtype) * valid[:, None]

    def expected(self, task: Task, targets: Tensor, means: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of the prototypes of the row's labels.

        The distance to it has the gradient of the mean of the distances to each of them.
        """
        member = targets.to(means.dtype) * (count > 0).to(means.dtype)  # (rows, labels)
        known = member.sum(1)
        return (member @ means) / known.clamp(min=1)[:, None], (known > 0).to(means.dtype)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy, the sum over labels: how unlikely a sample's set is, as cross-entropy is of its class.

        The mean over labels would be as many times smaller beside penalties such as the distance to prototypes, whose
        weights are for cross-entropy: features would collapse to one point before any label is learned.
        """
        from torch.nn import functional as F

        each = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")  # (rows, labels)
        return each.sum(1).mean()

    def columns(self, task: Task) -> int:
        """Labels given rightly, given wrongly, and missed."""
        return 3 * task.classes

    def score_sums(self, task: Task, logits: Tensor, targets: Tensor) -> Tensor:
        """How often each label is given rightly, given wrongly, and missed; a label is given above one half."""
        import torch

        given = logits > 0  # (rows, labels)
        counts = given & (targets == 1), given & (targets == 0), ~given & (targets == 1)
        return torch.cat([each.sum(0) for each in counts])

    def padding(self, targets: Tensor) -> Tensor:
        """Neither with a label nor without, -1."""
        return targets.new_full(targets.shape, -1)
