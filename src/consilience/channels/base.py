"""What channels take and give, and how weights stretch over values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from consilience.errors import ChannelError
from consilience.wire import schema
from consilience.wire.encodings import Array

_AT_ONCE = 2**27  # values in one sum: beyond that memory counts, and the sums are long enough by themselves
Tensors = Mapping[str, Array]
MemberNumbers = Sequence[int] | np.ndarray
"""Members by number."""


@dataclass(frozen=True)
class Answer:
    """What comes back: the tensors, and for each row how many samples stand behind it.

    Answers to several readers are one, with the readers along the first axis; a reader's own is `answer[i]`.
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
        """The same as the answers to a single reader."""
        return Answer({k: t[None] for k, t in self.tensors.items()}, self.count[None], self.version)


def empty_answer(channel: schema.Channel) -> Answer:
    """What a channel answers before anybody has put anything: zeros with count 0."""
    lead = (channel.draw,) if isinstance(channel, schema.Pool) else ()
    tensors = {k: np.zeros((*lead, *t.shape), np.float32) for k, t in channel.tensors.items()}
    return Answer(tensors, np.zeros((*lead, *channel.rows)))


def broadcast_rows(weight: Array, values: Array) -> Array:
    """A weight of shape (k, rows...) stretched over values of shape (k, rows..., rest...)."""
    xp = array_namespace(values)
    return xp.reshape(weight, weight.shape + (1,) * (values.ndim - weight.ndim))


def as_float64(x: Array) -> Array:
    """In float64: sums in float32 drift."""
    xp = array_namespace(x)
    return xp.astype(x, xp.float64)


def add_in_order(total: Array, changes: Sequence[Array], weights: Sequence[float] | None = None) -> Array:
    """The total (float64) with every (weighted) change added, one after the other: the same bits however many come.

    On an accelerator, where a thousand small sums take a thousand times as long as one, in one sum if they are small.
    """
    many = len(changes) * math.prod(total.shape) <= _AT_ONCE
    if many and not isinstance(total, np.ndarray) and total.device.type != "cpu":
        xp = array_namespace(total)
        stacked = as_float64(xp.stack(list(changes)) if isinstance(changes, list | tuple) else changes)
        if weights is not None:
            stacked = stacked * broadcast_rows(xp.asarray(weights, dtype=total.dtype, device=total.device), stacked)
        return total + xp.sum(stacked, axis=0)
    for i, change in enumerate(changes):
        total = total + (as_float64(change) if weights is None else as_float64(change) * weights[i])
    return total


def check_members(members: MemberNumbers, count: int, channel: str) -> np.ndarray:
    """Member numbers as an array; numbers the channel does not have, or named twice, are refused."""
    who = np.asarray(members, dtype=np.int64)
    if who.size and (who.min() < 0 or who.max() >= count):
        raise ChannelError(f"{channel}: members {who.min()} to {who.max()} named, the channel has 0 to {count - 1}")
    if len(np.unique(who)) < who.size:
        raise ChannelError(f"{channel}: members {sorted(who.tolist())} named; each may be named once at a time")
    return who


def as_slice(numbers: np.ndarray) -> slice | np.ndarray:
    """The same numbers as a slice where they follow each other: what it takes is not copied, and needs no index."""
    if not numbers.size:
        return numbers
    first, last = int(numbers[0]), int(numbers[-1])
    following = last - first + 1 == len(numbers) and bool((np.diff(numbers) == 1).all())
    return slice(first, last + 1) if following else numbers
