"""What channels take and give, and how weights stretch over values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from consilience.encodings import Array
from consilience.errors import ChannelError

Tensors = Mapping[str, Array]


@dataclass(frozen=True)
class Answer:
    """What comes back: the tensors, and for each row how many samples stand behind it."""

    tensors: dict[str, Array]
    count: Array
    version: int = 0


def by_row(weight: Array, values: Array) -> Array:
    """A weight of shape (k, rows...) stretched over values of shape (k, rows..., rest...)."""
    xp = array_namespace(values)
    return xp.reshape(weight, weight.shape + (1,) * (values.ndim - weight.ndim))


def double(x: Array) -> Array:
    """In float64: sums in float32 drift."""
    xp = array_namespace(x)
    return xp.astype(x, xp.float64)


def checked(members: Sequence[int], count: int, channel: str) -> np.ndarray:
    """Member numbers as an array; numbers the channel does not have, or named twice, are refused."""
    who = np.asarray(members, dtype=np.int64)
    if who.size and (who.min() < 0 or who.max() >= count):
        raise ChannelError(f"{channel}: members {who.min()} to {who.max()} named, the channel has 0 to {count - 1}")
    if len(np.unique(who)) < who.size:
        raise ChannelError(f"{channel}: members {sorted(who.tolist())} named; each may be named once at a time")
    return who
