"""Means over the samples of a class, without branches: a class without samples is a row of zeros with count 0."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALL = 0.1


def one_hot(targets: Tensor, classes: int) -> Tensor:
    """(rows, classes): true at the row's class. torch.nn.functional.one_hot reads values, which vmap does not allow."""
    return targets[:, None] == torch.arange(classes, device=targets.device)


def membership(targets: Tensor, classes: int, valid: Tensor) -> Tensor:
    """(rows, classes): 1 where the row is a sample of the class."""
    return one_hot(targets, classes).to(valid.dtype) * valid[:, None]


def class_means(values: Tensor, targets: Tensor, classes: int, valid: Tensor, min_count: int) -> tuple[Tensor, Tensor]:
    """The mean of each class (classes, width), of features its prototype, and its sample count (classes,).

    A class with fewer than `min_count` samples counts as absent: the mean of a single sample is that sample.
    """
    member = membership(targets, classes, valid)  # (rows, classes)
    return _means(member, values, member.sum(0), min_count)


def sampled_means(
    values: Tensor, targets: Tensor, classes: int, valid: Tensor, chance: Tensor, size: int, min_count: int
) -> tuple[Tensor, Tensor]:
    """As `class_means`, over at most `size` samples of each class: those with the smallest `chance` (rows,)."""
    total = membership(targets, classes, valid).sum(0)
    chosen = sampled_membership(targets, classes, valid, chance, size)
    means, _ = _means(chosen, values, total, min_count)
    return means, torch.where(total >= min_count, total.clamp(max=size), torch.zeros_like(total))


def sampled_membership(targets: Tensor, classes: int, valid: Tensor, chance: Tensor, size: int) -> Tensor:
    """(rows, classes): 1 where the row is one of the at most `size` samples of the class with the smallest `chance`."""
    member = membership(targets, classes, valid)
    total = member.sum(0)
    # Sorting by class + chance puts each class in a block, shuffled; padding goes last.
    place = torch.where(valid > 0, targets, classes).to(chance.dtype) + chance
    order = place.argsort()
    position = torch.zeros_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    first = total.cumsum(0) - total  # (classes,) where each block begins
    rank = position - first[targets].to(position.dtype)
    return member * (rank < size).to(member.dtype)[:, None]


def _means(member: Tensor, values: Tensor, total: Tensor, min_count: int) -> tuple[Tensor, Tensor]:
    taken = member.sum(0)
    enough = total >= min_count
    means = (member.T @ values) / taken.clamp(min=1)[:, None]
    return torch.where(enough[:, None], means, torch.zeros_like(means)), torch.where(enough, taken, 0 * taken)


def spread_of_means(means: Tensor, count: Tensor) -> Tensor:
    """Mean squared distance, over classes and dimensions, of class means from their center; 0 for fewer than two."""
    known = (count > 0).to(means.dtype)[:, None]  # (classes, 1)
    total = known.sum().clamp(min=1)
    center = (means * known).sum(0) / total
    return ((means - center).square() * known).mean(1).sum() / total


def distance_to_means(values: Tensor, targets: Tensor, means: Tensor, count: Tensor) -> Tensor:
    """Mean squared distance of rows to the means (classes, width) of their classes, without classes of count 0."""
    known, distance = _distances(values, targets, means, count)
    return (distance * known).sum() / known.sum().clamp(min=1)


def relative_distance_to_means(values: Tensor, targets: Tensor, means: Tensor, count: Tensor) -> Tensor:
    """As `distance_to_means`, each distance d as d / (d + spread of the means + 0.1): between 0 and 1.

    A row is pulled in proportion to how far the classes are apart, whatever the size of the values, and a row that is
    farther from its class than classes are from each other is hardly pulled. The 0.1, small for the features of usual
    networks, keeps untrained models, whose classes coincide, from collapsing to one point.
    """
    known, distance = _distances(values, targets, means, count)
    relative = distance / (distance + spread_of_means(means, count) + _SMALL)
    return (relative * known).sum() / known.sum().clamp(min=1)


def _distances(values: Tensor, targets: Tensor, means: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """For each row, whether the mean of its class is known, 1 or 0, and the mean squared distance to it."""
    return (count > 0)[targets].to(values.dtype), (values - means[targets]).square().mean(1)
