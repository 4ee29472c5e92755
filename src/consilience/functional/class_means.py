"""Means over the samples of a class, and distances to them, where every sample has one class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consilience.functional.group_means import as_type_of, distance_to_expected, group_means, sampled_group_means
from consilience.kinds.one_hot import AnyArray, one_hot

if TYPE_CHECKING:
    from torch import Tensor


def membership(targets: AnyArray, classes: int, valid: AnyArray) -> AnyArray:
    """(rows, classes): 1 where the row is a sample of the class."""
    member: AnyArray = as_type_of(valid, one_hot(targets, classes)) * valid[:, None]
    return member


def class_means(
    values: AnyArray, targets: AnyArray, classes: int, valid: AnyArray, min_count: int
) -> tuple[AnyArray, AnyArray]:
    """The mean of each class (classes, width), of features its prototype, and its sample count (classes,).

    A class with fewer than `min_count` samples counts as absent: the mean of a single sample is that sample.
    """
    return group_means(values, membership(targets, classes, valid), min_count)


def sampled_means(
    values: AnyArray, targets: AnyArray, classes: int, valid: AnyArray, chance: AnyArray, size: int, min_count: int
) -> tuple[AnyArray, AnyArray]:
    """As `class_means`, over at most `size` samples of each class: those with the smallest `chance` (rows,)."""
    return sampled_group_means(values, membership(targets, classes, valid), chance, size, min_count)


def distance_to_means(values: Tensor, targets: Tensor, means: Tensor, count: Tensor) -> Tensor:
    """Mean squared distance of rows to the means (classes, width) of their classes, without classes of count 0."""
    return distance_to_expected(values, means[targets], (count > 0)[targets].to(values.dtype))
