"""Means over the samples of a class, without branches: a class without samples is a row of zeros with count 0.

What is uploaded is computed for any array of the array-API standard: learners give torch's tensors, one by one or under
`vmap`, and members without torch NumPy's arrays (`consilience.peer.array_peer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

from array_api_compat import array_namespace, device

if TYPE_CHECKING:
    from torch import Tensor

_SMALL = 0.1
AnyArray = TypeVar("AnyArray", bound=Any)
"""An array type: a function returns arrays of the type it is given."""
Weighting = Literal["samples", "equal"]
"""What counts equally in the mean of a class: every sample, or every learner that has the class."""


def one_hot(targets: AnyArray, classes: int) -> AnyArray:
    """(rows, classes): true at the row's class. torch.nn.functional.one_hot reads values, which vmap does not allow."""
    found: AnyArray = targets[:, None] == array_namespace(targets).arange(classes, device=device(targets))
    return found


def membership(targets: AnyArray, classes: int, valid: AnyArray) -> AnyArray:
    """(rows, classes): 1 where the row is a sample of the class."""
    member: AnyArray = _as_type_of(valid, one_hot(targets, classes)) * valid[:, None]
    return member


def class_means(
    values: AnyArray, targets: AnyArray, classes: int, valid: AnyArray, min_count: int
) -> tuple[AnyArray, AnyArray]:
    """The mean of each class (classes, width), of features its prototype, and its sample count (classes,).

    A class with fewer than `min_count` samples counts as absent: the mean of a single sample is that sample.
    """
    member = membership(targets, classes, valid)  # (rows, classes)
    return _means(member, values, member.sum(0), min_count)


def sampled_means(
    values: AnyArray, targets: AnyArray, classes: int, valid: AnyArray, chance: AnyArray, size: int, min_count: int
) -> tuple[AnyArray, AnyArray]:
    """As `class_means`, over at most `size` samples of each class: those with the smallest `chance` (rows,)."""
    xp = array_namespace(values)
    total = membership(targets, classes, valid).sum(0)
    chosen = sampled_membership(targets, classes, valid, chance, size)
    means, _ = _means(chosen, values, total, min_count)
    return means, xp.where(total >= min_count, xp.minimum(total, xp.full_like(total, size)), xp.zeros_like(total))


def sampled_membership(targets: AnyArray, classes: int, valid: AnyArray, chance: AnyArray, size: int) -> AnyArray:
    """(rows, classes): 1 where the row is one of the at most `size` samples of the class with the smallest `chance`."""
    xp = array_namespace(chance)
    member = membership(targets, classes, valid)
    total = member.sum(0)
    # Sorting by class + chance puts each class in a block, shuffled; padding goes last.
    block = xp.where(valid > 0, targets, xp.full_like(targets, classes))
    position = (_as_type_of(chance, block) + chance).argsort().argsort()
    first = total.cumsum(0) - total  # (classes,) where each block begins
    rank = position - _as_type_of(position, first[targets])
    chosen: AnyArray = member * _as_type_of(member, rank < size)[:, None]
    return chosen


def upload_weight(count: AnyArray, weighting: Weighting) -> AnyArray:
    """What is uploaded beside class means: the sample counts, or 1 for each class that the learner has."""
    return count if weighting == "samples" else _as_type_of(count, count > 0)


def _means(member: AnyArray, values: AnyArray, total: AnyArray, min_count: int) -> tuple[AnyArray, AnyArray]:
    xp = array_namespace(values)
    taken = member.sum(0)
    enough = total >= min_count
    means = (member.T @ values) / xp.maximum(taken, xp.ones_like(taken))[:, None]
    return xp.where(enough[:, None], means, xp.zeros_like(means)), xp.where(enough, taken, 0 * taken)


def _as_type_of(like: AnyArray, x: Any) -> AnyArray:
    found: AnyArray = array_namespace(like).astype(x, like.dtype)
    return found


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
