"""Means over the samples of a class, and distances to them, for exchanges that learn classes only."""

from __future__ import annotations

from torch import Tensor

from consilience.functional.group_means import distance_to_expected, group_means
from consilience.kinds.one_hot import one_hot


def membership(targets: Tensor, classes: int, valid: Tensor) -> Tensor:
    """(rows, classes): 1 where the row is a sample of the class."""
    return one_hot(targets, classes).to(valid.dtype) * valid[:, None]


def class_means(values: Tensor, targets: Tensor, classes: int, valid: Tensor, min_count: int) -> tuple[Tensor, Tensor]:
    """The mean of each class (classes, width), of features its prototype, and its sample count (classes,).

    A class with fewer than `min_count` samples counts as absent: the mean of a single sample is that sample.
    """
    return group_means(values, membership(targets, classes, valid), min_count)


def distance_to_means(values: Tensor, targets: Tensor, means: Tensor, count: Tensor) -> Tensor:
    """Mean squared distance of rows to the means (classes, width) of their classes, without classes of count 0."""
    return distance_to_expected(values, means[targets], (count > 0)[targets].to(values.dtype))
