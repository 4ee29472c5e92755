"""Means over the samples of a group, without branches: a group without samples is a row of zeros with count 0.

A group is a class, a label or a bin: `consilience.kinds` says which samples are members of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SMALL = 0.1


def group_means(values: Tensor, member: Tensor, min_count: int) -> tuple[Tensor, Tensor]:
    """The mean of each group (groups, width), of features its prototype, and its sample count (groups,).

    member: (rows, groups) 1 where a row is a sample of the group. A group with fewer than `min_count` samples counts as
    absent: the mean of a single sample is that sample.
    """
    return _means(member, values, member.sum(0), min_count)


def sampled_means(values: Tensor, member: Tensor, chance: Tensor, size: int, min_count: int) -> tuple[Tensor, Tensor]:
    """As `group_means`, over at most `size` samples of each group: those with the smallest `chance` (rows,)."""
    total = member.sum(0)
    means, _ = _means(sampled_membership(member, chance, size), values, total, min_count)
    return means, torch.where(total >= min_count, total.clamp(max=size), torch.zeros_like(total))


def sampled_membership(member: Tensor, chance: Tensor, size: int) -> Tensor:
    """(rows, groups): 1 where the row is one of the at most `size` samples of the group with the smallest `chance`."""
    place = torch.where(member > 0, chance[:, None], torch.full_like(chance, 2.0)[:, None])  # others after all members
    rank = place.argsort(0).argsort(0)  # (rows, groups)
    return member * (rank < size).to(member.dtype)


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


def distance_to_expected(values: Tensor, expected: Tensor, known: Tensor) -> Tensor:
    """Mean squared distance of rows to what is expected of them (rows, width), without rows of which nothing is known.

    expected, known: the mean of a row's group, and whether there is one, 1 or 0, as a kind of task says (`expected`).
    """
    return ((values - expected).square().mean(1) * known).sum() / known.sum().clamp(min=1)


def relative_distance_to_expected(
    values: Tensor, expected: Tensor, known: Tensor, means: Tensor, count: Tensor
) -> Tensor:
    """As `distance_to_expected`, each distance d as d / (d + spread of the means + 0.1): between 0 and 1.

    A row is pulled in proportion to how far the groups are apart, whatever the size of the values, and a row that is
    farther from its group than groups are from each other is hardly pulled. The 0.1, small for the features of usual
    networks, keeps untrained models, whose classes coincide, from collapsing to one point.
    """
    distance = (values - expected).square().mean(1)
    relative = distance / (distance + spread_of_means(means, count) + _SMALL)
    return (relative * known).sum() / known.sum().clamp(min=1)
