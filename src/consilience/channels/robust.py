"""Means that resist: weights are capped, norms clipped, and values trimmed or replaced by their median.

All functions take contributions as (members, rows, rest): `rows` is 1 where a contribution has one weight. They compute
in float64 and add in a fixed order, so that NumPy and torch give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from array_api_compat import array_namespace, device

from consilience.channels.base import Tensors, add_in_order, as_float64, broadcast_rows
from consilience.wire import schema
from consilience.wire.encodings import Array
from consilience.wire.robustness import Robustness

_BLOCK = 2**21  # values at a time: sorting them takes several times their memory
_EXACT = 1e-9  # 0.29 * 100 is a little less than 29


def capped(robustness: Robustness, weights: Array) -> Array:
    """Weights, none above the cap."""
    if robustness.weight_cap == math.inf:
        return weights
    xp = array_namespace(weights)
    return xp.where(weights > robustness.weight_cap, xp.full_like(weights, robustness.weight_cap), weights)


def for_sums(channel: schema.Mean, tensors: Tensors, weights: Array) -> tuple[Tensors, Array]:
    """Contributions (k, ...) and weights (k, *rows) as they enter running sums: capped, and within `clip_norm`."""
    robustness = channel.robustness
    if robustness.clip_norm < math.inf:
        limit = robustness.clip_norm
        norms = contribution_norms([_by_row(channel, tensors[k]) for k in channel.tensors])
        factors = array_namespace(weights).reshape(clip_factors(norms, limit), weights.shape)
        tensors = {k: as_float64(tensors[k]) * broadcast_rows(factors, tensors[k]) for k in channel.tensors}
    return tensors, capped(robustness, weights)


def robust_mean(channel: schema.Mean, tensors: Tensors, weights: Array) -> dict[str, Array]:
    """The aggregate of all contributions (members, ...) with weights (members, *rows), in float64.

    Rows that no member has are zeros.
    """
    robustness = channel.robustness
    parts = {k: _by_row(channel, tensors[k]) for k in channel.tensors}
    xp = array_namespace(weights)
    capped_weights = xp.reshape(as_float64(capped(robustness, weights)), (weights.shape[0], math.prod(channel.rows)))
    factors = None
    if robustness.clips:
        norms = contribution_norms(list(parts.values()))
        factors = clip_factors(norms, norm_limit(robustness, norms, capped_weights))
    found = {k: aggregate(robustness, part, capped_weights, factors) for k, part in parts.items()}
    return {k: xp.reshape(found[k], tensor.shape) for k, tensor in channel.tensors.items()}


def contribution_norms(parts: Sequence[Array]) -> Array:
    """The norm of each member's rows over all tensors, each (members, rows, rest): (members, rows).

    Relative to the largest magnitude it is rounded to single precision, in which sums in any order agree.
    """
    xp, (members, rows) = array_namespace(parts[0]), parts[0].shape[:2]
    size = max(sum(math.prod(part.shape[1:]) for part in parts), 1)
    step, found = max(_BLOCK // size, 1), []
    for first in range(0, members, step):
        found.append(_norms([part[first : first + step] for part in parts]))
    empty = xp.zeros((0, rows), dtype=xp.float64, device=device(parts[0]))
    return xp.concat(found, axis=0) if found else empty


def _norms(parts: Sequence[Array]) -> Array:
    xp = array_namespace(parts[0])
    magnitudes = [xp.abs(as_float64(part)) for part in parts if part.shape[2]]
    if not magnitudes:
        return xp.zeros(parts[0].shape[:2], dtype=xp.float64, device=device(parts[0]))
    largest = xp.max(xp.stack([xp.max(each, axis=2) for each in magnitudes]), axis=0)
    unit = xp.where(largest > 0, largest, xp.ones_like(largest))[..., None]  # squares neither overflow nor vanish
    squares = sum(xp.sum((each / unit) ** 2, axis=2) for each in magnitudes)
    return largest * as_float64(xp.astype(xp.sqrt(squares), xp.float32))


def norm_limit(robustness: Robustness, norms: Array, weights: Array) -> Array:
    """The largest norm that is left as it is, (rows,): by the limit itself, and by the median norm.

    The median is the lower one of two, of norms above 0: one member of two cannot lift the limit by a larger norm.
    """
    xp = array_namespace(norms)
    absolute = xp.full(norms.shape[1:], robustness.clip_norm, dtype=xp.float64, device=device(norms))
    if robustness.clip_ratio == math.inf or not norms.shape[0]:
        return absolute
    counted = (weights > 0) & (norms > 0)  # (members, rows)
    ordered = xp.sort(xp.where(counted, norms, xp.full_like(norms, math.inf)), axis=0)
    present = xp.sum(xp.astype(counted, xp.int64), axis=0)
    middle = (xp.where(present > 0, present, xp.ones_like(present)) - 1) // 2
    median = xp.take_along_axis(ordered, middle[None], axis=0)[0]
    relative = median * robustness.clip_ratio
    return xp.where(relative < absolute, relative, absolute)


def clip_factors(norms: Array, limit: Array | float) -> Array:
    """By how much contributions are scaled, (members, rows): 1 for those within the limit."""
    xp = array_namespace(norms)
    return xp.where(norms > limit, limit / xp.where(norms > limit, norms, xp.ones_like(norms)), xp.ones_like(norms))


def aggregate(robustness: Robustness, values: Array, weights: Array, factors: Array | None) -> Array:
    """The mean, trimmed mean or median of each coordinate, (rows, rest), of (members, rows, rest).

    weights, factors: (members, rows). Contributions of weight 0 do not count; nothing of what counts depends on the
    order of members.
    """
    xp, (members, rows, rest) = array_namespace(values), values.shape
    step, found = max(_BLOCK // max(members * rows, 1), 1), []
    combine = _mean if robustness.aggregation == "mean" else _trimmed
    for first in range(0, rest, step):
        block = as_float64(values[:, :, first : first + step]) + 0.0  # + 0.0 turns -0 into 0, which sort alike
        block = block if factors is None else block * factors[..., None]
        found.append(combine(robustness, block, weights))
    empty = xp.zeros((rows, 0), dtype=xp.float64, device=device(values))
    return xp.concat(found, axis=1) if found else empty


def _mean(robustness: Robustness, values: Array, weights: Array) -> Array:
    """The weighted mean, added in the order of members."""
    xp = array_namespace(values)
    zero = xp.zeros(values.shape[1:], dtype=xp.float64, device=device(values))
    return _quotient(add_in_order(zero, values * weights[..., None]), add_in_order(zero[:, :1], weights[..., None]))


def _trimmed(robustness: Robustness, values: Array, weights: Array) -> Array:
    """The mean of what is left of each coordinate when the same number of values is trimmed at both ends.

    How many depends on how many members count, and not on their weights: no claimed weight buys a place. What is left
    is averaged by weights; the median is what is left in the middle, one value or two, that count alike.
    """
    xp, members = array_namespace(values), values.shape[0]
    counted = weights > 0  # (members, rows)
    present = xp.sum(xp.astype(counted, xp.int64), axis=0)  # (rows,)
    cut = _trimmed_at_each_end(robustness, present)
    by_weight = xp.argsort(xp.where(counted, weights, xp.full_like(weights, math.inf)), axis=0, stable=True)[..., None]
    values = xp.where(counted[..., None], values, xp.full_like(values, math.inf))
    values = xp.take_along_axis(values, xp.broadcast_to(by_weight, values.shape), axis=0)  # decides between equals
    order = xp.argsort(values, axis=0, stable=True)
    values = xp.take_along_axis(values, order, axis=0)
    rank = xp.reshape(xp.arange(members, device=device(values)), (members, 1, 1))
    left = (rank >= cut[:, None]) & (rank < (present - cut)[:, None])  # (members, rows, 1)
    if robustness.aggregation == "median":
        of = xp.astype(xp.broadcast_to(left, values.shape), xp.float64)
    else:
        whose = xp.take_along_axis(xp.broadcast_to(by_weight, values.shape), order, axis=0)
        of = xp.take_along_axis(xp.broadcast_to(weights[..., None], values.shape), whose, axis=0)
        of = xp.where(left, of, xp.zeros_like(of))
    kept = xp.where(left, values, xp.zeros_like(values)) * of
    zero = xp.zeros(values.shape[1:], dtype=xp.float64, device=device(values))
    return _quotient(add_in_order(zero, kept), add_in_order(zero, of))


def _trimmed_at_each_end(robustness: Robustness, present: Array) -> Array:
    """How many values are trimmed at each end, (rows,); at least one is left."""
    xp = array_namespace(present)
    most = xp.where(present > 0, (present - 1) // 2, xp.zeros_like(present))
    if robustness.aggregation == "median":
        return most
    share = xp.astype(xp.ceil(as_float64(present) * robustness.trim - _EXACT), present.dtype)
    return xp.where(share < most, share, most)


def _quotient(total: Array, count: Array) -> Array:
    """The total by its count; 0 where there is none."""
    xp = array_namespace(total)
    return xp.where(count > 0, total / xp.where(count > 0, count, xp.ones_like(count)), xp.zeros_like(total))


def _by_row(channel: schema.Mean, values: Array) -> Array:
    """Values (k, *rows, ...) as (k, rows, rest)."""
    rows, lead = math.prod(channel.rows), 1 + len(channel.rows)
    return array_namespace(values).reshape(values, (values.shape[0], rows, math.prod(values.shape[lead:])))


def norms_of_changes(flat: Array) -> np.ndarray:
    """Norms of changes, (k, size), as NumPy's: (k,)."""
    return np.asarray(contribution_norms([flat[:, None, :]])[:, 0].tolist())
