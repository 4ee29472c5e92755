"""Means over the samples of a group, without branches: a group without samples is a row of zeros with count 0.

A group is a class, a label or a bin: `consilience.kinds` says which samples are members of it. What is uploaded is
computed for any array of the array-API standard: learners give torch's tensors, one by one or under `vmap`, and members
without torch NumPy's arrays (`consilience.peer.array_peer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from array_api_compat import array_namespace

from consilience.kinds.one_hot import AnyArray

if TYPE_CHECKING:
    from torch import Tensor

_SMALL = 0.1
Weighting = Literal["samples", "equal"]
"""What counts equally in the mean of a group: every sample, or every learner that has the group."""


def group_means(values: AnyArray, member: AnyArray, min_count: int) -> tuple[AnyArray, AnyArray]:
    """The mean of each group (groups, width), of features its prototype, and its sample count (groups,).

    member: (rows, groups) 1 where a row is a sample of the group. A group with fewer than `min_count` samples counts as
    absent: the mean of a single sample is that sample.
    """
    return _means(member, values, member.sum(0), min_count)


def sampled_group_means(
    values: AnyArray, member: AnyArray, chance: AnyArray, size: int, min_count: int
) -> tuple[AnyArray, AnyArray]:
    """As `group_means`, over at most `size` samples of each group: those with the smallest `chance` (rows,)."""
    xp, total = array_namespace(values), member.sum(0)
    means, _ = _means(sampled_membership(member, chance, size), values, total, min_count)
    return means, xp.where(total >= min_count, xp.minimum(total, xp.full_like(total, size)), xp.zeros_like(total))


def sampled_membership(member: AnyArray, chance: AnyArray, size: int) -> AnyArray:
    """(rows, groups): 1 where the row is one of the at most `size` samples of the group with the smallest `chance`."""
    xp, column = array_namespace(chance), chance[:, None]
    place = xp.where(member > 0, column, xp.full_like(column, 2.0))  # others come after all members
    rank = place.argsort(0).argsort(0)  # (rows, groups)
    chosen: AnyArray = member * as_type_of(member, rank < size)
    return chosen


def upload_weight(count: AnyArray, weighting: Weighting) -> AnyArray:
    """What is uploaded beside means: the sample counts, or 1 for each group that the learner has."""
    return count if weighting == "samples" else as_type_of(count, count > 0)


def as_type_of(like: AnyArray, x: Any) -> AnyArray:
    """Values in the type of others."""
    found: AnyArray = array_namespace(like).astype(x, like.dtype)
    return found


def _means(member: AnyArray, values: AnyArray, total: AnyArray, min_count: int) -> tuple[AnyArray, AnyArray]:
    xp, taken = array_namespace(values), member.sum(0)
    enough = total >= min_count
    means = (member.T @ values) / xp.maximum(taken, xp.ones_like(taken))[:, None]
    return xp.where(enough[:, None], means, xp.zeros_like(means)), xp.where(enough, taken, 0 * taken)


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
