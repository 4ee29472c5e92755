"""Answers of channels, and array functions that all channels share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from consilience.errors import ChannelError
from consilience.wire import schema
from consilience.wire.encodings import Array

_LARGEST_SUM = 2**27  # values in one sum; larger ones would need too much memory and gain no time
LAST_MOVE = "last move of "
"""Before a tensor's name in the answer of a moving mean: by how much it moved at the last aggregation."""
Tensors = Mapping[str, Array]
MemberNumbers = Sequence[int] | np.ndarray
"""Members by number."""


@dataclass(frozen=True)
class Answer:
    """What a channel returns: the tensors, and for each row how many samples it is the mean of.

    Answers to several readers are one, with the readers along the first axis; reader i's is `answer[i]`.
    """

    tensors: dict[str, Array]
    count: Array
    version: int = 0

    def __len__(self) -> int:
        return int(self.count.shape[0])

    def __getitem__(self, reader: int) -> Answer:
        if not -len(self) <= reader < len(self):
            raise IndexError(f"reader {reader} of {len(self)}")
        return Answer({k: t[reader] for k, t in self.tensors.items()}, self.count[reader], self.version)

    def __iter__(self) -> Iterator[Answer]:
        return (self[reader] for reader in range(len(self)))

    def for_one(self) -> Answer:
        """The same as answers to one reader: with a first axis of length 1."""
        return Answer({k: t[None] for k, t in self.tensors.items()}, self.count[None], self.version)


def empty_answer(channel: schema.Channel) -> Answer:
    """The answer of a channel to which no member has uploaded: zeros with count 0."""
    lead = (channel.draw,) if isinstance(channel, schema.Pool) else ()
    tensors = {k: np.zeros((*lead, *t.shape), np.float32) for k, t in channel.tensors.items()}
    return Answer(tensors, np.zeros((*lead, *channel.rows)))


def broadcast_rows(weight: Array, values: Array) -> Array:
    """A weight of shape (k, rows...) reshaped to broadcast over values of shape (k, rows..., rest...)."""
    return weight.reshape(tuple(weight.shape) + (1,) * (values.ndim - weight.ndim))


def as_float64(x: Array) -> Array:
    """The array in float64: sums in float32 lose digits."""
    if isinstance(x, np.ndarray):  # a relay asks for it several times per upload
        return x.astype(np.float64)
    xp = array_namespace(x)
    return xp.astype(x, xp.float64)


def add_in_order(total: Array, changes: Sequence[Array], weights: Sequence[float] | None = None) -> Array:
    """The total (float64) plus every (weighted) change, one after the other: the same bits however they are grouped.

    On an accelerator small changes are added in one sum, as a thousand sums would take a thousand times as long.
    """
    small = len(changes) * math.prod(total.shape) <= _LARGEST_SUM
    if small and not isinstance(total, np.ndarray) and total.device.type != "cpu":
        xp = array_namespace(total)
        stacked = as_float64(xp.stack(list(changes)) if isinstance(changes, list | tuple) else changes)
        if weights is not None:
            stacked = stacked * broadcast_rows(xp.asarray(weights, dtype=total.dtype, device=total.device), stacked)
        return total + xp.sum(stacked, axis=0)
    for i, change in enumerate(changes):
        total = total + (as_float64(change) if weights is None else as_float64(change) * weights[i])
    return total


def check_members(members: MemberNumbers, count: int, channel: str) -> np.ndarray:
    """Member numbers as an array; refuses numbers that the channel does not have, and duplicates."""
    who = np.asarray(members, dtype=np.int64)
    if who.size and (who.min() < 0 or who.max() >= count):
        raise ChannelError(f"{channel}: members {who.min()} to {who.max()} given; the channel has 0 to {count - 1}")
    if len(np.unique(who)) < who.size:
        raise ChannelError(f"{channel}: members {sorted(who.tolist())} given; each member may be given once")
    return who


def as_slice(numbers: np.ndarray) -> slice | np.ndarray:
    """The same numbers as a slice if they are consecutive: indexing with a slice copies nothing."""
    if not numbers.size:
        return numbers
    first, last = int(numbers[0]), int(numbers[-1])
    consecutive = last - first + 1 == len(numbers) and bool((np.diff(numbers) == 1).all())
    return slice(first, last + 1) if consecutive else numbers
