"""Regression: one number per sample, standardized by the training data. A group is a bin of the number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.errors import DataError
from consilience.kinds.base import Indices, Kind
from consilience.kinds.metric import R2, Metric
from consilience.kinds.one_hot import one_hot
from consilience.task import Target, Task, TaskKind

if TYPE_CHECKING:
    from torch import Tensor

BINS = 5
"""How many bins a target is divided into, with equally many training samples each where values are different."""


class Regression(Kind):
    """Targets are numbers, (n,) float64, with mean 0 and standard deviation 1 over the training data."""

    name: ClassVar[TaskKind] = "regression"
    metric: ClassVar[Metric] = R2
    group: ClassVar[str] = "bin"
    several: ClassVar[str] = "bins"

    def check(self, what: str, targets: NDArray[Any], samples: int, classes: int) -> None:
        """Refuse targets that are not finite numbers."""
        if targets.shape != (samples,) or targets.dtype != np.float64 or not np.isfinite(targets).all():
            raise DataError(
                f"{what} targets must be float64 of the shape ({samples},), a finite number for each input, "
                f"got {targets.dtype} of the shape {targets.shape}"
            )
        if classes != 1:
            raise DataError(f"{what}: a regression predicts one number, so classes is 1, got {classes}")

    def groups(self, target: Target, classes: int) -> int:
        """One more than edges between them."""
        return len(target.edges) + 1

    def group_names(self, target: Target, classes: int, names: Sequence[str]) -> list[str]:
        """Up to which number, in the user's unit, each bin reaches."""
        edges = [f"{edge * target.std + target.mean:.4g}" for edge in target.edges]
        return [*(f"to {edge}" for edge in edges), f"over {edges[-1]}" if edges else "all"]

    def counts(self, target: Target, classes: int, targets: NDArray[Any]) -> Indices:
        """Samples in each bin."""
        return np.bincount(self.strata(target, targets), minlength=self.groups(target, classes))

    def strata(self, target: Target, targets: NDArray[Any]) -> Indices:
        """The bins."""
        found: Indices = (targets[:, None] > np.array(target.edges)).sum(1).astype(np.int64)
        return found

    def totals(self, target: Target, classes: int, targets: NDArray[Any]) -> NDArray[np.float64]:
        """Samples in each bin, the sum of their numbers and of the squares, (bins, 3)."""
        powers = np.stack([np.ones_like(targets), targets, targets**2], axis=1)  # (n, 3)
        inside = np.eye(self.groups(target, classes))[self.strata(target, targets)]  # (n, bins)
        found: NDArray[np.float64] = inside.T @ powers
        return found

    def score(
        self,
        sums: NDArray[Any],
        totals: NDArray[np.float64],
        shares: NDArray[np.float64] | None = None,
        reference: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """R² from the squared errors in each bin, (..., bins): 1 - mean squared error / variance.

        With shares, each bin's mean squared error counts by its share. The variance is always that of the common test
        targets, so that learners with a narrow range of targets are measured in the same unit.
        """
        count = totals[..., 0]  # (..., bins)
        if shares is None:
            error = sums.sum(-1) / np.maximum(count.sum(-1), 1)
        else:
            known = np.where(count > 0, shares, 0.0)
            error = (known * sums / np.maximum(count, 1)).sum(-1) / np.maximum(known.sum(-1), 1e-12)
        samples, first, second = np.moveaxis((totals if reference is None else reference).sum(-2), -1, 0)
        variance = second / np.maximum(samples, 1) - (first / np.maximum(samples, 1)) ** 2
        known_samples = (count.sum(-1) > 0) & (variance > 1e-12)
        return np.where(known_samples, 100 * (1 - error / np.maximum(variance, 1e-12)), np.nan)

    def further_scores(self, target: Target, sums: NDArray[Any], totals: NDArray[np.float64]) -> dict[str, Any]:
        """The root of the mean squared error, in the user's unit."""
        return {"rmse": target.std * np.sqrt(sums.sum(-1) / np.maximum(totals[..., 0].sum(-1), 1))}

    @property
    def further_names(self) -> Sequence[str]:
        """The root of the mean squared error."""
        return ("rmse",)

    def example_targets(self, task: Task, rows: int) -> Tensor:
        """All at the mean."""
        import torch

        return torch.zeros(rows)

    def membership(self, task: Task, targets: Tensor, valid: Tensor) -> Tensor:
        """The row's bin."""
        bins = one_hot(self._bins(task, targets), self.groups(task.target, task.classes))
        return bins.to(valid.dtype) * valid[:, None]

    def expected(self, task: Task, targets: Tensor, means: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of the row's bin."""
        bins = self._bins(task, targets)
        return means[bins], (count > 0)[bins].to(means.dtype)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of standardized numbers."""
        return (logits[:, 0] - targets.to(logits.dtype)).square().mean()

    def score_sums(self, task: Task, logits: Tensor, targets: Tensor) -> Tensor:
        """Squared errors of each bin."""
        import torch

        wide = torch.float32 if logits.device.type == "mps" else torch.float64
        valid = (~targets.isnan()).to(wide)
        truth = torch.where(targets.isnan(), torch.zeros_like(targets), targets)
        errors = (logits[:, 0].to(wide) - truth.to(wide)).square()
        return errors @ self.membership(task, truth, valid)

    def padding(self, targets: Tensor) -> Tensor:
        """NaN."""
        return targets.new_full(targets.shape, float("nan"))

    def _bins(self, task: Task, targets: Tensor) -> Tensor:
        """The bin of each row, (rows,)."""
        import torch

        # Each edge as a number: a tensor made of a list could not be recorded in a CUDA graph.
        return sum((targets > edge for edge in task.target.edges), torch.zeros_like(targets, dtype=torch.int64))


def standardized(target: Target, targets: NDArray[Any]) -> NDArray[Any]:
    """Targets in the user's unit as learners have them; what is no regression stays as it is."""
    return (targets - target.mean) / target.std if target.kind == "regression" else targets


def in_users_unit(target: Target, targets: NDArray[Any]) -> NDArray[Any]:
    """The inverse of `standardized`."""
    return targets * target.std + target.mean if target.kind == "regression" else targets


def measured_target(what: str, targets: NDArray[np.float64]) -> Target:
    """How targets in the user's unit are standardized and divided into bins, from the training data."""
    with np.errstate(over="ignore"):
        mean, std = float(targets.mean()), float(targets.std())
    largest = float(np.abs(targets).max())
    if not np.isfinite(std):
        raise DataError(f"{what} are up to {largest:g}, too large to be squared; give them in a larger unit")
    if not std > 1e-12 * largest:
        raise DataError(
            f"{what} are all {targets[0]:g}: a constant cannot be learned; give targets that differ, or leave the data "
            f"set out"
        )
    standardized = (targets - mean) / std
    inner = np.unique(np.quantile(standardized, np.arange(1, BINS) / BINS))
    used = np.unique((standardized[:, None] > inner).sum(1))  # bins with training samples
    edges = [float(inner[number]) for number in used[:-1]]
    return Target("regression", tuple(edges), mean, std)
