"""Single-label classification: one class per sample. A group is a class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.errors import DataError
from consilience.kinds.base import Indices, Kind
from consilience.kinds.metric import ACCURACY, Metric
from consilience.kinds.one_hot import one_hot
from consilience.task import Target, Task, TaskKind

if TYPE_CHECKING:
    from torch import Tensor


class SingleLabel(Kind):
    """Targets are class numbers, (n,) int64."""

    name: ClassVar[TaskKind] = "single-label"
    metric: ClassVar[Metric] = ACCURACY
    group: ClassVar[str] = "class"
    several: ClassVar[str] = "classes"

    def check(self, what: str, targets: NDArray[Any], samples: int, classes: int) -> None:
        """Refuse targets that are not class numbers."""
        if targets.shape != (samples,) or targets.dtype != np.int64:
            raise DataError(
                f"{what} targets must be int64 of the shape ({samples},), one for each input, "
                f"got {targets.dtype} of the shape {targets.shape}"
            )
        if targets.min() < 0 or targets.max() >= classes:
            raise DataError(
                f"{what} targets must lie in 0..{classes - 1}, got {targets.min()}..{targets.max()}; "
                f"renumber them or raise classes"
            )

    def counts(self, target: Target, classes: int, targets: NDArray[Any]) -> Indices:
        """Samples of each class."""
        return np.bincount(targets, minlength=classes)

    def strata(self, target: Target, targets: NDArray[Any]) -> Indices:
        """The classes."""
        return targets

    def score(
        self,
        sums: NDArray[Any],
        totals: NDArray[np.float64],
        shares: NDArray[np.float64] | None = None,
        reference: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Accuracy from the correct predictions of each class, (..., classes)."""
        total = totals[..., 0]  # (..., classes)
        if shares is None:
            samples = total.sum(-1)
            return np.where(samples > 0, 100 * sums.sum(-1) / np.maximum(samples, 1), np.nan)
        known = np.where(total > 0, shares, 0.0)
        right = 100 * (known * sums / np.maximum(total, 1)).sum(-1)
        found: NDArray[np.float64] = right / np.maximum(known.sum(-1), 1e-12)
        return found

    def example_targets(self, task: Task, rows: int) -> Tensor:
        """All of class 0."""
        import torch

        return torch.zeros(rows, dtype=torch.int64)

    def membership(self, task: Task, targets: Tensor, valid: Tensor) -> Tensor:
        """The row's class."""
        return one_hot(targets, task.classes).to(valid.dtype) * valid[:, None]

    def expected(self, task: Task, targets: Tensor, means: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of the row's class."""
        return means[targets], (count > 0)[targets].to(means.dtype)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy."""
        from torch.nn import functional as F

        return F.cross_entropy(logits, targets)

    def score_sums(self, task: Task, logits: Tensor, targets: Tensor) -> Tensor:
        """Correct predictions of each class."""
        correct = one_hot(targets, task.classes) & (logits.argmax(1) == targets)[:, None]  # (rows, classes)
        return correct.sum(0)

    def padding(self, targets: Tensor) -> Tensor:
        """No class, -1."""
        return targets.new_full(targets.shape, -1)

    def batch_score(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The share of rows whose largest logit is that of their class."""
        return (logits.argmax(1) == targets).to(logits.dtype).mean()
