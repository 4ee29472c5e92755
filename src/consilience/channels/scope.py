"""Scopes: whose uploads a reader gets, as a matrix of readers x members, and the product that makes means of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from consilience.channels.base import Answer, Tensors, as_float64
from consilience.channels.robust import for_sums
from consilience.wire import schema
from consilience.wire.encodings import Array


@dataclass(frozen=True, eq=False)
class Scope:
    """What readers take of each member's upload.

    weights: (readers, members), the factor of a member's weight in a reader's mean. entries: (readers, members), whose
    entries of a pool a reader may draw. gossip: whether messages go from neighbor to neighbor: rows of weights add
    up to 1, and moving means use them as they are, whatever number of samples a member has.
    """

    weights: np.ndarray
    entries: np.ndarray
    gossip: bool = False

    def rows(self, readers: np.ndarray) -> Scope:
        """The scope of some readers."""
        return Scope(self.weights[readers], self.entries[readers], self.gossip)


def scoped_mean(channel: schema.Mean, values: Tensors, weights: Array, matrix: np.ndarray) -> Answer:
    """A mean for each reader, (readers, ...): one product of the matrix with all contributions.

    values: (members, *rows, ...); weights: (members, *rows). A member counts in a row by its weight there, times its
    factor in the matrix, (readers, members). The counts of an answer are sums of weights of members that count.
    """
    values, weights = for_sums(channel, values, weights)
    xp = array_namespace(weights)
    factors = xp.asarray(matrix, dtype=xp.float64, device=device(weights))  # (readers, members)
    members, readers = weights.shape[0], matrix.shape[0]
    flat = xp.reshape(as_float64(weights), (members, -1))  # (members, rows)
    shares = xp.permute_dims(factors[:, :, None] * flat[None], (2, 0, 1))  # (rows, readers, members)
    total = xp.sum(shares, axis=2)[:, :, None]  # (rows, readers, 1)
    shares = shares / xp.where(total > 0, total, xp.ones_like(total))
    tensors = {}
    for name, tensor in channel.tensors.items():
        value = values[name]
        parts = xp.permute_dims(as_float64(xp.reshape(value, (members, flat.shape[1], -1))), (1, 0, 2))
        mean = xp.permute_dims(xp.matmul(shares, parts), (1, 0, 2))  # (readers, rows, rest)
        tensors[name] = xp.astype(xp.reshape(mean, (readers, *tensor.shape)), value.dtype)
    counted = xp.matmul(xp.astype(factors > 0, xp.float64), flat)  # (readers, rows)
    return Answer(tensors, xp.reshape(counted, (readers, *channel.rows)))
